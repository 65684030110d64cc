"""Which kernels may run a network's layers: the named one, or the kernels that `auto` permits, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from sparsenn.backends import (
    DOUBLE_DEVICE,
    Backend,
    ConvolutionKernel,
    Kernel,
    Machine,
    SparseKernel,
    automatic,
    backend_for,
    backend_on,
    kernels,
    machine_named,
    permitted_kernels,
    select_kernels,
)
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, IMAGE_OPERATION, SPARSE_OPERATION
from sparsenn.engine.options import Options
from sparsenn.engine.steps import Step
from sparsenn.errors import UsageError, unknown_name
from sparsenn.formats import CSR
from sparsenn.layers import CombiningLayer, Conv2d, Flatten, ImageLayer, Linear, Slice, SoftmaxLayer, SparseLinear
from sparsenn.network import Image, Network

__all__ = [
    "DOUBLE_PRECISION",
    "PRECISIONS",
    "Kernels",
    "able_kernels",
    "able_sparse",
    "choose_kernels",
    "convolution_steps",
    "name_layers",
    "operation_of",
]

DOUBLE_PRECISION = "float64"
"""The precision of all layers, hidden values and sums: on the host by the reference's products, on a GPU by those of
cuSPARSE and cuBLAS."""

PRECISIONS = ("float32", "tf32", "float16", DOUBLE_PRECISION)
"""Precisions in which layers may be multiplied; sums are float32, except in the last."""

ON_GPU = (Flatten, Slice, SoftmaxLayer, CombiningLayer)
"""Layers of images that GPUs compute in float64."""

AnyKernel = TypeVar("AnyKernel", bound=Kernel)


Kernels: TypeAlias = dict[str, tuple[Any, ...]]
"""The kernels that may run a network's layers, by operation.

Of those that can run layers, the one with the least estimate of time does, where they give one, else the first. Those
of dense layers and convolutions have the precision that is asked for, then float32, which keeps any precision."""

_OPERATION_OF = {
    SparseLinear: SPARSE_OPERATION,
    Linear: DENSE_OPERATION,
    Conv2d: CONV_OPERATION,
    ImageLayer: IMAGE_OPERATION,
}


def operation_of(layer: Any) -> str:
    """Return the operation whose kernels run a layer."""
    for kind, operation in _OPERATION_OF.items():
        if isinstance(layer, kind):
            return operation
    raise UsageError(f"nothing runs the layer {type(layer).__name__}")


def choose_kernels(network: Network, options: Options) -> tuple[Backend, Kernels]:
    """Return the backend, and the kernels that may run a network on it.

    Parameters
    ----------
    options : their precision is not `auto`.

    Raises
    ------
    UsageError
        The device, the kernel or the precision does not exist, or they do not go together or with the network.
    DeviceError
        The device is not there.
    """
    device, kernel, precision, reproducible = options.device, options.kernel, options.precision, options.reproducible
    machine = machine_named(options.machine) if isinstance(options.machine, str) else options.machine
    if precision == DOUBLE_PRECISION:
        try:
            return _choose_doubles(network, options)
        except UsageError as error:
            if not network.needs_float64:
                raise
            raise UsageError(
                f"{error}; float32 rounds away too much of this network's outputs, which makes {DOUBLE_PRECISION} the "
                f"default: precision {PRECISIONS[0]} computes it all the same"
            ) from error
    if precision != PRECISIONS[0]:
        _check_precision(precision, network, kernel)
    operations = _operations(network, kernel)
    if not operations:
        return backend_on(device, machine), _by_operation(())
    own = operations[0] != SPARSE_OPERATION or precision == PRECISIONS[0]
    own = own or _multiplies_in(kernel, precision, backend_on(device, machine).device, reproducible)
    first_precision = precision if own else PRECISIONS[0]
    backend, chosen = select_kernels(device, kernel, operations[0], first_precision, machine, reproducible)
    for operation in operations[1:]:
        chosen += permitted_kernels(operation, backend.device, "auto", precision, reproducible)
    converts = operations[0] == SPARSE_OPERATION and kernel == "auto" and not backend.doubles and not reproducible
    if precision != PRECISIONS[0] and operations == [SPARSE_OPERATION] and not (own or converts):
        raise UsageError(f"sparse layers are not multiplied in {precision} on {device}; leave out {precision}")
    if converts and DENSE_OPERATION not in operations:
        chosen += _for_converted(backend.device, precision, operations)
    return backend, _by_operation(chosen)


def _choose_doubles(network: Network, options: Options) -> tuple[Backend, Kernels]:
    """Return what computes in float64: on the CPU unless a GPU is asked for."""
    device = options.device
    on_gpu = device == "cuda" or device.startswith("cuda:")
    if options.machine is not None or not (on_gpu or device in ("auto", "cpu", "reference")):
        asked = "a machine that is not here" if options.machine is not None else device
        raise UsageError(f"{asked} does not compute in {DOUBLE_PRECISION}; use device cpu or cuda")
    if not on_gpu:
        return choose_kernels(network, replace(options, device="reference", precision=PRECISIONS[0]))
    lacking = [layer.name for layer in network if isinstance(layer, ImageLayer) and not isinstance(layer, ON_GPU)]
    if lacking:
        raise UsageError(f"GPUs do not compute {lacking[0]} in {DOUBLE_PRECISION}; use device cpu")
    operations = _operations(network, options.kernel)
    backend = backend_for(device.replace("cuda", DOUBLE_DEVICE, 1))
    chosen: list[Kernel] = []
    for operation in operations:
        name = options.kernel if operation == operations[0] else "auto"
        chosen += permitted_kernels(operation, backend.device, name, DOUBLE_PRECISION, options.reproducible)
    return backend, _by_operation(chosen)


def _for_converted(device: str, precision: str, operations: Sequence[str]) -> list[Kernel]:
    """Return the kernels for sparse layers that are multiplied as dense ones.

    Where none has the precision, they are those of float32, and the precision is for other layers; without such, it is
    refused.
    """
    known = {kernel.precision for kernel in automatic(DENSE_OPERATION, device)}
    if precision not in known and operations == [SPARSE_OPERATION]:
        raise UsageError(
            f"sparse layers are not multiplied in {precision} on {device}; leave out precision {precision}"
        )
    return permitted_kernels(DENSE_OPERATION, device, "auto", precision if precision in known else PRECISIONS[0])


def _by_operation(chosen: Sequence[Kernel]) -> Kernels:
    operations = SPARSE_OPERATION, DENSE_OPERATION, CONV_OPERATION
    return {operation: tuple(kernel for kernel in chosen if kernel.operation == operation) for operation in operations}


def _operations(network: Network, kernel: str = "auto") -> list[str]:
    """Return the operations with kernels that a network has layers of; `kernel` names one of the first."""
    present = set(map(operation_of, network))
    chosen = [operation for operation in (SPARSE_OPERATION, CONV_OPERATION, DENSE_OPERATION) if operation in present]
    if not chosen and kernel != "auto":
        raise UsageError(f"no layer of this network has kernels to choose from; leave out kernel {kernel!r}")
    return chosen


def _is_named_for(kernel: str, precision: str) -> bool:
    return any(entry.name == kernel and entry.precision == precision for entry in kernels(SPARSE_OPERATION))


def _multiplies_in(kernel: str, precision: str, device: str, reproducible: bool) -> bool:
    if kernel != "auto":
        return _is_named_for(kernel, precision)
    return not reproducible and any(entry.precision == precision for entry in automatic(SPARSE_OPERATION, device))


def _check_precision(precision: str, network: Network, kernel: str) -> None:
    """Refuse a precision that does not exist, or that would change nothing."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    operations = _operations(network)
    if operations == [SPARSE_OPERATION] and kernel != "auto" and not _is_named_for(kernel, precision):
        raise UsageError(
            f"the kernel {kernel!r} multiplies sparse layers, in float32 only; leave out precision {precision}, or the "
            "kernel: sparse layers that hold enough weights are then multiplied as dense ones"
        )
    if not operations:
        raise UsageError(f"no layer of this network multiplies anything; leave out precision {precision}")


def able_sparse(
    candidates: Sequence[SparseKernel], machine: Machine, layers: Sequence[SparseLinear], rows: CSR, first: int = 0
) -> tuple[SparseKernel, ...]:
    """Return the kernels of `spmspm` that can run consecutive layers, the first of them number `first`.

    `rows` are a few like the layers' inputs. Errors are those of `able_kernels`.
    """
    return able_kernels(candidates, name_layers(first, first + len(layers)), machine, Network(tuple(layers)), rows)


def able_kernels(
    candidates: Sequence[AnyKernel], layers: str, machine: Machine, *problem: Any
) -> tuple[AnyKernel, ...]:
    """Return the kernels that can run layers.

    Parameters
    ----------
    layers : in words.
    problem : as `why_not` of these kernels takes it, after the machine.

    Raises
    ------
    UsageError
        None can; the message says why.
    """
    able, refused = _divided(candidates, machine, *problem)
    if not able:
        texts = (f"the kernel {kernel.name!r} cannot run {layers}: {reason}" for kernel, reason in refused)
        raise UsageError("; ".join(texts))
    return able


def convolution_steps(
    candidates: Sequence[ConvolutionKernel], machine: Machine, layer: Conv2d, image: Image, number: int, images: int
) -> list[Step]:
    """Return the steps that can run a convolution, best prior first.

    Parameters
    ----------
    image : channels, height and width of the layer's inputs.
    number : the layer's, counted from 0.
    images : at a time.

    Raises
    ------
    UsageError
        None can; the message says why.
    """
    able = able_kernels(candidates, f"layer {number + 1}", machine, layer, image)
    refused = [f"{kernel.name} cannot, because {why}" for kernel, why in _divided(candidates, machine, layer, image)[1]]
    priors = [None if kernel.seconds is None else images * kernel.seconds(machine, layer, image) for kernel in able]
    steps = [
        Step(number, number + 1, kernel, "; ".join(refused), seconds)
        for kernel, seconds in zip(able, priors, strict=True)
    ]
    return steps if None in priors else sorted(steps, key=lambda step: step.seconds or 0.0)


def name_layers(first: int, last: int) -> str:
    """Return consecutive layers, counted from 0, `last` excluded, as messages speak of them."""
    return f"layers {first + 1} to {last}" if first else "this"


def _divided(
    candidates: Sequence[AnyKernel], machine: Machine, *problem: Any
) -> tuple[tuple[AnyKernel, ...], list[tuple[AnyKernel, str]]]:
    reasons = [(kernel, kernel.why_not(machine, *problem)) for kernel in candidates]
    refused = [(kernel, reason) for kernel, reason in reasons if reason is not None]
    return tuple(kernel for kernel, reason in reasons if reason is None), refused
