"""gather_chunks on the host side: laying weights out in chunks, and launching.

The kernel, `kernels/engine/04_gather_chunks.cu`, takes any sparse layer. Its features lie in tiles: an array of shape
(tiles, width, rows of a tile), in which the rows of one input are neighbours; layers follow each other in that layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.backends.cuda.sparse.tiling import (
    BLOCKS,
    MOST_STAGES,
    WARP,
    BlockShape,
    Limits,
    Tiling,
    device_limits,
    estimated_clocks,
    stage_bytes,
    tiling_for,
)
from sparsenn.errors import ResourceError
from sparsenn.formats import CSC, Array

__all__ = ["ChunkedWeights", "chunk_weights", "from_tiles", "gather_chunks", "shared_tilings", "to_tiles"]

MOST_UNITS = (1 << 31) - 1
"""Records are addressed by 32-bit numbers of 16 bytes."""

TILE_ROWS = tuple(sorted({block.rows for block in BLOCKS}))
"""Rows that a tile can have."""

_PROGRAMS = {
    block: program("engine/04_gather_chunks.cu", **{name: (value,) for name, value in block.defines.items()})
    for block in BLOCKS
}


# ---- Choosing tilings -------------------------------------------------------------------------------------------


def shared_tilings(rows: int, shapes: Sequence[tuple[int, int, int]], limits: Limits) -> tuple[Tiling, ...]:
    """Choose the tilings of layers that follow each other on the same rows: their tiles have equally many rows.

    Of all numbers of rows, that with the least sum of estimated times is taken.

    Parameters
    ----------
    rows : rows that all layers are computed on.
    shapes : (inputs, outputs, edges) of each layer.
    """
    ways = [[_timed_tiling(rows, *shape, limits, tile_rows) for shape in shapes] for tile_rows in TILE_ROWS]
    best = min(ways, key=lambda way: sum(clocks for _, clocks in way))
    return tuple(tiling for tiling, _ in best)


@lru_cache(maxsize=1 << 14)
def _timed_tiling(
    rows: int, inputs: int, outputs: int, edges: int, limits: Limits, tile_rows: int
) -> tuple[Tiling, float]:
    """Return the best tiling for tiles of so many rows, and its estimated clocks."""
    tiling = tiling_for(rows, inputs, outputs, edges, limits, tile_rows)
    return tiling, estimated_clocks(tiling, rows, inputs, max(1, outputs), edges, limits)


# ---- Laying out the weights -------------------------------------------------------------------------------------


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


def chunk_weights(weights: CSC, bias: Array, tiling: Tiling, limits: Limits) -> ChunkedWeights:
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
    block, room = tiling.block, limits.room(tiling.block)
    degrees = _on_host(xp, xp.diff(weights.indptr))
    slot_of = _deal(degrees, block, tiling.groups)
    slots = np.zeros((tiling.groups * block.slots, 2), np.int32)
    slots[:, 0] = -1
    slots[slot_of, 0] = np.arange(slot_of.size)
    slots[slot_of, 1] = _on_host(xp, bias).astype(np.float32).view(np.int32)
    chunk = tiling.chunk
    while True:  # a chunk of one input always fits: its record has at most one pair for each slot
        counts = _count_edges(xp, weights, block, tiling.groups, chunk, slot_of)
        sizes = _header_units(block) + ((counts + 1) // 2).sum(axis=1)
        stage = stage_bytes(block, chunk, 16 * int(sizes.max()) if sizes.size else 0)
        if 2 * stage <= room or chunk == 1:
            break
        chunk = -(-chunk // 2)
    if int(sizes.sum()) > MOST_UNITS:
        raise ResourceError(
            f"a layer of {weights.nnz:,} weights takes {16 * int(sizes.sum()):,} bytes laid out in chunks; the kernel "
            f"addresses {16 * MOST_UNITS:,}: use a layer of fewer outputs, or --device cpu"
        )
    starts = _exclusive(xp, sizes)
    records = _fill_records(xp, weights, block, tiling.groups, chunk, slot_of, counts, starts)
    return ChunkedWeights(
        weights.shape,
        Tiling(block, tiling.groups, chunk),
        min(MOST_STAGES, room // stage),
        stage,
        records,
        starts.astype(np.int32),
        xp.asarray(slots),
    )


def _header_units(block: BlockShape) -> int:
    return 1 + block.slots // 4


def _on_host(xp: Any, array: Any) -> Array:
    return array if xp is np else cupy().asnumpy(array)  # type: ignore[no-any-return]


def _exclusive(xp: Any, counts: Any) -> Any:
    """Running sum, starting from 0 and ending with the total, int64."""
    sums = xp.zeros(counts.size + 1, np.int64)
    if counts.size:
        sums[1:] = xp.cumsum(counts.ravel())
    return sums


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
    """Write headers and edges. A record's k-th slot has its edges where the slots before it have theirs, padded."""
    header, slots = _header_units(block), block.slots
    words = xp.zeros(int(starts[-1]) * 4, np.int32)
    if not words.size:
        return words
    ends = header + xp.cumsum((counts + 1) // 2, axis=1)
    words[::2] = chunk * block.line  # where padding reads: the line of zeros
    places = 4 * starts[:-1, None] + xp.arange(4 + slots)
    words[places[:, 3]] = 16 * header
    words[places[:, 4:]] = (16 * ends).astype(np.int32)
    if weights.nnz == 0:
        return words
    chunks = -(-weights.shape[0] // chunk)
    inputs = weights.indices.astype(np.int64)
    runs = _columns(xp, weights) * chunks + inputs // chunk  # edges of one output in one chunk are neighbours
    segments = _segment_of_run(xp, slots, chunks, slot_of)
    first = _exclusive(xp, counts.ravel()[segments])[:-1]
    begin = 2 * (starts[:-1, None] + ends - (counts + 1) // 2).ravel()[segments]
    at = 2 * ((begin - first)[runs] + xp.arange(weights.nnz))
    words[at] = (inputs % chunk * block.line).astype(np.int32)
    words[at + 1] = xp.broadcast_to(weights.values.astype(np.float32), (weights.nnz,)).copy().view(np.int32)
    return words


def _segment_of_run(xp: Any, slots: int, chunks: int, slot_of: Array) -> Any:
    """Return the place, among all records' slots, of each output's edges in each chunk; output by output."""
    group, slot = np.divmod(slot_of, slots)
    first = xp.asarray(group * chunks * slots + slot)
    return (first[:, None] + xp.arange(chunks) * slots).ravel()


# ---- On the device ----------------------------------------------------------------------------------------------


@cache
def _kernel(block: BlockShape, device: int) -> Any:
    kernel = _PROGRAMS[block].kernel("gather_chunks")
    kernel.max_dynamic_shared_size_bytes = device_limits(device).room(block)
    return kernel


def gather_chunks(
    weights: ChunkedWeights, activation: np.int32, clip: np.float32, features: Any, alive: Any = None
) -> Any:
    """Compute one layer on the current device; returns (tiles, outputs, rows of a tile) float32.

    Rows that only fill the last tile up hold act(bias) of zeros, or whatever comes of them.

    Parameters
    ----------
    weights : over device arrays.
    activation, clip : code in `common.cuh`; upper bound of a ReLU, infinity where there is none.
    features : (tiles, inputs, rows of a tile) float32, contiguous.
    alive : (tiles * rows of a tile,) uint8; becomes 1 where a row has an output that is not zero, and is left as it is
        elsewhere.
    """
    cp = cupy()
    tiles, inputs, rows = features.shape
    block, (_, outputs) = weights.tiling.block, weights.shape
    assert (inputs, rows) == (weights.shape[0], block.rows), "features are laid out for another layer"
    target = cp.empty((tiles, outputs, rows), np.float32)
    items = tiles * weights.tiling.groups
    if not items or not outputs:
        return target
    device = cp.cuda.runtime.getDevice()
    grid = min(items, device_limits(device).multiprocessors * block.blocks)
    numbers = (tiles, inputs, outputs, weights.tiling.groups, weights.tiling.chunk, weights.stages, weights.stage_bytes)
    arguments = (
        *(features, weights.records, weights.starts, weights.slots, target),
        np.uintp(0) if alive is None else alive,
        *(np.int32(number) for number in numbers),
        *(activation, clip),
    )
    threads = WARP * (block.warps + 1)
    shared_bytes = weights.stages * weights.stage_bytes
    launch("spmspm", _kernel(block, device), (grid,), (threads,), *arguments, shared_bytes=shared_bytes)
    return target


def to_tiles(matrix: Any, block: BlockShape) -> Any:
    """Lay dense rows out in tiles; rows that fill the last one up are zeros."""
    rows, width = matrix.shape
    tiles = cupy().empty((-(-rows // block.rows), width, block.rows), np.float32)
    return _transpose("rows_to_tiles", block, matrix, tiles, rows, width, tiles)


def from_tiles(tiles: Any, rows: int, block: BlockShape) -> Any:
    """Return the first `rows` rows as a row-major matrix."""
    width = tiles.shape[1]
    return _transpose("tiles_to_rows", block, tiles, cupy().empty((rows, width), np.float32), rows, width, tiles)


def _transpose(name: str, block: BlockShape, source: Any, target: Any, rows: int, width: int, tiles: Any) -> Any:
    if rows and width:
        kernel = _PROGRAMS[block].kernel(name)
        grid = (tiles.shape[0], -(-width // WARP))
        with part(name):
            kernel(grid, (WARP, 8), (source, target, np.int32(rows), np.int32(width)))
    return target
