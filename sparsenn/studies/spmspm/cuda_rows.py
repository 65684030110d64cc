"""What the rungs of spmspm on a GPU share: other forms of rows and weights, and closing a layer."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, blocks_for, compress, histogram, index_type, scan
from sparsenn.backends.cuda.sparse.rows import ROWS_PER_BLOCK, THREADS, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.kernel_records import StepInput, StepOutput
from sparsenn.backends.row_map import SAME_ROWS, RowMap
from sparsenn.formats import CSC, CSR, Array, index_dtype

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
        taken: Array = cupy().take(features, rows, axis=0)
        return taken
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
