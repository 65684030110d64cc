"""The rungs of spmspm: launching each kernel and turning what it leaves into sorted CSR.

Every rung multiplies all rows that it is given; no row is skipped. The kernels up to `warp_vote_privatized` leave
COO in any order, which the fastest conversion kernels make CSR of, so that rungs differ in their product alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.base import Features, LayerCounts, StepInput, StepOutput
from sparsenn.backends.cuda.loader import Program, cupy, program
from sparsenn.backends.cuda.memory import free_bytes, within_memory
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.backends.cuda.sparse.chunks import (
    ChunkedWeights,
    chunk_weights,
    from_tiles,
    gather_chunks,
    shared_tilings,
    to_tiles,
)
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, compress, index_type, scan_two_level
from sparsenn.backends.cuda.sparse.rows import (
    as_csr,
    count_tiles,
    gather_pieces,
    take_from_tiles,
    take_rows,
    tiles_from_csr,
    weigh_rows,
)
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.cuda.sparse.tiling import Tiling, device_limits
from sparsenn.formats import CSR, Array, index_dtype
from sparsenn.formats.compressed import Compressed

__all__ = [
    "ROWS_PER_THREAD",
    "launch_chunks",
    "launch_coarsened",
    "launch_naive",
    "launch_privatized",
    "launch_row_per_warp",
    "launch_tile",
    "launch_warp_vote",
    "launch_warp_vote_coarsened",
    "launch_warp_vote_privatized",
]

ROWS_PER_THREAD = (100, 1, 10, 25, 50, 75, 125, 150, 200)
"""How far threads may be coarsened; the first is the default."""

BLOCK = 32
COARSE_THREADS = 64
"""Columns of a block of the coarsened rungs: small, because coarsening leaves few threads to spread."""

MOST_ELEMENTS = 1 << 28
"""Outputs computed at a time: their places take 2.7 GB, and are counted in 32 bits."""

MOST_BLOCKS_DOWN = 65_535
"""A grid has no more blocks along its second axis, which is that of the rows."""

BYTES_PER_ELEMENT = 32
"""Row, column and value of an output before conversion, the same after it, and what the conversion takes."""

WARPS, TILE = 8, 1024
"""row_per_warp: 8 sums of 4 KiB are 32 KiB a block, which leaves room for 7 blocks or 56 warps a multiprocessor."""

TILE_WARPS, TILE_COLUMNS, TILE_PANEL = 8, 8, 256
"""tile: 64 columns share the reading of a panel of 32 rows by 256 inputs, 32 KiB."""

_TYPES = {"IN_INDEX": INDEX_TYPES, "OUT_INDEX": INDEX_TYPES}
_NAIVE = program("spmspm/01_naive.cu", **_TYPES)
_WARP_VOTE = program("spmspm/02_warp_vote.cu", **_TYPES)
_COARSENED = program("spmspm/03_coarsened.cu", **_TYPES, ROWS_PER_THREAD=ROWS_PER_THREAD)
_PRIVATIZED = program("spmspm/04_privatized.cu", **_TYPES, BLOCK=(BLOCK,))
_VOTE_COARSENED = program("spmspm/05_warp_vote_coarsened.cu", **_TYPES, ROWS_PER_THREAD=ROWS_PER_THREAD)
_VOTE_PRIVATIZED = program("spmspm/06_warp_vote_privatized.cu", **_TYPES, BLOCK=(BLOCK,))
_ROW_PER_WARP = program("spmspm/07_row_per_warp.cu", **_TYPES, WARPS=(WARPS,), TILE=(TILE,))
_TILE = program(
    "spmspm/08_tile.cu",
    IN_INDEX=INDEX_TYPES,
    WARPS=(TILE_WARPS,),
    COLUMNS=(TILE_COLUMNS,),
    PANEL=(TILE_PANEL,),
)

Multiply = Callable[[DeviceLayer, CSR, int, int], CSR]
"""(layer, features, first row, last row) to the outputs of those rows."""


def launch_naive(step: StepInput) -> StepOutput:
    """Run one layer, a thread for each element of the output."""
    return _by_chunks(step, "naive", partial(_coo_rung, _NAIVE, {}, (BLOCK, BLOCK), 1))


def launch_warp_vote(step: StepInput) -> StepOutput:
    """Run one layer; a warp counts its non-zeros by vote."""
    return _by_chunks(step, "warp_vote", partial(_coo_rung, _WARP_VOTE, {}, (BLOCK, BLOCK), 1))


def launch_coarsened(step: StepInput, rows_per_thread: int = ROWS_PER_THREAD[0]) -> StepOutput:
    """Run one layer; a thread computes many rows of one column."""
    return _by_chunks(step, "coarsened", _coarse_rung(_COARSENED, rows_per_thread), rows_per_thread)


def launch_privatized(step: StepInput) -> StepOutput:
    """Run one layer; a block collects its results in shared memory."""
    return _by_chunks(step, "privatized", partial(_coo_rung, _PRIVATIZED, {}, (BLOCK, BLOCK), 1))


def launch_warp_vote_coarsened(step: StepInput, rows_per_thread: int = ROWS_PER_THREAD[0]) -> StepOutput:
    """Run one layer; many rows a thread, non-zeros counted by vote."""
    return _by_chunks(step, "warp_vote_coarsened", _coarse_rung(_VOTE_COARSENED, rows_per_thread), rows_per_thread)


def launch_warp_vote_privatized(step: StepInput) -> StepOutput:
    """Run one layer; results collected in shared memory, counted there by vote."""
    return _by_chunks(step, "warp_vote_privatized", partial(_coo_rung, _VOTE_PRIVATIZED, {}, (BLOCK, BLOCK), 1))


def launch_row_per_warp(step: StepInput) -> StepOutput:
    """Run one layer; a warp scatters the non-zeros of a row through the rows of the weights."""
    return _by_chunks(step, "row_per_warp", _multiply_by_row)


def launch_tile(step: StepInput) -> StepOutput:
    """Run one layer; 32 rows along the lanes, gathering from a dense tile. The output is dense."""
    layer: DeviceLayer = step.stack.layers[step.first]
    with cupy().cuda.Device(step.stack.device), _memory(step, layer, 4 * layer.outputs):
        with part("total"):
            outputs = _multiply_tile(layer, step.features)
        return _finish(step, layer, "tile", outputs)


def launch_chunks(step: StepInput) -> StepOutput:
    """Run all layers of the step; inputs streamed through shared memory, the sums of many outputs in registers.

    Rows lie in tiles from the first layer to the last. All are computed in every layer, whether they have died or not;
    once weights are laid out, the host waits for nothing until the last layer has been queued. Dense output.
    """
    cp = cupy()
    layers: Sequence[DeviceLayer] = step.stack.layers[step.first : step.last]
    rows = step.features.shape[0]
    with cp.cuda.Device(step.stack.device), within_memory(_named(layers), rows, _tiled_bytes(layers)):
        multiplicity = cp.asarray(step.multiplicity, dtype=np.int64)
        counters = cp.zeros((len(layers), 3), np.int64)  # as in `kernels/rows/tiles.cu`
        counters[0, 2] = weigh_rows(step.features, layers[0].degrees)[0].sum()
        with part("total"):
            weights = _laid_out(layers, rows)
            block = weights[0].tiling.block
            tiles = _in_tiles(step.features, weights[0])
        for number, layer in enumerate(layers):
            alive = cp.zeros(tiles.shape[0] * block.rows, np.uint8)
            with part("total"):
                tiles = gather_chunks(weights[number], layer.activation, layer.clip, tiles, alive)
            following = layers[number + 1].degrees if number + 1 < len(layers) else None
            count_tiles(tiles, alive, multiplicity, layer.copies, following, counters[number:])
        kept, outputs = np.arange(rows), None
        if step.last - 1 >= step.droppable_from:
            living = cp.flatnonzero(alive[:rows]).astype(np.int64)
            if living.size < rows:
                kept, outputs = cp.asnumpy(living), take_from_tiles(tiles, living)
        if outputs is None:
            with part("total"):
                outputs = from_tiles(tiles, rows, weights[-1].tiling.block)
        return StepOutput(outputs, kept, tuple(LayerCounts("chunks", rows, *line) for line in counters.get().tolist()))


def _by_chunks(step: StepInput, kernel: str, multiply: Multiply, rows_per_block: int = BLOCK) -> StepOutput:
    """Multiply as many rows at a time as memory and the grid allow, and join the parts."""
    layer: DeviceLayer = step.stack.layers[step.first]
    with (
        cupy().cuda.Device(step.stack.device),
        _memory(step, layer, BYTES_PER_ELEMENT * layer.outputs),
    ):
        with part("total"):
            features = as_csr(step.features)
            chunks = _chunks(layer, features.shape[0], rows_per_block)
            outputs = _joined([multiply(layer, features, *chunk) for chunk in chunks])
        return _finish(step, layer, kernel, outputs)


def _memory(step: StepInput, layer: DeviceLayer, bytes_per_row: int) -> Any:
    rows = step.features.shape[0]
    return within_memory(f"a layer of {layer.inputs:,} x {layer.outputs:,}", rows, bytes_per_row + 8 * layer.inputs)


def _chunks(layer: DeviceLayer, rows: int, rows_per_block: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) ranges of rows whose outputs fit a quarter of the free memory; an empty one for no rows."""
    elements = min(MOST_ELEMENTS, free_bytes() // (4 * BYTES_PER_ELEMENT))
    size = min(MOST_BLOCKS_DOWN * rows_per_block, max(1, elements // max(1, layer.outputs)))
    for first in range(0, max(1, rows), size):
        yield first, min(rows, first + size)


def _joined(parts: list[CSR]) -> CSR:
    """Stack matrices of one width on top of each other."""
    if len(parts) == 1:
        return parts[0]
    cp = cupy()
    starts = np.cumsum([0, *(block.nnz for block in parts)])
    offsets = [block.indptr[:-1] + int(start) for block, start in zip(parts, starts, strict=False)]
    return CSR(
        (sum(block.shape[0] for block in parts), parts[0].shape[1]),
        cp.concatenate([*offsets, cp.asarray(starts[-1:], dtype=np.int64)]),
        cp.concatenate([block.indices for block in parts]),
        cp.concatenate([block.expanded_values() for block in parts]),
    )


def _sparse(matrix: Compressed, first: int = 0) -> tuple[Any, ...]:
    """Return the kernels' arguments for a sparse matrix, from group `first` on."""
    return matrix.indptr[first:], matrix.indices, matrix.values, np.int64(not matrix.iso)


def _types(layer: DeviceLayer) -> dict[str, str]:
    outputs = INDEX_TYPES[0] if index_dtype(layer.outputs) == np.uint16 else INDEX_TYPES[1]
    return {"IN_INDEX": index_type(layer.weights.indices), "OUT_INDEX": outputs}


def _coarse_rung(source: Program, rows_per_thread: int) -> Multiply:
    defines = {"ROWS_PER_THREAD": rows_per_thread}
    return partial(_coo_rung, source, defines, (COARSE_THREADS, 1), rows_per_thread)


def _coo_rung(
    source: Program,
    defines: dict[str, int],
    block: tuple[int, int],
    rows_per_thread: int,
    layer: DeviceLayer,
    features: CSR,
    first: int,
    last: int,
) -> CSR:
    """Multiply rows `first` to `last` into COO in any order, and convert that to CSR."""
    cp = cupy()
    rows, columns = last - first, layer.outputs
    capacity = rows * columns
    count = cp.zeros(1, np.uint32)
    out_rows = cp.empty(capacity, np.int32)
    out_columns = cp.empty(capacity, index_dtype(columns))
    out_values = cp.empty(capacity, np.float32)
    if capacity:
        kernel = source.kernel("spmspm", **_types(layer), **defines)
        grid = (-(-columns // block[0]), -(-rows // (block[1] * rows_per_thread)))
        matrices = (*_sparse(features, first), *_sparse(layer.weights))
        output = (count, out_rows, out_columns, out_values)
        launch("spmspm", kernel, grid, block, np.int32(rows), np.int32(columns), *matrices, *layer.epilogue, *output)
    found = int(count[0])
    return compress(CSR, (rows, columns), out_rows[:found], out_columns[:found], out_values[:found])


def _multiply_by_row(layer: DeviceLayer, features: CSR, first: int, last: int) -> CSR:
    """Multiply rows `first` to `last` by scattering, and bring the pieces that the warps leave into order."""
    cp = cupy()
    rows, columns = last - first, layer.outputs
    tiles = -(-columns // TILE)
    pieces = rows * tiles
    if not pieces:
        return CSR(
            (rows, columns), cp.zeros(rows + 1, np.int64), cp.empty(0, index_dtype(columns)), cp.empty(0, np.float32)
        )
    count = cp.zeros(1, np.uint32)
    starts, lengths = cp.empty(pieces, np.int64), cp.empty(pieces, np.int64)
    out_columns, out_values = cp.empty(rows * columns, index_dtype(columns)), cp.empty(rows * columns, np.float32)
    kernel = _ROW_PER_WARP.kernel("spmspm", **_types(layer))
    sizes = (np.int32(rows), np.int32(columns), np.int32(tiles))
    matrices = (*_sparse(features, first), *_sparse(layer.by_row))
    output = (count, starts, lengths, out_columns, out_values)
    launch("spmspm", kernel, (-(-pieces // WARPS),), (32 * WARPS,), *sizes, *matrices, *layer.epilogue, *output)
    offsets = scan_two_level(lengths)
    indices, values = gather_pieces(starts, offsets, out_columns, out_values, iso=False)
    return CSR((rows, columns), cp.ascontiguousarray(offsets[::tiles]), indices, values)


def _multiply_tile(layer: DeviceLayer, features: Features) -> Array:
    """Multiply all rows, CSR or dense, into a dense matrix."""
    cp = cupy()
    rows, inputs = features.shape
    outputs: Array = cp.empty((rows, layer.outputs), np.float32)
    types = {"IN_INDEX": index_type(layer.weights.indices)}
    kernel = _TILE.kernel("spmspm_csr" if isinstance(features, CSR) else "spmspm_dense", **types)
    columns = -(-layer.outputs // (TILE_WARPS * TILE_COLUMNS))
    for first in range(0, rows, 32 * MOST_BLOCKS_DOWN):
        last = min(rows, first + 32 * MOST_BLOCKS_DOWN)
        sizes = (np.int32(last - first), np.int32(inputs), np.int32(layer.outputs))
        source = _sparse(features, first) if isinstance(features, CSR) else (features[first:last],)
        arguments = (*sizes, *source, *_sparse(layer.weights), *layer.epilogue, outputs[first:last])
        launch("spmspm", kernel, (columns, -(-(last - first) // 32)), (32 * TILE_WARPS,), *arguments)
    return outputs


_chunked: WeakKeyDictionary[DeviceLayer, dict[Tiling, ChunkedWeights]] = WeakKeyDictionary()
"""Weights laid out for `chunks`; a layer keeps those of every tiling it was run with."""


def _laid_out(layers: Sequence[DeviceLayer], rows: int) -> list[ChunkedWeights]:
    """Return the layers' weights in chunks, for tiles of equally many rows; those not laid out so far are now."""
    limits = device_limits(cupy().cuda.runtime.getDevice())
    shapes = [(layer.inputs, layer.outputs, layer.weights.nnz) for layer in layers]
    found = []
    for layer, tiling in zip(layers, shared_tilings(rows, shapes, limits), strict=True):
        made = _chunked.setdefault(layer, {})
        if tiling not in made:
            made[tiling] = chunk_weights(layer.weights, layer.bias, tiling, limits)
        found.append(made[tiling])
    return found


def _in_tiles(features: Features, weights: ChunkedWeights) -> Any:
    """Lay rows of either form out in tiles for a layer."""
    block = weights.tiling.block
    return tiles_from_csr(features, block.rows) if isinstance(features, CSR) else to_tiles(features, block)


def _named(layers: Sequence[DeviceLayer]) -> str:
    """Say in words which layers a launch takes."""
    if len(layers) == 1:
        return f"a layer of {layers[0].inputs:,} x {layers[0].outputs:,}"
    return f"{len(layers):,} layers of up to {max(layer.outputs for layer in layers):,} outputs"


def _tiled_bytes(layers: Sequence[DeviceLayer]) -> int:
    """Return what a row takes: the widest two neighbours among its layers in tiles, and the result row-major."""
    widths = [layers[0].inputs, *(layer.outputs for layer in layers)]
    return 4 * (max(before + after for before, after in pairwise(widths)) + widths[-1])


def _finish(step: StepInput, layer: DeviceLayer, kernel: str, outputs: Features) -> StepOutput:
    """Count one layer's outputs and drop the rows that are zero, if the step allows it."""
    cp = cupy()
    sums, nonzeros = weigh_rows(outputs, layer.copies)
    edges, _ = weigh_rows(step.features, layer.degrees)
    multiplicity = cp.asarray(step.multiplicity, dtype=np.int64)
    alive = nonzeros > 0
    counts = LayerCounts(
        kernel=kernel,
        rows=outputs.shape[0],
        active_inputs=int(multiplicity[alive].sum()),
        nonzeros=int((sums * multiplicity).sum()),
        performed_edges=int(edges.sum()),
    )
    kept: Array = np.arange(outputs.shape[0])
    if step.first >= step.droppable_from:
        kept = cp.asnumpy(cp.flatnonzero(alive)).astype(np.int64)
        if kept.size < outputs.shape[0]:
            outputs = take_rows(outputs, cp.asarray(kept))
    return StepOutput(outputs, kept, (counts,))
