"""Which kernels may run a network's layers: those that are named, or those that `auto` takes, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends import Backend, Variant, backend_for, variants
from sparsenn.backends import variant as variant_named
from sparsenn.engine.tuning_table import with_tuned_numbers
from sparsenn.errors import UsageError, unknown_name
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Conv2d, Linear
from sparsenn.network import Network, kind_of

__all__ = [
    "AUTO",
    "CONV_OPERATION",
    "DENSE_OPERATION",
    "OPERATION",
    "Chosen",
    "Kernels",
    "choices",
    "choose_convolution",
    "choose_kernels",
    "fastest_dense",
    "sparse_kernels",
    "those_that_can",
]

OPERATION, DENSE_OPERATION, CONV_OPERATION = "spmspm", "mlp", "conv2d"
"""What sparse layers are, dense ones, and convolutions."""

AUTO = {
    OPERATION: {"cpu": ("panel",), "cuda": ("resident", "chunks"), "reference": ("reference",)},
    DENSE_OPERATION: {
        "cpu": ("blas",),
        "cuda": ("tensor_float32", "fused_fma", "tensor_tf32", "tensor_half", "cublas"),
        "reference": ("reference",),
    },
    CONV_OPERATION: {
        "cpu": ("direct", "im2col_blas"),
        "cuda": (
            "tensor_float32",
            "implicit_float32",
            "warpgroup_float32",
            "register_tiled",
            "unrolled",
            "tensor_tf32",
            "implicit_tf32",
            "warpgroup_tf32",
            "tensor_half",
            "implicit_half",
            "channels_last_half",
            "warpgroup_half",
            "warpgroup_rows_half",
        ),
        "reference": ("reference",),
    },
}
"""The kernels that `auto` takes by operation and device, of those that can run the problem: the first to begin with;
of dense layers' and convolutions', those of the precision that is asked for, and of these the one with the least
estimate of time, where they give one. Where none of these can, kernels of float32 do, which keeps any precision."""

PRECISIONS = ("float32", "tf32", "fp16")
"""What dense layers and convolutions may be multiplied in; sums are float32. Sparse layers know the first only."""

_LAYERS = {OPERATION: "sparse layers", DENSE_OPERATION: "dense layers", CONV_OPERATION: "convolutions"}


@dataclass(frozen=True)
class Kernels:
    """The variants that may run a network's layers on a backend, by kind of layer.

    Parameters
    ----------
    sparse : for sparse layers; several where `auto` chooses from them launch by launch.
    dense : for dense layers; `fastest_dense` says which runs consecutive ones.
    convolutions : for convolutions; `choose_convolution` says which runs one.
    """

    sparse: tuple[Variant, ...] = ()
    dense: tuple[Variant, ...] = ()
    convolutions: tuple[Variant, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The kernel of one convolution, and why it is that one, in words; none where there was nothing to choose from."""

    kernel: Variant
    reason: str = ""


def choose_kernels(network: Network, device: str, kernel: str, precision: str) -> tuple[Backend, Kernels]:
    """Return the backend, and the kernels that may run a network on it, with the numbers that were tuned for them.

    Parameters
    ----------
    device, kernel, precision : as `plan` takes them.

    Raises
    ------
    UsageError
        The device, the kernel or the precision does not exist, or they do not go together or with the network.
    DeviceError
        The device is not there.
    """
    if precision != "float32":
        _check_precision(precision, network)
    there = _operations(network)
    if not there:
        if kernel != "auto":
            raise UsageError(f"no layer of this network has kernels to choose from; leave out kernel {kernel!r}")
        return backend_for(device), Kernels()
    backend, named = choices(device, kernel, there[0], PRECISIONS[0] if there[0] == OPERATION else precision)
    found = {operation: tuple(_named(operation, backend.device, "auto", precision)) for operation in there[1:]}
    found[there[0]] = tuple(named)
    ordered = (found.get(operation, ()) for operation in (OPERATION, DENSE_OPERATION, CONV_OPERATION))
    return backend, Kernels(*(with_tuned_numbers(kernels, backend) for kernels in ordered))


def _operations(network: Network) -> list[str]:
    """Return the operations that a network has layers of; a kernel's name is one of the first."""
    kinds = set(map(kind_of, network))
    convolves = any(isinstance(layer, Conv2d) for layer in network)
    present = {OPERATION: "sparse" in kinds, CONV_OPERATION: convolves, DENSE_OPERATION: "dense" in kinds}
    return [operation for operation, there in present.items() if there]


def choices(
    device: str, kernel: str, operation: str = OPERATION, precision: str = "float32"
) -> tuple[Backend, list[Variant]]:
    """Return the backend, and the kernels that may run on it, for a device and a kernel as given to `plan`.

    A kernel that only the CPU has takes `auto` to the CPU.

    Parameters
    ----------
    device, kernel, precision : as `plan` takes them.
    operation : `spmspm`, `mlp` or `conv2d`.

    Raises
    ------
    UsageError
        The device or the kernel does not exist, or it does not have the precision.
    DeviceError
        The device is not there.
    """
    only_cpu = device == "auto" and kernel in {entry.name for entry in variants(operation, "cpu")}
    backend = backend_for("cpu" if only_cpu else device)
    return backend, _named(operation, backend.device, kernel, precision)


def _named(operation: str, device: str, kernel: str, precision: str) -> list[Variant]:
    """Return the variants of a device that `kernel` names, `auto` or one, in the order in which they are preferred."""
    if kernel != "auto":
        chosen = variant_named(operation, kernel, device)
        if chosen.precision != precision:
            raise UsageError(
                f"the kernel {kernel!r} multiplies in {chosen.precision}, not in {precision}; ask for "
                f"precision {chosen.precision}, or for another kernel"
            )
        return [chosen]
    order = AUTO[operation][device]
    registered = {entry.name: entry for entry in variants(operation, device)}
    there = [registered[name] for name in order if name in registered]
    found = [entry for entry in there if entry.precision == precision]
    if not found:
        known = dict.fromkeys(entry.precision for entry in there)
        raise UsageError(
            f"{_LAYERS[operation]} are not multiplied in {precision} on {device}; known: {', '.join(known) or 'none'}"
        )
    # after those of the precision: float32 keeps any
    return found + [entry for entry in there if entry.precision == PRECISIONS[0] != precision]


def _check_precision(precision: str, network: Network) -> None:
    """Refuse a precision that does not exist, or that would change nothing: without dense layers and convolutions."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    there = _operations(network)
    if there == [OPERATION]:
        first = list(map(kind_of, network)).index("sparse") + 1
        raise UsageError(
            f"layer {first} is sparse, and sparse layers are multiplied in float32 only; leave out precision "
            f"{precision}, which networks that have dense layers or convolutions take"
        )
    if not there:
        raise UsageError(f"no layer of this network multiplies anything; leave out precision {precision}")


def sparse_kernels(candidates: Sequence[Variant], network: Network, inputs: CSR) -> tuple[Variant, ...]:
    """Return the variants that can run all sparse layers of a network.

    Raises
    ------
    UsageError
        None can; the message says why.
    """
    able = tuple(candidates)
    for first, last in network.runs():
        if kind_of(network[first]) == "sparse":
            layers = network.sparse_layers(first, last)
            able = those_that_can(able, Network(layers), inputs if first == 0 else _any_rows(layers[0].inputs), first)
    return able


def _any_rows(width: int) -> CSR:
    """Return inputs that say no more than what other layers give does: rows of different values."""
    return from_dense(np.repeat([[1], [2]], width, axis=1))


def those_that_can(candidates: Sequence[Variant], problem: Any, inputs: CSR | None, first: int) -> tuple[Variant, ...]:
    """Return the variants that can run consecutive layers, the first of them number `first`, counted from 0.

    Parameters
    ----------
    problem, inputs : what `Variant.why_not` takes.

    Raises
    ------
    UsageError
        None can; the message says why.
    """
    what = f"layers {first + 1} to {first + len(problem)}" if first else "this"
    return _able([(candidate, candidate.why_not(problem, inputs)) for candidate in candidates], what)


def fastest_dense(candidates: Sequence[Variant], layers: Sequence[Linear], rows: int, first: int = 0) -> Variant:
    """Return the variant of `mlp` that runs consecutive dense layers, the first of them number `first`.

    Of those that can, and are of the first one's precision, it is the one whose estimate for so many rows is least;
    without estimates, the first.

    Raises
    ------
    UsageError
        None of them can.
    """
    able = those_that_can(candidates, layers, None, first)
    alike = [kernel for kernel in able if kernel.precision == able[0].precision]
    return min(alike, key=lambda kernel: kernel.seconds(layers, rows) if kernel.seconds else math.inf)


def choose_convolution(candidates: Sequence[Variant], layer: Conv2d, image: tuple[int, ...], number: int) -> Chosen:
    """Return the variant that runs a convolution: the first that can, or the fastest by their own estimates.

    Parameters
    ----------
    image : channels, height and width of what the layer is given.
    number : the layer's, counted from 0.

    Raises
    ------
    UsageError
        None can; the message says why.
    """
    reasons = [(candidate, candidate.why_not(layer, image)) for candidate in candidates]
    able = _able(reasons, f"layer {number + 1}")
    refused = [f"{candidate.name} cannot, because {reason}" for candidate, reason in reasons if reason is not None]
    estimates = [candidate.seconds(layer, image) for candidate in able if candidate.seconds is not None]
    if 1 < len(able) == len(estimates):
        chosen = able[int(np.argmin(estimates))]
        others = " and ".join(candidate.name for candidate in able if candidate is not chosen)
        return Chosen(chosen, "; ".join([f"estimated to take less time than {others}", *refused]))
    preferred = candidates[: candidates.index(able[0])]
    return Chosen(able[0], "; ".join(refused[: len(preferred)]))


def _able(reasons: Sequence[tuple[Variant, str | None]], what: str) -> tuple[Variant, ...]:
    """Return the variants that nothing speaks against, or say what speaks against each."""
    able = tuple(candidate for candidate, reason in reasons if reason is None)
    if not able:
        texts = (f"the kernel {candidate.name!r} cannot run {what}: {reason}" for candidate, reason in reasons)
        raise UsageError("; ".join(texts))
    return able
