"""Weights laid out for `gather_chunks` and its double on halves: each group's edges by chunks of inputs.

`sparse/gather_chunks.cu` says how they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.sparse.chunks.blocks import (
    MOST_STAGES,
    UNIT_WORDS,
    BlockShape,
    header_words,
    record_bytes,
    room,
    stage_bytes,
)
from sparsenn.backends.cuda.sparse.chunks.tiling import L2_BYTES, Tiling
from sparsenn.backends.cuda.sparse.conversion import running_sum
from sparsenn.backends.cuda.sparse.half_weights import scaled_weights
from sparsenn.backends.machine import Machine
from sparsenn.errors import ResourceError
from sparsenn.formats import CSC, Array

__all__ = ["ChunkedWeights", "block_program", "chunk_weights"]

MOST_UNITS = (1 << 31) - 1
"""Records are addressed by 32-bit numbers of 16 bytes."""

BEHIND_ALL = -1  # the place behind all outputs, as places are unsigned
NO_OUTPUT = 63 << 18  # an edge of no output, where rows are in half precision

RUN_CLOCKS = 55
"""Clocks that the copy engine takes for a copy, however short."""

EVENNESS = 0.05
"""What a warp's edges in other chunks than an output's own count for, in parts of those in the same."""


def block_program(source: str, block: BlockShape, **more: Any) -> Program:
    """Declare a source that reads weights laid out in chunks, for blocks of a shape; `more` are further defines."""
    return program(
        source,
        dynamic_shared=True,
        VECTOR=(block.vector,),
        OUTPUTS=(block.outputs,),
        WARPS=(block.warps,),
        BLOCKS=(block.blocks,),
        **more,
    )


@dataclass(frozen=True, eq=False)
class ChunkedWeights:
    """A layer's weights and bias as the kernel reads them; its source says how they lie.

    Parameters
    ----------
    shape : (inputs, outputs).
    tiling : how the layer is cut. Its chunk may be smaller than was asked for, so that records fit.
    stages, stage_bytes : chunks in shared memory at a time, and the room for each.
    records : int32 vector, the records of group 0, chunk by chunk, then those of group 1, and so on.
    starts : (groups * chunks + 1,) int32, where each record begins, and the end, in units of 16 bytes.
    runs : (runs, 4) int32, the inputs that chunks are made of, in runs of neighbours: the first input, where in the
        chunk it is, how many they are, and all inputs of the chunk.
    run_starts : (groups * chunks + 1,) int32, where the runs of each chunk begin, and the end.
    slots : (groups * slots of a block, 2 or 3) int32: output, or -1; the bits of its bias; and, where rows are in half
        precision, those of what its sums are multiplied by.
    """

    shape: tuple[int, int]
    tiling: Tiling
    stages: int
    stage_bytes: int
    records: Array
    starts: Array
    runs: Array
    run_starts: Array
    slots: Array

    @property
    def chunks(self) -> int:
        """Chunks of each group."""
        return (self.starts.size - 1) // self.tiling.groups

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays, in the order in which kernels take them."""
        return self.records, self.starts, self.runs, self.run_starts, self.slots

    @property
    def cut(self) -> tuple[int, int, int, int, int]:
        """What kernels take it by: groups, chunks of each, inputs of a chunk, stages, and bytes of one."""
        return self.tiling.groups, self.chunks, self.tiling.chunk, self.stages, self.stage_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(array.nbytes) for array in self.arrays)


def chunk_weights(weights: CSC, bias: Array, tiling: Tiling, machine: Machine) -> ChunkedWeights:
    """Lay out weights for a tiling, where they are: on the host or on the device.

    Parameters
    ----------
    weights : canonical CSC, over NumPy or CuPy arrays.
    bias : (outputs,) float32, where the weights are.

    Raises
    ------
    ResourceError
        The layer takes more than 32 GiB in this layout.
    """
    xp = np if isinstance(weights.indptr, np.ndarray) else cupy()
    block, most = tiling.block, room(machine, tiling.block)
    group, place = _ranked(_on_host(xp, xp.diff(weights.indptr)), tiling.groups)
    output, chunk = _columns(xp, weights), tiling.chunk
    slot = xp.asarray(group * block.slots + place)[output]
    read = _Read.of(xp, weights, slot // block.slots, tiling)
    while True:  # a chunk of one input always fits: its record has at most one unit for each slot
        edges = _Edges(tiling.groups, -(-read.most // chunk), slot, *xp.divmod(read.line, chunk))
        counts = edges.count(xp, block)
        sizes = -(-record_bytes(block, _most_units(counts, block)) // 16)
        longest = 16 * int(sizes.max()) if sizes.size else 0
        stage = stage_bytes(block, chunk, longest)
        if 2 * stage <= most or chunk == 1:
            break
        chunk = max(1, chunk * 7 // 8)
    assert chunk * block.line <= block.output_places, "an edge's place does not tell its output"
    if int(sizes.sum()) > MOST_UNITS:
        raise ResourceError(
            f"a layer of {weights.nnz:,} weights takes {16 * int(sizes.sum()):,} bytes laid out in chunks; the kernel "
            f"addresses {16 * MOST_UNITS:,}: use a layer of fewer outputs, or --device cpu"
        )
    starts = running_sum(xp, sizes)
    counts_of_groups = _on_host(xp, counts.astype(np.float32)).reshape(tiling.groups, -1, block.slots)
    dealt = _deal(counts_of_groups, block, place.max(initial=-1) + 1)
    slot_of = group * block.slots + dealt[group, place]
    edges = replace(edges, slot=xp.asarray(slot_of)[output])
    words, told = _words(xp, weights, output, block)
    return ChunkedWeights(
        weights.shape,
        Tiling(block, tiling.groups, chunk),
        min(MOST_STAGES, most // stage),
        stage,
        _fill_records(xp, words, edges, block, edges.count(xp, block), starts),
        starts.astype(np.int32),
        *read.runs(xp, tiling.groups, chunk, edges.chunks),
        xp.asarray(_slots(block, tiling.groups, slot_of, [_on_host(xp, array) for array in (bias, *told)])),
    )


@dataclass(frozen=True, eq=False)
class _Read:
    """The inputs that groups read.

    Parameters
    ----------
    group, place, number : of each input that is read, by group and ascending: the group, its place among those of the
        group, and which input it is. Where every group reads all inputs, they are of one group, which stands for all.
    most : inputs of a group.
    line : (edges,) int64, the place of each edge's input.
    copies : groups that one stands for.
    """

    group: Any
    place: Any
    number: Any
    most: int
    line: Any
    copies: int

    @classmethod
    def of(cls, xp: Any, weights: CSC, group: Any, tiling: Tiling) -> _Read:
        """Find what groups read: what they have weights of, if copying just that in runs takes less time; else all.

        group : of each edge.
        """
        inputs, groups, indices = weights.shape[0], tiling.groups, weights.indices.astype(np.int64)
        if not weights.nnz:
            nothing = xp.zeros(0, np.int64)
            return cls(nothing, nothing, nothing, 0, indices, 1)
        read = xp.zeros((groups, inputs), bool)
        read[group, indices] = True
        runs = int(read[:, :1].sum()) + int((read[:, 1:] > read[:, :-1]).sum())
        clocks = tiling.block.line / L2_BYTES  # of an input, on its way
        if runs * RUN_CLOCKS + int(read.sum()) * clocks > groups * inputs * clocks:
            every = xp.arange(inputs)
            return cls(xp.zeros(inputs, np.int64), every, every, inputs, indices, groups)
        line = xp.cumsum(read, axis=1, dtype=np.int32) - 1
        of_group, number = xp.nonzero(read)
        place = line[of_group, number].astype(np.int64)
        return cls(of_group, place, number, int(read.sum(axis=1).max()), line[group, indices].astype(np.int64), 1)

    def runs(self, xp: Any, groups: int, chunk: int, chunks: int) -> tuple[Any, Any]:
        """Return runs of neighbours in chunks of that many inputs, and where those of each chunk begin."""
        record = self.group * chunks + self.place // chunk
        if not record.size:
            return xp.zeros((0, 4), np.int32), xp.zeros(groups * chunks + 1, np.int32)
        begins = xp.ones(record.size, bool)
        begins[1:] = (xp.diff(record) != 0) | (xp.diff(self.number) != 1)
        first = xp.flatnonzero(begins)
        count = xp.diff(first, append=xp.asarray([record.size]))
        every = xp.bincount(record)[record[first]]
        made = xp.stack([self.number[first], self.place[first] % chunk, count, every], axis=1).astype(np.int32)
        each = xp.bincount(record[first], minlength=groups // self.copies * chunks)
        return xp.tile(made, (self.copies, 1)), running_sum(xp, xp.tile(each, self.copies)).astype(np.int32)


def _words(xp: Any, weights: CSC, output: Any, block: BlockShape) -> tuple[Any, tuple[Any, ...]]:
    """Return what edges have of their weights, int32, and what is told of outputs besides their biases.

    output : of each edge.
    """
    values = xp.broadcast_to(weights.values.astype(np.float32), (weights.nnz,))
    if not block.halves:
        return values.copy().view(np.int32), ()
    scaled, scales = scaled_weights(xp, output, values, weights.shape[1])
    bits = scaled.astype(np.float16).view(np.int16).astype(np.int32)
    return bits & 0xFF | bits >> 8 << 24, (scales,)


def _slots(block: BlockShape, groups: int, slot_of: Array, told: Sequence[Array]) -> Array:
    """Return what the slots hold: an output, or -1, and the bits of what is told of it."""
    slots = np.zeros((groups * block.slots, 1 + len(told)), np.int32)
    slots[:, 0] = -1
    slots[slot_of, 0] = np.arange(slot_of.size)
    for number, array in enumerate(told, 1):
        slots[slot_of, number] = array.astype(np.float32).view(np.int32)
    return slots


def _units(counts: Any, block: BlockShape) -> Any:
    """Return how many units so many edges of slots take, by warp; the last edges have room for the end, too."""
    of_warps = counts.reshape(len(counts), block.warps, block.outputs)
    return of_warps.sum(axis=2) // block.edges_at_once + 1


def _most_units(counts: Any, block: BlockShape) -> Any:
    """Return how many units records take, however outputs are dealt."""
    return counts.sum(axis=1) // block.edges_at_once + block.warps


def _on_host(xp: Any, array: Any) -> Array:
    return array if xp is np else cupy().asnumpy(array)  # type: ignore[no-any-return]


def _ranked(degrees: Array, groups: int) -> tuple[Array, Array]:
    """Return each output's group, and its place there: outputs of like degree make up a group, the largest first."""
    outputs = degrees.size
    bounds = np.arange(groups + 1) * outputs // groups
    group, place = np.empty((2, outputs), np.int64)
    order = np.argsort(-degrees, kind="stable")
    group[order] = np.repeat(np.arange(groups), np.diff(bounds))
    place[order] = np.arange(outputs) - bounds[group[order]]
    return group, place


@np.errstate(invalid="ignore")  # NumPy may warn of products of finite numbers
def _deal(counts: Array, block: BlockShape, most: int) -> Array:
    """Return the slot in its block that each output gets, (groups, slots) by place.

    Warps wait for each other at every chunk, so that they should have like work in each: outputs are dealt one after
    the other, each to the warp whose outputs so far have the fewest edges in the same chunks; all groups at a time.

    Parameters
    ----------
    counts : (groups, chunks, slots) float32, the edges of each place in each chunk.
    most : places of a group that are taken, at most.
    """
    groups, chunks, _ = counts.shape
    load = np.zeros((groups, block.warps, chunks), np.float32)
    taken = np.zeros((groups, block.warps), np.int64)
    dealt = np.zeros((groups, block.slots), np.int64)
    every, full = np.arange(groups), -(-most // block.warps)
    for place, edges in enumerate(counts.transpose(2, 0, 1)[:most]):
        shared = np.matmul(load, (edges + EVENNESS)[:, :, None])[:, :, 0]
        warp = np.where(taken < full, shared, np.inf).argmin(axis=1)
        dealt[:, place] = warp * block.outputs + taken[every, warp]
        taken[every, warp] += 1
        load[every, warp] += edges
    return dealt


def _columns(xp: Any, weights: CSC) -> Any:
    """Return the output of each edge."""
    borders = xp.bincount(weights.indptr[1:-1], minlength=weights.nnz + 1)
    return xp.cumsum(borders[: weights.nnz])


@dataclass(frozen=True, eq=False)
class _Edges:
    """Where the edges lie, output by output.

    Parameters
    ----------
    groups, chunks : of the layer, and of each group.
    slot, chunk, place : of each edge: its output's slot of all groups', the chunk, and the line of the chunk.
    """

    groups: int
    chunks: int
    slot: Any
    chunk: Any
    place: Any

    def segments(self, xp: Any, block: BlockShape) -> Any:
        """Return each edge's place among the slots of all records."""
        group, slot = xp.divmod(self.slot, block.slots)
        return (group * self.chunks + self.chunk) * block.slots + slot

    def count(self, xp: Any, block: BlockShape) -> Any:
        """Return the number of edges of each record's slots, shape (groups * chunks, slots)."""
        records = self.groups * self.chunks
        if not self.slot.size:
            return xp.zeros((records, block.slots), np.int64)
        found = xp.bincount(self.segments(xp, block), minlength=records * block.slots)
        return found.reshape(records, block.slots)


def _fill_records(xp: Any, weights: Array, edges: _Edges, block: BlockShape, counts: Any, starts: Any) -> Any:
    """Write headers and edges. A record's k-th warp has its units behind those before it.

    weights : of each edge, a word, as `_words` has it.
    """
    words = xp.zeros(int(starts[-1]) * 4, np.int32)
    if not words.size:
        return words
    edges_at_once = block.edges_at_once
    units, headers = _units(counts, block), 4 * starts[:-1, None]
    ends = header_words(block) + UNIT_WORDS * xp.cumsum(units, axis=1)  # of a warp's units, in words
    begins = ends - UNIT_WORDS * units
    words[headers + xp.arange(block.warps)] = (4 * begins).astype(np.int32)
    for number in range(1, 1 + edges_at_once):  # edges of the last unit, if they are not of an output
        words[headers + ends - number] = NO_OUTPUT if block.halves else BEHIND_ALL
    if not weights.size:
        return words
    segments, first = edges.segments(xp, block), (headers + begins).ravel()
    first_ones = xp.concatenate([xp.ones(1, bool), xp.diff(segments) != 0])  # edges of one segment are neighbours
    rank = xp.arange(weights.size) - xp.flatnonzero(first_ones)[xp.cumsum(first_ones) - 1]
    warp, output = xp.divmod(segments, block.outputs)
    of_warps = counts.reshape(-1, block.outputs)
    before = xp.cumsum(of_warps, axis=1) - of_warps
    unit, among = xp.divmod(before.ravel()[segments] + rank, edges_at_once)
    at = first[warp] + UNIT_WORDS * unit + among
    place = (edges.place * block.line + output * block.output_places).astype(np.int32)
    if block.halves:
        weights = weights | place
    else:
        words[at + edges_at_once] = place
    words[at] = weights
    return words
