"""Rows on a GPU: dense ones of sparse ones, and rows in tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import csr_matrices

from sparsenn import backends
from sparsenn.backends.chains import RowMap, RowsLeft
from sparsenn.backends.cuda.sparse.chunks.tiling import TILE_ROWS
from sparsenn.backends.cuda.sparse.rows import active_rows, rows_to_tiles, spread, tiles_from_csr, tiles_to_rows
from sparsenn.formats import from_dense

pytestmark = pytest.mark.gpu


@pytest.fixture
def backend():
    return backends.backend_for("cuda")


@pytest.mark.parametrize("shape", [(3, 70_001), (70_000, 3), (5, 2048), (4, 2049), (1, 1)])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_sparse_rows_become_dense_ones(backend, shape, density, rng):
    matrix = np.round(rng.normal(size=shape), 2).astype(np.float32) * (rng.random(shape) < density)
    for rows in (from_dense(matrix), from_dense((matrix != 0).astype(np.float32))):
        dense = backend.fetch(backend.as_dense(backend.place(rows)))
        assert dense.dtype == np.float32
        assert np.array_equal(dense, rows.to_scipy().toarray())


@given(matrix=csr_matrices(), side=st.sampled_from(TILE_ROWS), further=st.integers(0, 3))
def test_sparse_rows_into_tiles(matrix, side, further, cupy):
    rows, width = matrix.shape
    placed = backends.backend_for("cuda").place(matrix)
    room = cupy.full((-(-rows // side), width + further, side), cupy.nan, np.float32)
    tiles = tiles_from_csr(placed, side, room[:, :width])
    assert cupy.isnan(room[-1:, width:]).all()  # those between two tiles may become zeros
    whole = cupy.asnumpy(tiles).transpose(0, 2, 1).reshape(tiles.shape[0] * side, matrix.shape[1])
    full = matrix.to_scipy().toarray()
    assert np.array_equal(whole[:rows], full)
    assert not whole[rows:].any()


@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (257, 65), (70, 128), (300, 516), (0, 5), (5, 0)])
@pytest.mark.parametrize("side", TILE_ROWS)
def test_dense_rows_into_tiles_and_back(shape, side, rng, cupy):
    matrix = rng.normal(size=shape).astype(np.float32)
    for first in range(2):  # memory that begins at a multiple of 16 bytes, and elsewhere
        rows = cupy.empty(matrix.size + first, np.float32)[first:].reshape(shape)
        rows[...] = cupy.asarray(matrix)
        room = cupy.full((-(-shape[0] // side), shape[1] + 2 * first, side), cupy.nan, np.float32)
        tiles = rows_to_tiles(rows, side, room[:, : shape[1]])
        assert cupy.isnan(room[:, shape[1] :]).all()
        whole = cupy.asnumpy(tiles).transpose(0, 2, 1).reshape(tiles.shape[0] * side, shape[1])
        assert np.array_equal(whole[: shape[0]], matrix)
        assert not whole[shape[0] :].any()
        assert np.array_equal(cupy.asnumpy(tiles_to_rows(tiles, shape[0])), matrix)


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (700, 70), (1025, 33), (5, 4096)])
@pytest.mark.parametrize("owned", ["device", "host", None])
@pytest.mark.parametrize("expanded", [True, False])
def test_outputs_of_all_inputs_from_the_rows_that_are_left(shape, owned, expanded, rng, cupy):
    rows, width = shape
    left = rng.normal(size=(rows if owned is None else max(1, rows // 3), width)).astype(np.float32)
    left[rng.random(left.shape[0]) < 0.3] = 0
    owner = rng.integers(-1, left.shape[0], rows) if owned else None
    columns = rng.integers(0, width, 3 * width + 1).astype(np.int32) if expanded else None
    right = left if owner is None else np.where(owner[:, None] < 0, np.float32(0), left[owner])
    given_left = RowsLeft(cupy.asarray(left), RowMap(cupy.asarray(owner, np.int32) if owned == "device" else owner))
    found = cupy.asnumpy(spread(given_left, None if columns is None else cupy.asarray(columns)))
    assert np.array_equal(found.view(np.int32), (right if columns is None else right[:, columns]).view(np.int32))
    assert np.array_equal(cupy.asnumpy(active_rows(given_left)), right.any(axis=1))
