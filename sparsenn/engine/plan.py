"""Plan: every decision about a run, made before it and printed as a few sentences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.backends import Backend, Features, StepInput, StepOutput, Variant, backend_for, launch_dense, variants
from sparsenn.backends import variant as variant_named
from sparsenn.engine.merging import Merged, merge_equal_outputs, unmerged
from sparsenn.engine.wording import describe
from sparsenn.errors import ResourceError, ShapeError, UsageError, unknown_name
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Linear
from sparsenn.network import Network

__all__ = ["Plan", "choices", "plan", "those_that_can"]

OPERATION, DENSE_OPERATION = "spmspm", "mlp"
"""What sparse layers are, and dense ones."""

AUTO = {
    OPERATION: {"cpu": ("panel",), "cuda": ("resident", "chunks"), "reference": ("reference",)},
    DENSE_OPERATION: {
        "cpu": ("blas",),
        "cuda": ("tensor_shared", "tensor_shared_tf32", "tensor_shared_half", "cublas"),
        "reference": ("reference",),
    },
}
"""The kernels that `auto` takes by operation and device, of those that can run the problem: the first to begin with;
of dense layers', those of the precision that is asked for."""

PRECISIONS = ("float32", "tf32", "fp16")
"""What dense layers may be multiplied in; sums are float32."""

FIRST_LOOK = 24
"""Layers after which it is first looked how many rows are left, where the kernel for the rest depends on that."""

DEPTH = 6
"""Layers between two looks for dead and equal rows. In the challenge's networks a tenth to a half of the rows go in
each of the first layers; looking after every one costs more than it saves."""

SCATTERED_EDGE = 1.0
GATHERED_EDGE = 1 / 15
LOADED_VALUE = 1.0
CLEARED_VALUE = 1 / 15
"""Relative costs, in scattered multiply-adds, of one multiply-add either way, of bringing one non-zero into a panel
and of clearing one of its elements. The first two are about as `bench/bench_spmspm.py` shows with AVX-512;
the last two are estimates."""

SMALLEST_DEFAULT_LIMIT = 256 << 20


@dataclass(frozen=True, eq=False)
class Plan:
    """How a network is run on a set of inputs. Made by `plan`; `str` says it in words.

    Parameters
    ----------
    network : the network as given.
    merged : the network that is computed: without repeated outputs, if merging is on.
    inputs, density : number of input rows, and the fraction of their elements that is non-zero.
    backend : what computes.
    kernels : the variants that may run sparse layers: one, or several that `auto` chooses from, launch by launch.
    adaptive : whether a launch may choose to multiply only non-zeros in its first layer (`auto`).
    batch_size : inputs taken through the network together.
    memory_limit : bytes the batch size was made for.
    weight_memory : bytes that prepared weights may take; where they take more, they are prepared in parts.
    compaction, deduplication, merging : drop dead rows; compute equal rows once; compute equal outputs once.
    droppable_from : layers (counted from 0) after which rows of zeros can be dropped, because all later layers
        keep them at zero; the number of layers minus 1 is always among them.
    dense_kernels : the variants that may run dense layers; consecutive ones are run by the first that can.
    precision : in which dense layers are multiplied.
    seconds : time the planning took.
    """

    network: Network
    merged: Merged
    inputs: int
    density: float
    backend: Backend
    kernels: tuple[Variant, ...]
    adaptive: bool
    batch_size: int
    memory_limit: int
    weight_memory: int
    compaction: bool
    deduplication: bool
    merging: bool
    droppable_from: int
    dense_kernels: tuple[Variant, ...] = ()
    precision: str = "float32"
    seconds: float = field(default=0.0, compare=False)

    @property
    def kernel(self) -> Variant:
        """The variant that runs the first layers."""
        return self.kernel_for(*self.segments[0], self.inputs)

    @property
    def rechosen_from(self) -> int | None:
        """The layer, counted from 0, from which on the kernel of sparse layers depends on the rows left, if any."""
        after = FIRST_LOOK if not self.dense_kernels else min(FIRST_LOOK, self.segments[0][1])
        return after if len(self.kernels) > 1 and after < len(self.network) else None

    @property
    def device(self) -> str:
        """The device, in words."""
        return self.backend.description

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """The (start, stop) ranges of inputs that run together."""
        starts = range(0, self.inputs, self.batch_size)
        return tuple((start, min(start + self.batch_size, self.inputs)) for start in starts)

    @cached_property
    def streams(self) -> bool:
        """Whether weights take more memory than they may: each segment is then prepared when it is needed."""
        return sum(map(self.backend.prepared_bytes, self.merged.network)) > self.weight_memory

    @cached_property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """The (first, last) ranges of layers whose weights are prepared together: all sparse, or all dense.

        Where memory holds all weights, these are the longest such ranges. Otherwise each takes what weights may take,
        or half of it where the next one is prepared meanwhile; a layer that takes more than that by itself is a range
        of its own.
        """
        runs = self.merged.network.runs()
        if not self.streams:
            return runs
        sizes = [self.backend.prepared_bytes(layer) for layer in self.merged.network]
        room = self.weight_memory // 2 if self.backend.prepares_ahead else self.weight_memory
        segments = []
        for first, last in runs:
            held = 0
            for number in range(first, last):
                if number > first and held + sizes[number] > room:
                    segments.append((first, number))
                    first, held = number, 0
                held += sizes[number]
            segments.append((first, last))
        return tuple(segments)

    def prepare(self, segment: int) -> Any:
        """Return the stack of a segment, on the device."""
        first, last = self.segments[segment]
        network = self.merged.network
        if self.is_dense(first):
            return self.backend.prepare_dense(network.dense_layers(first, last))
        return self.backend.prepare(network.sparse_layers(first, last), self.merged.copies[first:last])

    def is_dense(self, layer: int) -> bool:
        """Whether a layer, counted from 0, is dense."""
        return isinstance(self.network[layer], Linear)

    @cached_property
    def dense_segments(self) -> dict[Variant, list[tuple[int, int]]]:
        """The segments of dense layers by the kernel that runs them."""
        found: dict[Variant, list[tuple[int, int]]] = {}
        for first, last in self.segments:
            if self.is_dense(first):
                found.setdefault(self.kernel_for(first, last, self.inputs), []).append((first, last))
        return found

    def kernel_for(self, layer: int, last: int, rows: int) -> Variant:
        """Return the kernel of a launch that begins at `layer`, of those up to `last`, with so many rows.

        Where there is a choice, the first launch is the first kernel's. Then it is known how fast rows go, and that
        kernel is taken whose estimate is least if no more of them leave. Dense layers are always run to `last`.
        """
        if self.is_dense(layer):
            return those_that_can(self.dense_kernels, self.network.dense_layers(layer, last), None, layer)[0]
        if layer == 0 or len(self.kernels) == 1:
            return self.kernels[0]
        rest = self.merged.network.sparse_layers(layer, last)
        return min(self.kernels, key=lambda kernel: kernel.seconds(rest, rows) if kernel.seconds else 0.0)

    def depth(self, kernel: Variant, layer: int, previous: int, removed: float) -> int:
        """Return how many sparse layers a launch runs, given the last one's depth and the share of rows it removed.

        While rows go, it looks for dead and equal ones every few layers; once none do, less and less often.
        """
        if not kernel.fuses:
            return 1
        if kernel.groups_rows:
            return FIRST_LOOK if layer == 0 and len(self.kernels) > 1 else len(self.network)
        if not (self.compaction or self.deduplication):
            return len(self.network)
        return DEPTH if removed > 1 / 8 else 2 * previous

    def launch(self, kernel: Variant, step: StepInput, layer: int, stop: int) -> StepOutput:
        """Run layers `layer` to `stop`, which are those of the step, with a kernel of their kind."""
        if kernel.operation == DENSE_OPERATION:
            return launch_dense(self.backend, kernel, self.network.dense_layers(layer, stop), step)
        output: StepOutput = kernel.launch(step)
        return output

    def groups_after(self, kernel: Variant, stop: int) -> bool:
        """Whether equal rows are looked for after a launch that ends before layer `stop`.

        What dense layers give is looked at for the sparse layers that follow only: it is seldom equal.
        """
        if kernel.operation == DENSE_OPERATION:
            return self.deduplication and stop < len(self.network) and not self.is_dense(stop)
        return self.deduplication and not kernel.groups_rows

    def scatters(self, layer: int, features: Features) -> bool:
        """Whether multiplying only the non-zeros of `features` in this layer beats gathering from dense rows."""
        if not self.adaptive or self.is_dense(layer):
            return False
        weights = self.merged.network.sparse_layers(layer, layer + 1)[0].weights
        rows, width = features.shape
        nonzeros = features.nnz if isinstance(features, CSR) else int(np.count_nonzero(features))
        loads = nonzeros if isinstance(features, CSR) else rows * width
        degree = weights.nnz / max(1, width)
        gather = rows * weights.nnz * GATHERED_EDGE + loads * LOADED_VALUE + rows * width * CLEARED_VALUE
        scatter = nonzeros * degree * SCATTERED_EDGE + rows * weights.shape[1] * CLEARED_VALUE
        return bool(scatter < gather)

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions as plain values for JSON."""
        return {
            "text": str(self),
            "device": self.device,
            "kernel": self.kernel.name,
            "kernels": [kernel.name for kernel in (*self.kernels, *self.dense_segments)],
            "precision": self.precision,
            "adaptive": self.adaptive,
            "batch_size": self.batch_size,
            "batches": len(self.batches),
            "memory_limit": self.memory_limit,
            "weight_memory": self.weight_memory,
            "segments": len(self.segments),
            "compaction": self.compaction,
            "deduplication": self.deduplication,
            "merging": self.merging,
            "computed_neurons": sum(layer.outputs for layer in self.merged.network),
            "computed_edges": self.merged.network.edges,
        }

    def __str__(self) -> str:
        return describe(self)


def plan(
    network: Network,
    inputs: CSR,
    *,
    device: str = "auto",
    kernel: str = "auto",
    precision: str = "float32",
    batch_size: int | None = None,
    memory_limit: int | None = None,
    weight_memory: int | None = None,
    compaction: bool = True,
    deduplication: bool = True,
    merging: bool = True,
) -> Plan:
    """Decide how `network` is run on `inputs`.

    Parameters
    ----------
    network : the layers.
    inputs : CSR of shape (rows, network.inputs), float32.
    device : `auto`, `cpu`, `cuda`, `cuda:i` or `reference`.
    kernel : `auto`, or a variant by name: it is obeyed or refused, never replaced. Where there are sparse layers it is
        one of `spmspm` and runs these, and dense ones are left to `auto`; else it is one of `mlp`.
    precision : `float32`, `tf32` or `fp16`, in which dense layers are multiplied, and sparse ones only in the first;
        sums are float32 in any case. The reference computes in float64.
    batch_size : inputs taken through the network together; by default as many as the memory limit allows.
    memory_limit : bytes for the rows in flight; by default half of the memory that is free.
    weight_memory : bytes that prepared weights may take on the device; by default half of what is free on a GPU,
        256 MiB on the host. Weights that take more are prepared in parts, again for each batch of rows.
    compaction : drop rows that have become all zero, where later layers keep them so.
    deduplication : compute rows that are equal bit for bit once.
    merging : compute outputs of a layer whose weights and bias are equal once.

    Raises
    ------
    ShapeError
        The inputs are not as wide as the first layer.
    UsageError
        The device, the kernel or the precision does not exist, or they do not go together or with the network; or a
        size is not positive.
    DeviceError
        The device is not there.
    ResourceError
        The memory limit does not hold a single row.
    """
    start = time.perf_counter()
    if inputs.shape[1] != network.inputs:
        raise ShapeError(f"the inputs have {inputs.shape[1]} columns; layer 1 takes {network.inputs}")
    sizes = (("batch size", batch_size), ("memory limit", memory_limit), ("weight memory", weight_memory))
    for name, size in sizes:
        if size is not None and size < 1:
            raise UsageError(f"a {name} of {size} is not positive")
    kinds = {isinstance(layer, Linear) for layer in network}
    if precision != "float32":
        _check_precision(precision, network)
    operation = OPERATION if False in kinds else DENSE_OPERATION
    backend, candidates = choices(device, kernel, operation, precision)
    merged = merge_equal_outputs(network) if merging else unmerged(network)
    kernels: tuple[Variant, ...] = ()
    dense_kernels = candidates
    if operation == OPERATION:
        kernels = _sparse_kernels(candidates, merged.network, inputs)
        dense_kernels = _named(DENSE_OPERATION, backend.device, "auto", precision) if True in kinds else []
    limit = memory_limit or max(SMALLEST_DEFAULT_LIMIT, backend.free_memory() // 2)
    made = Plan(
        network=network,
        merged=merged,
        inputs=inputs.shape[0],
        density=inputs.density,
        backend=backend,
        kernels=kernels,
        adaptive=kernel == "auto" and bool(kernels) and kernels[0].name == "panel",
        batch_size=batch_size or _largest_batch(merged.network, inputs.shape[0], limit),
        memory_limit=limit,
        weight_memory=weight_memory or backend.weight_memory(),
        compaction=compaction,
        deduplication=deduplication,
        merging=merging,
        droppable_from=_droppable_from(network),
        dense_kernels=tuple(dense_kernels),
        precision=precision,
    )
    _ = made.dense_segments  # refuses dense layers that none of the kernels can run
    return replace(made, seconds=time.perf_counter() - start)


def choices(
    device: str, kernel: str, operation: str = OPERATION, precision: str = "float32"
) -> tuple[Backend, list[Variant]]:
    """Return the backend, and the kernels that may run on it, for a device and a kernel as given to `plan`.

    A kernel that only the CPU has takes `auto` to the CPU.

    Parameters
    ----------
    device, kernel, precision : as `plan` takes them.
    operation : `mlp` for networks of dense layers only, else `spmspm`.

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
    found = [registered[name] for name in order if name in registered and registered[name].precision == precision]
    if not found:
        known = dict.fromkeys(registered[name].precision for name in order if name in registered)
        raise UsageError(f"dense layers are not multiplied in {precision} on {device}; known: {', '.join(known)}")
    return found


def _check_precision(precision: str, network: Network) -> None:
    """Refuse a precision that does not exist, or that sparse layers do not have."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    number = next((number for number, layer in enumerate(network, start=1) if not isinstance(layer, Linear)), None)
    if number is not None:
        raise UsageError(
            f"layer {number} is sparse, and sparse layers are multiplied in float32 only; leave out precision "
            f"{precision}, which networks of dense layers take"
        )


def _sparse_kernels(candidates: Sequence[Variant], network: Network, inputs: CSR) -> tuple[Variant, ...]:
    """Return the variants that can run all sparse layers of a network, or say why none can."""
    able = tuple(candidates)
    for first, last in network.runs():
        if not isinstance(network[first], Linear):
            layers = network.sparse_layers(first, last)
            able = those_that_can(able, Network(layers), inputs if first == 0 else _any_rows(layers[0].inputs), first)
    return able


def _any_rows(width: int) -> CSR:
    """Return inputs that say no more than what dense layers give does: rows of different values."""
    return from_dense(np.repeat([[1], [2]], width, axis=1))


def those_that_can(candidates: Sequence[Variant], problem: Any, inputs: CSR | None, first: int) -> tuple[Variant, ...]:
    """Return the variants that can run consecutive layers, the first of them number `first`, or say why none can.

    problem, inputs : what `Variant.why_not` takes.
    """
    reasons = [(candidate, candidate.why_not(problem, inputs)) for candidate in candidates]
    able = tuple(candidate for candidate, reason in reasons if reason is None)
    if not able:
        what = f"layers {first + 1} to {first + len(problem)}" if first else "this"
        texts = (f"the kernel {candidate.name!r} cannot run {what}: {reason}" for candidate, reason in reasons)
        raise UsageError("; ".join(texts))
    return able


def _droppable_from(network: Network) -> int:
    """Return the first layer after which every layer keeps rows of zeros at zero."""
    reviving = [number for number, layer in enumerate(network) if not layer.keeps_zero_rows]
    return reviving[-1] if reviving else 0


def _largest_batch(network: Network, inputs: int, limit: int) -> int:
    """Return how many inputs fit: a row's floats before and after a launch, once more while parts are joined."""
    outputs = max(layer.outputs for layer in network)
    per_row = 3 * 4 * max(outputs, network.inputs if isinstance(network[0], Linear) else 0) + 64
    if per_row > limit:
        raise ResourceError(f"a memory limit of {limit:,} bytes does not hold one row, which takes {per_row:,}")
    return max(1, min(inputs, limit // per_row))
