"""Which kernels may run a network's layers: the named one, or the kernels that `auto` permits, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from sparsenn.backends import (
    DOUBLE_DEVICE,
    Backend,
    Kernel,
    Machine,
    automatic,
    kernel_named,
    machine_named,
    permitted_kernels,
    select_backend,
)
from sparsenn.backends.kernel_records import CONV_OPERATION, DENSE_OPERATION, IMAGE_OPERATION, SPARSE_OPERATION
from sparsenn.engine.options import DOUBLE_PRECISION, PRECISIONS, Options
from sparsenn.errors import UsageError
from sparsenn.layers import (
    CombiningLayer,
    Conv2d,
    Flatten,
    ForeignLayer,
    ImageLayer,
    Linear,
    PerPosition,
    Slice,
    SoftmaxLayer,
    SparseLinear,
    connected_layer,
)
from sparsenn.network import Network

__all__ = [
    "Kernels",
    "able_kernels",
    "choose_kernels",
    "multiplies_zeros",
    "operation_of",
]

ON_GPU = (Flatten, Slice, SoftmaxLayer, CombiningLayer, PerPosition)
"""Layers of images that GPUs compute in float64."""

AnyKernel = TypeVar("AnyKernel", bound=Kernel)

Kernels: TypeAlias = dict[str, tuple[Any, ...]]
"""The kernels that may run a network's layers, by operation: of the precision that is asked for, then of float32."""

_OPERATION_OF = {
    SparseLinear: SPARSE_OPERATION,
    Conv2d: CONV_OPERATION,
    Linear: DENSE_OPERATION,
    ImageLayer: IMAGE_OPERATION,
}
"""A named kernel is of the first of these operations that the network has layers of."""


def operation_of(layer: Any) -> str:
    """Return the operation whose kernels run a layer."""
    for kind, operation in _OPERATION_OF.items():
        if isinstance(connected_layer(layer), kind):
            return operation
    raise UsageError(f"nothing runs the layer {type(layer).__name__}")


def choose_kernels(network: Network, options: Options) -> tuple[Backend, Kernels]:
    """Return the backend, and the kernels that may run a network on it; errors are those of `Session`."""
    try:
        return _chosen(network, options)
    except UsageError as error:
        if options.precision != DOUBLE_PRECISION or not network.needs_float64:
            raise
        raise UsageError(
            f"{error}; float32 rounds away too much of this network's outputs, which makes {DOUBLE_PRECISION} the "
            f"default: precision {PRECISIONS[0]} computes it all the same"
        ) from error


def _chosen(network: Network, options: Options) -> tuple[Backend, Kernels]:
    device, kernel, precision = options.device, options.kernel, options.precision
    if precision == DOUBLE_PRECISION:
        device, precision = _double_device(network, options)
    foreign = next((layer for layer in network if isinstance(layer, ForeignLayer)), None)
    if foreign is not None and options.reproducible:
        raise UsageError(
            f"ONNX Runtime computes {', '.join(foreign.operators)}, and promises no bits for other numbers of rows: "
            "leave out reproducible"
        )
    rounds = precision in ("tf32", "float16")
    present = set(map(operation_of, network)) - {IMAGE_OPERATION}
    operations = [operation for operation in _OPERATION_OF.values() if operation in present]
    if not operations and rounds:
        raise UsageError(f"no layer of this network multiplies anything; leave out precision {precision}")
    if not operations and kernel != "auto":
        raise UsageError(f"no layer of this network has kernels to choose from; leave out kernel {kernel!r}")
    machine = machine_named(options.machine) if isinstance(options.machine, str) else options.machine
    backend = select_backend(device, kernel, next(iter(operations), None), machine)
    converts = SPARSE_OPERATION in present and multiplies_zeros(options, backend)
    converted = [DENSE_OPERATION] if converts and DENSE_OPERATION not in present else []
    chosen: Kernels = dict.fromkeys((SPARSE_OPERATION, DENSE_OPERATION, CONV_OPERATION), ())
    for operation in operations + converted:
        name, least = kernel if operation == operations[0] else "auto", precision
        if operation in (SPARSE_OPERATION, *converted):  # stay in float32 where no kernel has the precision
            named = name != "auto"
            there = [kernel_named(operation, name, backend.device)] if named else automatic(operation, backend.device)
            least = precision if any(entry.precision == precision for entry in there) else PRECISIONS[0]
        chosen[operation] = tuple(permitted_kernels(operation, backend.device, name, least, options.reproducible))
    has_precision = any(entry.precision == precision for entries in chosen.values() for entry in entries)
    if rounds and present == {SPARSE_OPERATION} and not has_precision:
        if kernel == "auto":
            raise UsageError(f"sparse layers are not multiplied in {precision} on {device}; leave out {precision}")
        raise UsageError(
            f"the kernel {kernel!r} multiplies sparse layers, in float32 only; leave out precision {precision}, or the "
            "kernel: sparse layers that hold enough weights are then multiplied as dense ones"
        )
    return backend, chosen


def multiplies_zeros(options: Options, backend: Backend) -> bool:
    """Whether sparse layers may be multiplied as dense ones."""
    return options.kernel == "auto" and not options.reproducible and not backend.doubles


def _double_device(network: Network, options: Options) -> tuple[str, str]:
    """Return the device that computes in float64, the CPU unless a GPU is asked for, and its kernels' precision."""
    device = options.device
    on_gpu = device == "cuda" or device.startswith("cuda:")
    if options.machine is not None or not (on_gpu or device in ("auto", "cpu", "reference")):
        asked = "a machine that is not here" if options.machine is not None else device
        raise UsageError(f"{asked} does not compute in {DOUBLE_PRECISION}; use device cpu or cuda")
    if not on_gpu:
        return "reference", PRECISIONS[0]
    lacking = [layer.name for layer in network if isinstance(layer, ImageLayer) and not isinstance(layer, ON_GPU)]
    if lacking:
        raise UsageError(f"GPUs do not compute {lacking[0]} in {DOUBLE_PRECISION}; use device cpu")
    return device.replace("cuda", DOUBLE_DEVICE, 1), DOUBLE_PRECISION


def able_kernels(
    candidates: Sequence[AnyKernel], layers: str, machine: Machine, *problem: Any
) -> tuple[tuple[AnyKernel, ...], dict[str, str]]:
    """Return the kernels that can run layers, and why the others cannot, by name; a `UsageError` if none can.

    `problem` is what `why_not` of these kernels takes after the machine.
    """
    reasons = {kernel: kernel.why_not(machine, *problem) for kernel in candidates}
    able = tuple(kernel for kernel, reason in reasons.items() if reason is None)
    refused = {kernel.name: reason for kernel, reason in reasons.items() if reason is not None}
    if not able:
        texts = (f"the kernel {name!r} cannot run {layers}: {reason}" for name, reason in refused.items())
        raise UsageError("; ".join(texts))
    return able, refused
