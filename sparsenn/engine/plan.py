"""Plan: every decision about a run, made before it and printed as a few sentences."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.backends import (
    Backend,
    Features,
    StepInput,
    StepOutput,
    Variant,
    image_kernel,
    launch_dense,
    launch_images,
)
from sparsenn.engine.inputs import Inputs, as_csr
from sparsenn.engine.kernels import (
    OPERATION,
    Chosen,
    choices,
    choose_convolution,
    choose_kernels,
    fastest_dense,
    sparse_kernels,
)
from sparsenn.engine.merging import Merged, merge_equal_outputs, unmerged
from sparsenn.engine.wording import describe
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import CSR
from sparsenn.layers import Conv2d
from sparsenn.network import Network, kind_of

__all__ = ["Plan", "choices", "plan"]

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
    dense_kernels : the variants that may run dense layers; consecutive ones are run by the fastest that can.
    conv_kernels : the variants that may run convolutions; `convolutions` says which one runs which.
    precision : the least in which dense layers and convolutions may be multiplied.
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
    conv_kernels: tuple[Variant, ...] = ()
    precision: str = "float32"
    seconds: float = field(default=0.0, compare=False)

    @property
    def kernel(self) -> Variant:
        """The variant that runs the first layers."""
        return self.kernel_for(*self.segments[0], self.inputs)

    @property
    def rechosen_from(self) -> int | None:
        """The layer, counted from 0, from which on the kernel of sparse layers depends on the rows left, if any."""
        after = FIRST_LOOK if not self.is_mixed else min(FIRST_LOOK, self.segments[0][1])
        return after if len(self.kernels) > 1 and after < len(self.network) else None

    @property
    def is_mixed(self) -> bool:
        """Whether there are layers that are not sparse."""
        return any(kind_of(layer) != "sparse" for layer in self.network)

    @property
    def has_image_layers(self) -> bool:
        """Whether there are layers of images."""
        return any(kind_of(layer) == "image" for layer in self.network)

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
        """The (first, last) ranges of layers whose weights are prepared together, all of one kind.

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
        if self.kind(first) == "dense":
            return self.backend.prepare_dense(network.dense_layers(first, last))
        if self.kind(first) == "image":
            return self.backend.prepare_images(network.image_layers(first, last), network.shapes[first : last + 1])
        return self.backend.prepare(network.sparse_layers(first, last), self.merged.copies[first:last])

    def kind(self, layer: int) -> str:
        """Return whether a layer, counted from 0, is `sparse`, `dense`, or one of images: `image`."""
        return kind_of(self.network[layer])

    @cached_property
    def dense_segments(self) -> dict[Variant, list[tuple[int, int]]]:
        """The segments of dense layers by the kernel that runs them."""
        found: dict[Variant, list[tuple[int, int]]] = {}
        for first, last in self.segments:
            if self.kind(first) == "dense":
                found.setdefault(self.kernel_for(first, last, self.inputs), []).append((first, last))
        return found

    @cached_property
    def convolutions(self) -> dict[int, Chosen]:
        """For each convolution, counted from 0, the kernel that runs it, and why that."""
        layers = zip(self.network, self.network.shapes, strict=False)
        return {
            number: choose_convolution(self.conv_kernels, layer, shape, number)
            for number, (layer, shape) in enumerate(layers)
            if isinstance(layer, Conv2d)
        }

    @cached_property
    def precisions(self) -> tuple[str | None, ...]:
        """What each layer is multiplied in, as its kernel's `Variant.precision` says.

        That is None for layers of images other than convolutions.
        """
        kernels = {number: chosen.kernel for number, chosen in self.convolutions.items()}
        for kernel, segments in self.dense_segments.items():
            kernels |= {number: kernel for first, last in segments for number in range(first, last)}
        kernels |= {number: self.kernels[0] for number in range(len(self.network)) if self.kind(number) == "sparse"}
        return tuple(kernels[number].precision if number in kernels else None for number in range(len(self.network)))

    def kernel_for(self, layer: int, last: int, rows: int) -> Variant:
        """Return the kernel of a launch that begins at `layer`, of those up to `last`, with so many rows.

        Where there is a choice, the first launch is the first kernel's. Then it is known how fast rows go, and that
        kernel is taken whose estimate is least if no more of them leave. Dense layers are always run to `last`, layers
        of images one by one.
        """
        if self.kind(layer) == "image":
            if layer in self.convolutions:
                return self.convolutions[layer].kernel
            return image_kernel(self.backend, self.network.image_layers(layer, layer + 1)[0])
        if self.kind(layer) == "dense":
            return fastest_dense(self.dense_kernels, self.network.dense_layers(layer, last), rows, layer)
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
        if self.kind(layer) == "dense":
            return launch_dense(self.backend, kernel, self.network.dense_layers(layer, stop), step)
        if self.kind(layer) == "image":
            return launch_images(self.backend, kernel, step)
        output: StepOutput = kernel.launch(step)
        return output

    def groups_after(self, kernel: Variant, stop: int) -> bool:
        """Whether equal rows are looked for after a launch that ends before layer `stop`.

        What other layers than sparse ones give is looked at for the sparse layers that follow only: it is seldom equal.
        """
        if kernel.operation != OPERATION:
            return self.deduplication and stop < len(self.network) and self.kind(stop) == "sparse"
        return self.deduplication and not kernel.groups_rows

    def scatters(self, layer: int, features: Features) -> bool:
        """Whether multiplying only the non-zeros of `features` in this layer beats gathering from dense rows."""
        if not self.adaptive or self.kind(layer) != "sparse":
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
        convolving = (chosen.kernel for chosen in self.convolutions.values())
        return {
            "text": str(self),
            "device": self.device,
            "kernel": self.kernel.name,
            "kernels": [kernel.name for kernel in dict.fromkeys((*self.kernels, *convolving, *self.dense_segments))],
            "precision": self.precision,
            "precisions": list(self.precisions),
            "adaptive": self.adaptive,
            "batch_size": self.batch_size,
            "batches": len(self.batches),
            "memory_limit": self.memory_limit,
            "weight_memory": self.weight_memory,
            "segments": len(self.segments),
            "compaction": self.compaction,
            "deduplication": self.deduplication,
            "merging": self.merging,
            "computed_neurons": sum(self.merged.network.sizes[1:]),
            "computed_edges": self.merged.network.edges,
        }

    def __str__(self) -> str:
        return describe(self)


def plan(
    network: Network,
    inputs: Inputs,
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
    inputs : matrix of shape (rows, network.inputs): CSR, SciPy's sparse ones, or a NumPy array, which may hold images
        of shape (images, channels, height, width) where the network takes these. What is not CSR is converted
        first, to float32; no time of the result's counts that.
    device : `auto`, `cpu`, `cuda`, `cuda:i` or `reference`.
    kernel : `auto`, or a variant by name: it is obeyed or refused, never replaced. Where there are sparse layers it is
        one of `spmspm` and runs these; else it is one of `conv2d` where there are convolutions, and else one of `mlp`.
        Layers of other kinds are left to `auto`.
    precision : `float32`, `tf32` or `fp16`: the least in which dense layers and convolutions may be multiplied. `auto`
        takes a kernel of float32 for layers that none of the precision can run, and for convolutions that it should be
        faster with. Sparse layers beside them are multiplied in float32. Sums are float32 in any case; the reference
        computes in float64. `Plan.precisions` says what became of it layer by layer.
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
    InputError
        The inputs are none of these matrices, or not of real numbers.
    UsageError
        The network is no `Network`; the device, the kernel or the precision does not exist, or they do not go together
        or with the network; or a size is not positive.
    DeviceError
        The device is not there.
    ResourceError
        The memory limit does not hold a single row.
    """
    inputs = as_csr(network, inputs)
    start = time.perf_counter()
    sizes = (("batch size", batch_size), ("memory limit", memory_limit), ("weight memory", weight_memory))
    for name, size in sizes:
        if size is not None and size < 1:
            raise UsageError(f"a {name} of {size} is not positive")
    backend, kernels = choose_kernels(network, device, kernel, precision)
    merged = merge_equal_outputs(network) if merging else unmerged(network)
    sparse = sparse_kernels(kernels.sparse, merged.network, inputs)
    limit = memory_limit or max(SMALLEST_DEFAULT_LIMIT, backend.free_memory() // 2)
    made = Plan(
        network=network,
        merged=merged,
        inputs=inputs.shape[0],
        density=inputs.density,
        backend=backend,
        kernels=sparse,
        adaptive=kernel == "auto" and bool(sparse) and sparse[0].name == "panel",
        batch_size=batch_size or _largest_batch(merged.network, inputs.shape[0], limit),
        memory_limit=limit,
        weight_memory=weight_memory or backend.weight_memory(),
        compaction=compaction,
        deduplication=deduplication,
        merging=merging,
        droppable_from=_droppable_from(network),
        dense_kernels=kernels.dense,
        conv_kernels=kernels.convolutions,
        precision=precision,
    )
    _ = made.dense_segments, made.convolutions  # refuses layers that none of the kernels can run
    return replace(made, seconds=time.perf_counter() - start)


def _droppable_from(network: Network) -> int:
    """Return the first layer after which every layer keeps rows of zeros at zero."""
    reviving = [number for number, layer in enumerate(network) if not layer.keeps_zero_rows]
    return reviving[-1] if reviving else 0


def _largest_batch(network: Network, inputs: int, limit: int) -> int:
    """Return how many inputs fit: a row's floats before and after a launch, once more while parts are joined."""
    widest = max(network.sizes[1:]) if kind_of(network[0]) == "sparse" else network.widest  # sparse rows stay sparse
    per_row = 3 * 4 * widest + 64
    if per_row > limit:
        raise ResourceError(f"a memory limit of {limit:,} bytes does not hold one row, which takes {per_row:,}")
    return max(1, min(inputs, limit // per_row))
