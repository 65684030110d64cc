"""The rungs of spmspm on a GPU: launching each kernel and turning what it leaves into sorted CSR.

Every rung multiplies all rows that it is given; no row is skipped. The kernels up to `warp_vote_privatized` leave
COO in any order, which the engine's conversion makes CSR of, so that rungs differ in their product alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.chains import SAME_ROWS, Features, LayerCounts, RowMap
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.runtime.memory import free_bytes, within_memory
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, blocks_for, compress, histogram, index_type, scan
from sparsenn.backends.cuda.sparse.rows import ROWS_PER_BLOCK, THREADS, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.kernel_records import SparseKernel, StepInput, StepOutput
from sparsenn.formats import CSC, CSR, Array, index_dtype
from sparsenn.formats.compressed import Compressed

_GATHER = program("studies/spmspm/kernels/gather.cu", INDEX=INDEX_TYPES)
_FROM_DENSE = program("studies/spmspm/kernels/from_dense.cu", INDEX=INDEX_TYPES)


def gather_pieces(starts: Array, offsets: Array, indices: Array, values: Array, iso: bool) -> tuple[Array, Array]:
    """Copy ranges of a list of entries from `starts` to `offsets`, (ranges + 1,); with `iso`, the value stays."""
    cp = cupy()
    total = int(offsets[-1])
    gathered, moved = cp.empty(total, indices.dtype), values if iso else cp.empty(total, np.float32)
    if total:
        kernel = _GATHER.kernel("gather", INDEX=index_type(indices))
        grid = (blocks_for(starts.size, ROWS_PER_BLOCK),)
        arguments = (np.int64(starts.size), starts, offsets, indices, values, np.int32(iso), gathered, moved)
        launch("gather", kernel, grid, (THREADS,), *arguments)
    return gathered, moved


def _take_rows(features: Features, rows: Array) -> Features:
    """Return some rows, by a device array of int64."""
    if not isinstance(features, CSR):
        return cupy().take(features, rows, axis=0)
    starts = features.indptr[rows]
    offsets = scan(features.indptr[rows + 1] - starts)
    entries = gather_pieces(starts, offsets, features.indices, features.values, features.iso)
    return CSR((rows.size, features.shape[1]), offsets, *entries)


def as_csr(features: Features) -> CSR:
    """Return the features as CSR with sorted rows."""
    if isinstance(features, CSR):
        return features
    cp = cupy()
    rows, width = features.shape
    _, nonzeros = weigh_rows(features, cp.zeros(width, np.int64))
    offsets = scan(nonzeros)
    total = int(offsets[-1])
    indices, values = cp.empty(total, index_dtype(width)), cp.empty(total, np.float32)
    if total:
        kernel = _FROM_DENSE.kernel("from_dense", INDEX=index_type(indices))
        grid = (blocks_for(rows, ROWS_PER_BLOCK),)
        arguments = (np.int32(rows), np.int32(width), features, offsets, indices, values)
        launch("from_dense", kernel, grid, (THREADS,), *arguments)
    return CSR((rows, width), offsets, indices, values)


def csc_to_csr(matrix: CSC) -> CSR:
    """Convert to CSR with sorted rows."""
    cp = cupy()
    entries = cp.arange(matrix.nnz, dtype=np.int64)
    columns = (cp.searchsorted(matrix.indptr, entries, side="right") - 1).astype(index_dtype(matrix.shape[1]))
    return compress(CSR, matrix.shape, matrix.indices, columns, matrix.values)


def weights_by_row(layer: DeviceLayer) -> CSR:
    """Return a layer's weights by input, converted on first use."""
    return cache_on_device(layer, "weights by row", lambda: csc_to_csr(layer.weights))


def _degrees(layer: DeviceLayer) -> Array:
    """Return how many weights each input has, (inputs,) int64, counted on first use."""
    return cache_on_device(layer, "degrees", lambda: histogram(layer.weights.indices, layer.inputs))


def finish(step: StepInput, layer: DeviceLayer, kernel: str, outputs: Features) -> StepOutput:
    """Count one layer's outputs and drop the rows that are zero, if the step allows it."""
    cp = cupy()
    sums, nonzeros = weigh_rows(outputs, layer.copies)
    edges, _ = weigh_rows(step.features, _degrees(layer))
    multiplicity = cp.asarray(step.multiplicity, dtype=np.int64)
    alive = nonzeros > 0
    counts = LayerCounts(
        kernel=kernel,
        rows=outputs.shape[0],
        active_inputs=int(multiplicity[alive].sum()),
        nonzeros=int((sums * multiplicity).sum()),
        performed_edges=int(edges.sum()),
    )
    row_map = SAME_ROWS
    if step.first >= step.droppable_from:
        survivors = cp.asnumpy(cp.flatnonzero(alive)).astype(np.int64)
        row_map = RowMap.of_survivors(survivors, outputs.shape[0])
        if survivors.size < outputs.shape[0]:
            outputs = _take_rows(outputs, cp.asarray(survivors))
    return StepOutput(outputs, row_map, (counts,))


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

# row_per_warp: 8 sums of 4 KiB are 32 KiB a block, so that a multiprocessor has 7 blocks, or 56 warps.
WARPS = 8  # of a block
TILE = 1024  # sums of a warp

# tile: 64 columns share the reading of a panel of 32 rows by 256 inputs, 32 KiB.
TILE_WARPS = 8  # of a block
TILE_COLUMNS = 8  # of a warp
TILE_PANEL = 256  # inputs of a panel

_KERNELS = "studies/spmspm/kernels"
_program = partial(program, IN_INDEX=INDEX_TYPES, OUT_INDEX=INDEX_TYPES)
_NAIVE, _WARP_VOTE = (_program(f"{_KERNELS}/{name}.cu") for name in ("01_naive", "02_warp_vote"))
_COARSENED, _VOTE_COARSENED = (
    _program(f"{_KERNELS}/{name}.cu", ROWS_PER_THREAD=ROWS_PER_THREAD)
    for name in ("03_coarsened", "05_warp_vote_coarsened")
)
_PRIVATIZED, _VOTE_PRIVATIZED = (
    _program(f"{_KERNELS}/{name}.cu", BLOCK=(BLOCK,)) for name in ("04_privatized", "06_warp_vote_privatized")
)
_ROW_PER_WARP = _program(f"{_KERNELS}/07_row_per_warp.cu", WARPS=(WARPS,), TILE=(TILE,))
_TILE = program(
    f"{_KERNELS}/08_tile.cu",
    IN_INDEX=INDEX_TYPES,
    WARPS=(TILE_WARPS,),
    COLUMNS=(TILE_COLUMNS,),
    PANEL=(TILE_PANEL,),
)

Multiply = Callable[[DeviceLayer, CSR, int, int], CSR]
"""(layer, features, first row, last row) to the outputs of those rows."""


# ---- Running a layer --------------------------------------------------------------------------------------------


def _by_chunks(kernel: str, multiply: Multiply, step: StepInput, rows_per_block: int = BLOCK) -> StepOutput:
    """Multiply as many rows at a time as memory and the grid allow, and join the parts."""
    layer: DeviceLayer = step.stack.layers[step.first]
    with (
        cupy().cuda.Device(step.stack.device),
        _memory(step, layer, BYTES_PER_ELEMENT * layer.outputs),
    ):
        with section("total"):
            features = as_csr(step.features)
            chunks = _chunks(layer, features.shape[0], rows_per_block)
            outputs = _joined([multiply(layer, features, *chunk) for chunk in chunks])
        return finish(step, layer, kernel, outputs)


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


def _multiply_elements(
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
    matrices = (*_sparse(features, first), *_sparse(weights_by_row(layer)))
    output = (count, starts, lengths, out_columns, out_values)
    launch("spmspm", kernel, (-(-pieces // WARPS),), (32 * WARPS,), *sizes, *matrices, *layer.epilogue, *output)
    offsets = scan(lengths)
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


def _launch_tile(step: StepInput) -> StepOutput:
    """Run one layer, 32 rows along the lanes. The output is dense."""
    layer: DeviceLayer = step.stack.layers[step.first]
    with cupy().cuda.Device(step.stack.device), _memory(step, layer, 4 * layer.outputs):
        with section("total"):
            outputs = _multiply_tile(layer, step.features)
        return finish(step, layer, "tile", outputs)


# ---- The rungs --------------------------------------------------------------------------------------------------


def _rung(name: str, summary: str, launch_rung: Callable[[StepInput], StepOutput]) -> SparseKernel:
    return SparseKernel(name=name, device="cuda", summary=summary, launch=launch_rung, needs=(ANY_GPU,))


def _by_element(name: str, summary: str, source: Program) -> SparseKernel:
    """Return a rung whose threads compute an element each."""
    multiply = partial(_multiply_elements, source, {}, (BLOCK, BLOCK), 1)
    return _rung(name, summary, partial(_by_chunks, name, multiply))


def _coarse(name: str, summary: str, source: Program, rows: int = ROWS_PER_THREAD[0]) -> SparseKernel:
    """Return a rung whose threads compute several rows of one column each."""
    multiply = partial(_multiply_elements, source, {"ROWS_PER_THREAD": rows}, (COARSE_THREADS, 1), rows)
    return _rung(name, summary, partial(_by_chunks, name, multiply, rows_per_block=rows))


_coarsened = partial(_coarse, "coarsened", "as naive; a thread computes many rows of one column", _COARSENED)
_vote_coarsened = partial(_coarse, "warp_vote_coarsened", "warp_vote and coarsened together", _VOTE_COARSENED)

KERNELS = (
    _by_element("naive", "one thread per output, by merge-intersection, one atomic addition per non-zero", _NAIVE),
    _by_element("warp_vote", "as naive; a warp counts its non-zeros by vote", _WARP_VOTE),
    _coarsened(),
    _by_element("privatized", "as naive; a block collects in shared memory and commits once", _PRIVATIZED),
    _vote_coarsened(),
    _by_element("warp_vote_privatized", "warp_vote and privatized together", _VOTE_PRIVATIZED),
    _rung(
        "row_per_warp",
        "one warp per row: only non-zeros, scattered into sums in shared memory",
        partial(_by_chunks, "row_per_warp", _multiply_by_row),
    ),
    _rung("tile", "32 rows along the lanes, gathering from a dense tile in shared memory", _launch_tile),
)
"""From plain to fast."""

VARIANTS = {
    rung.name: tuple(
        replace(coarse(rows), name=f"{rung.name}, rows a thread {rows}") for rows in sorted(ROWS_PER_THREAD)
    )
    for coarse in (_coarsened, _vote_coarsened)
    for rung in [coarse()]
}
"""The coarsened rungs, by name, with each number of rows a thread."""
