"""Weights laid out for `gather_chunks`: each group's edges by chunks of inputs; `sparse/gather_chunks.cu` says how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.loader import Program, program
from sparsenn.backends.cuda.sparse.conversion import running_sum
from sparsenn.backends.cuda.sparse.tiling import MOST_STAGES, BlockShape, Tiling, record_bytes, room, stage_bytes
from sparsenn.backends.machine import Machine
from sparsenn.errors import ResourceError
from sparsenn.formats import CSC, Array

__all__ = ["ChunkedWeights", "block_program", "chunk_weights"]

MOST_UNITS = (1 << 31) - 1
"""Records are addressed by 32-bit numbers of 16 bytes."""


def block_program(source: str, block: BlockShape) -> Program:
    """Declare a source that reads weights laid out in chunks, for blocks of a shape."""
    return program(
        source,
        dynamic_shared=True,
        VECTOR=(block.vector,),
        OUTPUTS=(block.outputs,),
        WARPS=(block.warps,),
        BLOCKS=(block.blocks,),
        EDGES=(block.edges,),
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
    slots : (groups * slots of a block, 2) int32: output, or -1; and the bits of its bias.
    """

    shape: tuple[int, int]
    tiling: Tiling
    stages: int
    stage_bytes: int
    records: Array
    starts: Array
    slots: Array

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.records.nbytes + self.starts.nbytes + self.slots.nbytes)


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
    slot_of = _deal(_on_host(xp, xp.diff(weights.indptr)), block, tiling.groups)
    chunk = tiling.chunk
    while True:  # a chunk of one input always fits: its record has at most one unit for each slot
        counts = _count_edges(xp, weights, block, tiling.groups, chunk, slot_of)
        sizes = -(-record_bytes(block, _units(counts, block).sum(axis=1)) // 16)
        stage = stage_bytes(block, chunk, 16 * int(sizes.max()) if sizes.size else 0)
        if 2 * stage <= most or chunk == 1:
            break
        chunk = max(1, chunk * 7 // 8)
    if int(sizes.sum()) > MOST_UNITS:
        raise ResourceError(
            f"a layer of {weights.nnz:,} weights takes {16 * int(sizes.sum()):,} bytes laid out in chunks; the kernel "
            f"addresses {16 * MOST_UNITS:,}: use a layer of fewer outputs, or --device cpu"
        )
    starts = running_sum(xp, sizes)
    records = _fill_records(xp, weights, block, tiling.groups, chunk, slot_of, counts, starts)
    return ChunkedWeights(
        weights.shape,
        Tiling(block, tiling.groups, chunk),
        min(MOST_STAGES, most // stage),
        stage,
        records,
        starts.astype(np.int32),
        xp.asarray(_slots(block, tiling.groups, slot_of, _on_host(xp, bias))),
    )


def _slots(block: BlockShape, groups: int, slot_of: Array, bias: Array) -> Array:
    """Return what the slots hold: an output, or -1, and the bits of its bias."""
    slots = np.zeros((groups * block.slots, 2), np.int32)
    slots[:, 0] = -1
    slots[slot_of, 0] = np.arange(slot_of.size)
    slots[slot_of, 1] = bias.astype(np.float32).view(np.int32)
    return slots


def _units(counts: Any, block: BlockShape) -> Any:
    """Return how many units so many edges of slots take."""
    return -(-counts // block.edges)


def _on_host(xp: Any, array: Any) -> Array:
    return array if xp is np else cupy().asnumpy(array)  # type: ignore[no-any-return]


def _deal(degrees: Array, block: BlockShape, groups: int) -> Array:
    """Return each output's slot.

    Outputs of like degree make up a group, the largest first, and are dealt to its warps to and fro, so that warps
    that wait for each other have about the same number of edges.
    """
    outputs = degrees.size
    bounds = np.arange(groups + 1) * outputs // groups
    group = np.repeat(np.arange(groups), np.diff(bounds))
    turn, warp = np.divmod(np.arange(outputs) - bounds[group], block.warps)
    warp = np.where(turn % 2, block.warps - 1 - warp, warp)
    slot = np.empty(outputs, np.int64)
    slot[np.argsort(-degrees, kind="stable")] = group * block.slots + warp * block.outputs + turn
    return slot


def _columns(xp: Any, weights: CSC) -> Any:
    """Return the output of each edge."""
    borders = xp.bincount(weights.indptr[1:-1], minlength=weights.nnz + 1)
    return xp.cumsum(borders[: weights.nnz])


def _count_edges(xp: Any, weights: CSC, block: BlockShape, groups: int, chunk: int, slot_of: Array) -> Any:
    """Return the number of edges of each record's slots, shape (groups * chunks, slots)."""
    chunks = -(-weights.shape[0] // chunk)
    if weights.nnz == 0:
        return xp.zeros((groups * chunks, block.slots), np.int64)
    group, slot = np.divmod(slot_of, block.slots)
    first = xp.asarray(group * chunks * block.slots + slot)
    segments = first[_columns(xp, weights)] + weights.indices.astype(np.int64) // chunk * block.slots
    return xp.bincount(segments, minlength=groups * chunks * block.slots).reshape(groups * chunks, block.slots)


def _fill_records(xp: Any, weights: CSC, block: BlockShape, groups: int, chunk: int, slot_of: Array, counts: Any,
                  starts: Any) -> Any:  # fmt: skip
    """Write headers and edges. A record's k-th slot has its units behind those of the slots before it."""
    slots, edges = block.slots, block.edges
    words = xp.zeros(int(starts[-1]) * 4, np.int32)
    if not words.size:
        return words
    units = _units(counts, block)
    begin = 4 + slots + 2 * edges * (1 + xp.cumsum(units, axis=1) - units)  # of a slot's weights, in words
    places = 4 * starts[:-1, None] + xp.arange(4 + slots)
    words[places[:, 3]] = 4 * (4 + slots + 2 * edges)
    words[places[:, 4:]] = (4 * (begin + 2 * counts)).astype(np.int32)
    if weights.nnz == 0:
        return words
    chunks = -(-weights.shape[0] // chunk)
    inputs = weights.indices.astype(np.int64)
    runs = _columns(xp, weights) * chunks + inputs // chunk  # edges of one output in one chunk are neighbours
    segments = _segment_of_run(xp, slots, chunks, slot_of)
    first = running_sum(xp, counts.ravel()[segments])[:-1]
    unit, place = xp.divmod(xp.arange(weights.nnz) - first[runs], edges)
    at = (4 * starts[:-1, None] + begin).ravel()[segments][runs] + 2 * edges * unit + place
    words[at - edges] = (inputs % chunk * block.line).astype(np.int32)
    words[at] = xp.broadcast_to(weights.values.astype(np.float32), (weights.nnz,)).copy().view(np.int32)
    return words


def _segment_of_run(xp: Any, slots: int, chunks: int, slot_of: Array) -> Any:
    """Return the place, among all records' slots, of each output's edges in each chunk; output by output."""
    group, slot = np.divmod(slot_of, slots)
    first = xp.asarray(group * chunks * slots + slot)
    return (first[:, None] + xp.arange(chunks) * slots).ravel()
