"""Plan: every decision about a run, made before it and printed as a few sentences."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparsenn.backends import Backend, ConvolutionKernel, DenseKernel, Kernel, Machine, SparseKernel, machine_named
from sparsenn.backends.steps import IMAGE_OPERATION
from sparsenn.engine.inputs import Inputs, as_csr
from sparsenn.engine.kernels import CONV_OPERATION, DENSE_OPERATION, Chosen, Kernels, choose_kernels, sparse_kernels
from sparsenn.engine.merging import Merged, merge_equal_outputs, unmerged
from sparsenn.engine.sections import FIRST_LOOK, Section, section_of
from sparsenn.engine.wording import describe
from sparsenn.errors import ResourceError, UsageError
from sparsenn.layers import ImageLayer, SparseLinear
from sparsenn.network import Network

__all__ = ["Plan", "plan"]

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
    kernels : those that may run sparse layers: one, or several that `auto` chooses from, launch by launch.
    adaptive : whether a launch may choose to multiply only non-zeros in its first layer (`auto`).
    batch_size : inputs taken through the network together.
    memory_limit : bytes the batch size was made for.
    weight_memory : bytes that prepared weights may take; where they take more, they are prepared in parts.
    compaction, deduplication, merging : drop dead rows; compute equal rows once; compute equal outputs once.
    droppable_from : layers (counted from 0) after which rows of zeros can be dropped, because all later layers
        keep them at zero; the number of layers minus 1 is always among them.
    dense_kernels : those that may run dense layers; consecutive ones are run by the fastest that can.
    conv_kernels : those that may run convolutions; `convolutions` says which one runs which.
    precision : the least in which dense layers and convolutions may be multiplied.
    seconds : time the planning took.
    """

    network: Network
    merged: Merged
    inputs: int
    density: float
    backend: Backend
    kernels: tuple[SparseKernel, ...]
    adaptive: bool
    batch_size: int
    memory_limit: int
    weight_memory: int
    compaction: bool
    deduplication: bool
    merging: bool
    droppable_from: int
    dense_kernels: tuple[DenseKernel, ...] = ()
    conv_kernels: tuple[ConvolutionKernel, ...] = ()
    precision: str = "float32"
    seconds: float = field(default=0.0, compare=False)

    @property
    def kernel(self) -> Kernel:
        """The kernel that runs the first layers."""
        return self.sections[0].kernel_for(0, self.inputs)

    @property
    def rechosen_from(self) -> int | None:
        """The layer, counted from 0, from which on the kernel of sparse layers depends on the rows left, if any."""
        after = FIRST_LOOK if not self.is_mixed else min(FIRST_LOOK, self.segments[0][1])
        return after if len(self.kernels) > 1 and after < len(self.network) else None

    @property
    def is_mixed(self) -> bool:
        """Whether there are layers that are not sparse."""
        return any(layer.family is not SparseLinear for layer in self.network)

    @property
    def has_image_layers(self) -> bool:
        """Whether there are layers of images."""
        return any(layer.family is ImageLayer for layer in self.network)

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
        """The (first, last) ranges of layers whose weights are prepared together, all of one family.

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

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """What is prepared together, segment by segment."""
        kernels = Kernels(self.kernels, self.dense_kernels, self.conv_kernels)
        network, copies = self.merged.network, self.merged.copies
        return tuple(section_of(self.backend, network, copies, kernels, *segment) for segment in self.segments)

    @cached_property
    def chosen(self) -> dict[int, Chosen]:
        """For each layer, counted from 0, the kernel that runs it if no rows leave, and why that."""
        every = (section.chosen(section.first, self.inputs) for section in self.sections)
        return {number: found for chosen in every for number, found in chosen.items()}

    @property
    def convolutions(self) -> dict[int, Chosen]:
        """For each convolution, counted from 0, the kernel that runs it, and why that."""
        return {number: found for number, found in self.chosen.items() if found.kernel.operation == CONV_OPERATION}

    @property
    def dense_segments(self) -> dict[Kernel, list[tuple[int, int]]]:
        """The segments of dense layers by the kernel that runs them."""
        found: dict[Kernel, list[tuple[int, int]]] = {}
        for first, last in self.segments:
            kernel = self.chosen[first].kernel
            if kernel.operation == DENSE_OPERATION:
                found.setdefault(kernel, []).append((first, last))
        return found

    @property
    def precisions(self) -> tuple[str | None, ...]:
        """What each layer is multiplied in, as its kernel's `Kernel.precision` says.

        That is None for layers of images other than convolutions.
        """
        kernels = (self.chosen[number].kernel for number in range(len(self.network)))
        return tuple(None if kernel.operation == IMAGE_OPERATION else kernel.precision for kernel in kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions as plain values for JSON."""
        convolving = (found.kernel for found in self.convolutions.values())
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
    machine: Machine | str | None = None,
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
    machine : a GPU to plan for that need not be here, or its name, one of `sparsenn.backends.MACHINES`: the plan can be
        printed, not run. All of its memory is taken to be free. The device is then `cuda` or `auto`.
    kernel : `auto`, or a kernel by name: it is obeyed or refused, never replaced. Where there are sparse layers it is
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
    elsewhere = machine_named(machine) if isinstance(machine, str) else machine
    backend, kernels = choose_kernels(network, device, kernel, precision, elsewhere)
    merged = merge_equal_outputs(network) if merging else unmerged(network)
    sparse = sparse_kernels(kernels.sparse, backend.machine, merged.network, inputs)
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
    _ = made.chosen  # refuses layers that none of the kernels can run
    return replace(made, seconds=time.perf_counter() - start)


def _droppable_from(network: Network) -> int:
    """Return the first layer after which every layer keeps rows of zeros at zero."""
    reviving = [number for number, layer in enumerate(network) if not layer.keeps_zero_rows]
    return reviving[-1] if reviving else 0


def _largest_batch(network: Network, inputs: int, limit: int) -> int:
    """Return how many inputs fit: a row's floats before and after a launch, once more while parts are joined."""
    widest = max(network.sizes[1:]) if network[0].family is SparseLinear else network.widest  # sparse rows stay sparse
    per_row = 3 * 4 * widest + 64
    if per_row > limit:
        raise ResourceError(f"a memory limit of {limit:,} bytes does not hold one row, which takes {per_row:,}")
    return max(1, min(inputs, limit // per_row))
