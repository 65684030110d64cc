"""Weights laid out for `gather_chunks` and its double on halves, as `sparse/gather_chunks.cu` describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from sparsenn.backends.cuda.clocks import EDGE_CLOCKS, L2_BYTES
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.runtime.precision import scaled_weights
from sparsenn.backends.cuda.sparse.chunks.edges import count_edges, deal_outputs, find_lines, write_edges
from sparsenn.backends.cuda.sparse.chunks.tiling import (
    BLOCKS,
    MOST_STAGES,
    TEAM_BLOCK,
    BlockShape,
    Teams,
    Tiling,
    header_words,
    record_bytes,
    room,
    stage_bytes,
    teams_of_weights,
    unit_words,
)
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.backends.machine import H200, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import ResourceError
from sparsenn.formats import CSC, Array
from sparsenn.formats.conversion import scan
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import example
from sparsenn.runtime.workers import map_threads

MOST_UNITS = (1 << 31) - 1  # records are addressed by 32-bit numbers of 16 bytes

BEHIND_ALL = -1  # the place behind all outputs, as places are unsigned
NO_OUTPUT = 63 << 18  # an edge of no output, where rows are in half precision
ARRAYS = ("records", "starts", "runs", "run_starts", "slots")  # in the order in which kernels take them


def block_program(source: str, block: BlockShape, **more: Any) -> Program:
    """Declare a source that reads weights laid out in chunks, for blocks of a shape; `more` are further defines."""
    return program(
        source,
        dynamic_shared=True,
        VECTOR=(block.vector,),
        OUTPUTS=(block.outputs,),
        WARPS=(block.warps,),
        BLOCKS=(block.blocks,),
        TEAMS=(int(block.teams),),
        **more,
    )


@dataclass(frozen=True, eq=False)
class ChunkedWeights:
    """A layer's weights and bias as the kernel reads them; its source describes the layout.

    Records are those of group 0, chunk by chunk, then of group 1, and so on; `starts`, (groups * chunks + 1,), counts
    units of 16 bytes. A run of neighbouring inputs is (first input, its place in the chunk, inputs, all inputs of the
    chunk). A slot is (output or -1, bits of its bias, and on halves those of its scale).
    """

    shape: tuple[int, int]  # (inputs, outputs)
    tiling: Tiling  # its chunk may be smaller than requested, so that records fit
    stages: int  # chunks in shared memory at a time
    stage_bytes: int
    records: Array  # int32
    starts: Array  # int32, where each record begins, and the end
    runs: Array  # (runs, 4) int32
    run_starts: Array  # (groups * chunks + 1,) int32, where the runs of each chunk begin, and the end
    slots: Array  # (groups * slots of a block, 2 or 3) int32

    @property
    def chunks(self) -> int:
        """Chunks of each group."""
        return (self.starts.size - 1) // self.tiling.groups

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of `ARRAYS`."""
        return tuple(getattr(self, name) for name in ARRAYS)

    def over(self, *arrays: Array) -> ChunkedWeights:
        """Return the same weights in other arrays."""
        return ChunkedWeights(self.shape, self.tiling, self.stages, self.stage_bytes, *arrays)

    @property
    def cut(self) -> tuple[int, int, int, int, int]:
        """What kernels take it by: groups, chunks of each, inputs of a chunk, stages, and bytes of one."""
        return self.tiling.groups, self.chunks, self.tiling.chunk, self.stages, self.stage_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(array.nbytes) for array in self.arrays)


def chunk_weights(
    weights: CSC, bias: Array, tiling: Tiling, machine: Machine, teams: Teams | None = None
) -> ChunkedWeights:
    """Lay out canonical weights and a float32 bias for a tiling, on the host.

    Raises ResourceError where the layer takes more than 32 GiB in this layout.
    """
    block, most = tiling.block, room(machine, tiling.block)
    edges = weights.indptr, weights.indices
    if block.teams:
        assert teams is not None, "teams are not known"
        tiling = replace(tiling, groups=max(tiling.groups, parts_of(teams.count, block.warps)))
        group, place = _grouped(teams, block, tiling.groups)
    else:
        group, place = _ranked(np.diff(weights.indptr), tiling.groups)
    lines = _lines(weights, group, tiling)
    chunk, longest_line = tiling.chunk, int(lines.max(initial=-1)) + 1
    while True:  # a chunk of one input always fits: its record has at most one unit for each slot
        counts = np.zeros((tiling.groups, parts_of(longest_line, chunk), block.slots), np.int32)
        count_edges(*edges, group, place, lines, chunk, counts)
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
            f"addresses {16 * MOST_UNITS:,}: use a layer of fewer outputs, or device cpu"
        )
    starts = scan(sizes)
    slot = place if block.teams else _dealt(counts, block, int(place.max(initial=-1)) + 1)[group, place]
    words, scales = _words(weights, block)
    return ChunkedWeights(
        weights.shape,
        Tiling(block, tiling.groups, chunk),
        min(MOST_STAGES, most // stage),
        stage,
        _records(edges, words, group, slot, lines, chunk, counts, block, starts),
        starts.astype(np.int32),
        *_runs(lines, tiling.groups, chunk, counts.shape[1]),
        _slots(block, tiling.groups, group * block.slots + slot, (bias, *scales)),
    )


def lay_out(
    layers: Sequence[LayerNumbers],
    tilings: Sequence[Tiling],
    machine: Machine,
    teams: Sequence[Teams | None] | None = None,
) -> list[ChunkedWeights]:
    """Lay out layers in threads, as `chunk_weights` does, and bring them to the current device in one copy."""
    given = list(zip(layers, tilings, teams or [None] * len(layers), strict=True))

    def made_of(number: int) -> ChunkedWeights:
        layer, tiling, own = given[number]
        return chunk_weights(layer.weights, layer.bias, tiling, machine, own)

    made = map_threads(made_of, range(len(given)))
    arrays = iter(to_device([array for layer in made for array in layer.arrays]))
    return [layer.over(*islice(arrays, len(ARRAYS))) for layer in made]


def _lines(weights: CSC, group: Array, tiling: Tiling) -> Array:
    """Return the place of each input among those that a group reads, (groups, inputs) int32, and -1 elsewhere.

    Groups read the inputs that they have weights of, if copying just those in runs takes less time; else all inputs,
    and (1, inputs) stands for every group.
    """
    inputs, groups = weights.shape[0], tiling.groups
    lines = np.full((groups, inputs), -1, np.int32)
    runs = find_lines(weights.indptr, weights.indices, group, lines)
    clocks = tiling.block.line / L2_BYTES  # of an input, on its way
    reads = int(lines.max(axis=1, initial=-1).sum()) + groups
    if runs * EDGE_CLOCKS + reads * clocks > groups * inputs * clocks:
        return np.arange(inputs, dtype=np.int32)[None]
    return lines


def _runs(lines: Array, groups: int, chunk: int, chunks: int) -> tuple[Array, Array]:
    group, number = np.nonzero(lines >= 0)
    if not group.size:
        return np.zeros((0, 4), np.int32), np.zeros(groups * chunks + 1, np.int32)
    place = lines[group, number]
    record, copies = group * chunks + place // chunk, groups // len(lines)
    begins = np.ones(record.size, bool)
    begins[1:] = (np.diff(record) != 0) | (np.diff(number) != 1)
    first = np.flatnonzero(begins)
    count = np.diff(first, append=record.size)
    every = np.bincount(record)[record[first]]
    made = np.stack([number[first], place[first] % chunk, count, every], axis=1).astype(np.int32)
    each = np.bincount(record[first], minlength=len(lines) * chunks)
    return np.tile(made, (copies, 1)), scan(np.tile(each, copies)).astype(np.int32)


def _words(weights: CSC, block: BlockShape) -> tuple[Array, tuple[Array, ...]]:
    """Return what edges have of their weights, int32, and, where rows are halves, the scales of outputs."""
    values = np.broadcast_to(weights.values.astype(np.float32), (weights.nnz,))
    if not block.halves:
        return values.copy().view(np.int32), ()
    output = np.repeat(np.arange(weights.shape[1]), np.diff(weights.indptr))
    scaled, scales = scaled_weights(output, values, weights.shape[1])
    bits = scaled.astype(np.float16).view(np.int16).astype(np.int32)
    return bits & 0xFF | bits >> 8 << 24, (scales,)


def _slots(block: BlockShape, groups: int, slot_of: Array, numbers: Sequence[Array]) -> Array:
    slots = np.zeros((groups * block.slots, 1 + len(numbers)), np.int32)
    slots[:, 0] = -1
    slots[slot_of, 0] = np.arange(slot_of.size)
    for column, array in enumerate(numbers, 1):
        slots[slot_of, column] = array.astype(np.float32).view(np.int32)
    return slots


def _units(counts: Array, block: BlockShape) -> Array:
    """Return how many units so many edges of slots take, by warp; the last edges have room for the end, too."""
    of_warps = counts.reshape(*counts.shape[:2], block.warps, block.outputs)
    if block.teams:
        return of_warps.max(axis=3)
    return of_warps.sum(axis=3) // block.edges_at_once + 1


def _most_units(counts: Array, block: BlockShape) -> Array:
    if block.teams:
        return _units(counts, block).sum(axis=2).ravel()
    return counts.reshape(-1, block.slots).sum(axis=1) // block.edges_at_once + block.warps


def _ranked(degrees: Array, groups: int) -> tuple[Array, Array]:
    """Return each output's group, and its place there: outputs of like degree make up a group, the largest first."""
    outputs = degrees.size
    bounds = np.arange(groups + 1) * outputs // groups
    group, place = np.empty((2, outputs), np.int64)
    order = np.argsort(-degrees, kind="stable")
    group[order] = np.repeat(np.arange(groups), np.diff(bounds))
    place[order] = np.arange(outputs) - bounds[group[order]]
    return group, place


def _grouped(teams: Teams, block: BlockShape, groups: int) -> tuple[Array, Array]:
    """Return each output's group, and its slot there: neighbouring teams make up a group, each a warp's."""
    bounds = np.arange(groups + 1) * teams.count // groups
    team, among = np.divmod(teams.place, block.outputs)
    group = np.searchsorted(bounds, team, side="right") - 1
    return group, (team - bounds[group]) * block.outputs + among


def _dealt(counts: Array, block: BlockShape, most: int) -> Array:
    groups, chunks, slots = counts.shape
    dealt = np.zeros((groups, slots), np.int64)
    shared, taken = np.zeros((2, block.warps), np.int64)
    deal_outputs(counts, most, np.zeros((chunks, block.warps), np.int64), shared, taken, dealt)
    return dealt


def _records(
    edges: tuple[Array, Array],
    weights: Array,
    group: Array,
    slot: Array,
    lines: Array,
    chunk: int,
    counts: Array,
    block: BlockShape,
    starts: Array,
) -> Array:
    """Return headers and edges. The units of a record's k-th warp lie behind those of the warps before."""
    words = np.zeros(int(starts[-1]) * 4, np.int32)
    if not words.size:
        return words
    counts[:] = 0
    count_edges(*edges, group, slot, lines, chunk, counts)
    units, headers = _units(counts, block), 4 * starts[:-1].reshape(*counts.shape[:2], 1)
    ends = header_words(block) + unit_words(block) * np.cumsum(units, axis=2)  # of a warp's units, in words
    begins = ends - unit_words(block) * units
    if block.teams:
        words[headers[..., 0] + 3] = 4 * header_words(block)
        words[headers + 4 + np.arange(block.warps)] = 4 * ends
        rank = np.zeros(counts.shape, np.int64)
    else:
        words[headers + np.arange(block.warps)] = 4 * begins
        for number in range(1, 1 + block.edges_at_once):  # edges of the last unit, if they are not of an output
            words[headers + ends - number] = NO_OUTPUT if block.halves else BEHIND_ALL
        of_warps = counts.reshape(-1, block.outputs)
        rank = (np.cumsum(of_warps, axis=1, dtype=np.int64) - of_warps).reshape(counts.shape)
    team_words = unit_words(block) if block.teams else 0
    shape = np.array([block.outputs, block.edges_at_once, block.line, block.output_places, team_words])
    write_edges(*edges, weights, group, slot, lines, chunk, headers + begins, rank, shape, words)
    return words


@example
def _example() -> None:
    layer = SparseLinear(CSC((1, 1), np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.float32)))
    chunk_weights(layer.weights, layer.bias_vector(), Tiling(BLOCKS[0], 1, 1), H200)
    teams = teams_of_weights(layer.weights)
    chunk_weights(layer.weights, layer.bias_vector(), Tiling(TEAM_BLOCK, 1, 1), H200, teams)
