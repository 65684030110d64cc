"""Plan: every decision about a run, made before it and printed as a few sentences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.backends import Backend, Features, Variant, backend_for, variant, variants
from sparsenn.engine.merging import Merged, merge_equal_outputs, unmerged
from sparsenn.errors import ResourceError, ShapeError, UsageError
from sparsenn.formats import CSR
from sparsenn.network import Network

__all__ = ["Plan", "choices", "plan"]

OPERATION = "spmspm"

AUTO = {"cpu": ("panel",), "cuda": ("resident", "chunks"), "reference": ("reference",)}
"""The kernels that `auto` takes by device, of those that can run the problem: the first to begin with."""

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
    kernels : the variants that may run the layers: one, or several that `auto` chooses from, launch by launch.
    adaptive : whether a launch may choose to multiply only non-zeros in its first layer (`auto`).
    batch_size : inputs taken through the network together.
    memory_limit : bytes the batch size was made for.
    weight_memory : bytes that prepared weights may take; where they take more, they are prepared in parts.
    compaction, deduplication, merging : drop dead rows; compute equal rows once; compute equal outputs once.
    droppable_from : layers (counted from 0) after which rows of zeros can be dropped, because all later layers
        keep them at zero; the number of layers minus 1 is always among them.
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
    seconds: float = field(default=0.0, compare=False)

    @property
    def kernel(self) -> Variant:
        """The variant that runs the first layers."""
        return self.kernels[0]

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
    def segments(self) -> tuple[tuple[int, int], ...]:
        """The (first, last) ranges of layers whose weights are prepared together: one if memory holds them all.

        Otherwise each takes what weights may take, or half of it where the next one is prepared meanwhile; a layer
        that takes more than that by itself is a range of its own.
        """
        sizes = [self.backend.prepared_bytes(layer) for layer in self.merged.network]
        if sum(sizes) <= self.weight_memory:
            return ((0, len(sizes)),)
        room = self.weight_memory // 2 if self.backend.prepares_ahead else self.weight_memory
        segments, first, held = [], 0, 0
        for number, size in enumerate(sizes):
            if number > first and held + size > room:
                segments.append((first, number))
                first, held = number, 0
            held += size
        return (*segments, (first, len(sizes)))

    def kernel_for(self, layer: int, last: int, rows: int) -> Variant:
        """Return the kernel of a launch that begins at `layer`, of those up to `last`, with so many rows.

        Where there is a choice, the first launch is the first kernel's. Then it is known how fast rows go, and that
        kernel is taken whose estimate is least if no more of them leave.
        """
        if layer == 0 or len(self.kernels) == 1:
            return self.kernel
        rest = self.merged.network.layers[layer:last]
        return min(self.kernels, key=lambda kernel: kernel.seconds(rest, rows) if kernel.seconds else 0.0)

    def depth(self, kernel: Variant, layer: int, previous: int, removed: float) -> int:
        """Return how many layers a launch runs, given the last one's depth and the share of rows it removed.

        While rows go, it looks for dead and equal ones every few layers; once none do, less and less often.
        """
        if not kernel.fuses:
            return 1
        if kernel.groups_rows:
            return FIRST_LOOK if layer == 0 and len(self.kernels) > 1 else len(self.network)
        if not (self.compaction or self.deduplication):
            return len(self.network)
        return DEPTH if removed > 1 / 8 else 2 * previous

    def scatters(self, layer: int, features: Features) -> bool:
        """Whether multiplying only the non-zeros of `features` in this layer beats gathering from dense rows."""
        if not self.adaptive:
            return False
        weights = self.merged.network[layer].weights
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
            "kernels": [kernel.name for kernel in self.kernels],
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
        parts = (self._problem(), self._kernels(), self._merging(), self._weights(), self._rows())
        return " ".join(part for part in parts if part)

    def _problem(self) -> str:
        count = len(self.batches)
        batches = "in one batch" if count == 1 else f"in {count} batches of up to {self.batch_size:,}"
        layers = f"{len(self.network)} layer{'s' if len(self.network) > 1 else ''}"
        return (
            f"{self.inputs:,} inputs ({100 * self.density:.1f} % dense) through {layers} with "
            f"{self.network.edges:,} edges on {self.device}, {batches}."
        )

    def _kernels(self) -> str:
        if self.adaptive:
            return (
                f"Kernel {self.kernel.name}: {self.kernel.summary}; each launch's first layer multiplies only "
                "non-zeros (scatter) where its rows are sparse enough."
            )
        first = f"Kernel {self.kernel.name}: {self.kernel.summary}"
        if len(self.kernels) == 1 or len(self.network) <= FIRST_LOOK:
            return f"{first}."
        others = ", ".join(f"{kernel.name} ({kernel.summary})" for kernel in self.kernels[1:])
        return f"{first}; from layer {FIRST_LOOK + 1} on that or {others}, whichever is faster for the rows left."

    def _merging(self) -> str:
        if not self.merging:
            return "Equal outputs are not merged."
        neurons = sum(layer.outputs for layer in self.network)
        computed = sum(layer.outputs for layer in self.merged.network)
        if computed == neurons:
            return "No two outputs of a layer are equal: nothing to merge."
        return (
            f"Equal outputs merged: {computed:,} of {neurons:,} neurons and {self.merged.network.edges:,} of "
            f"{self.network.edges:,} edges are left to compute."
        )

    def _weights(self) -> str:
        if len(self.segments) == 1:
            return ""
        how = "the next while one is computed" if self.backend.prepares_ahead else "one after the other"
        return f"Weights are prepared in {len(self.segments):,} parts, {how}."

    def _rows(self) -> str:
        if not self.compaction:
            dead = "Rows of zeros are kept"
        elif self.droppable_from == 0:
            dead = "Rows of zeros are dropped from the first layer on"
        else:
            dead = f"Rows of zeros are dropped only after layer {self.droppable_from + 1}, the last that revives them"
        return f"{dead}; equal rows are {'computed once' if self.deduplication else 'not looked for'}."


def plan(
    network: Network,
    inputs: CSR,
    *,
    device: str = "auto",
    kernel: str = "auto",
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
    kernel : `auto`, or a variant of `spmspm` by name: it is obeyed or refused, never replaced.
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
        The device or the kernel does not exist, or a size is not positive.
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
    backend, candidates = choices(device, kernel)
    merged = merge_equal_outputs(network) if merging else unmerged(network)
    kernels = _those_that_can(candidates, merged.network, inputs)
    limit = memory_limit or max(SMALLEST_DEFAULT_LIMIT, backend.free_memory() // 2)
    return Plan(
        network=network,
        merged=merged,
        inputs=inputs.shape[0],
        density=inputs.density,
        backend=backend,
        kernels=kernels,
        adaptive=kernel == "auto" and kernels[0].name == "panel",
        batch_size=batch_size or _largest_batch(merged.network, inputs.shape[0], limit),
        memory_limit=limit,
        weight_memory=weight_memory or backend.weight_memory(),
        compaction=compaction,
        deduplication=deduplication,
        merging=merging,
        droppable_from=_droppable_from(network),
        seconds=time.perf_counter() - start,
    )


def choices(device: str, kernel: str) -> tuple[Backend, list[Variant]]:
    """Return the backend, and the kernels that may run on it, for a device and a kernel as given to `plan`.

    A kernel that only the CPU has takes `auto` to the CPU.

    Raises
    ------
    UsageError
        The device or the kernel does not exist.
    DeviceError
        The device is not there.
    """
    only_cpu = device == "auto" and kernel in {entry.name for entry in variants(OPERATION, "cpu")}
    backend = backend_for("cpu" if only_cpu else device)
    names = AUTO[backend.device] if kernel == "auto" else (kernel,)
    return backend, [variant(OPERATION, name, backend.device) for name in names]


def _those_that_can(candidates: Sequence[Variant], network: Network, inputs: CSR) -> tuple[Variant, ...]:
    """Return the variants that can run the problem, or say why none can."""
    reasons = [(candidate, candidate.why_not(network, inputs)) for candidate in candidates]
    able = tuple(candidate for candidate, reason in reasons if reason is None)
    if not able:
        texts = (f"the kernel {candidate.name!r} cannot run this: {reason}" for candidate, reason in reasons)
        raise UsageError("; ".join(texts))
    return able


def _droppable_from(network: Network) -> int:
    """Return the first layer after which every layer keeps rows of zeros at zero."""
    reviving = [number for number, layer in enumerate(network) if not layer.keeps_zero_rows]
    return reviving[-1] if reviving else 0


def _largest_batch(network: Network, inputs: int, limit: int) -> int:
    """Return how many inputs fit: a row's floats before and after a launch, once more while parts are joined."""
    per_row = 3 * 4 * max(layer.outputs for layer in network) + 64
    if per_row > limit:
        raise ResourceError(f"a memory limit of {limit:,} bytes does not hold one row, which takes {per_row:,}")
    return max(1, min(inputs, limit // per_row))
