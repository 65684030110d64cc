"""Dense rows into tiles and back: the kernels emulated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_emulation import emulated_kernel
from strategies import seeds

from sparsenn.backends.cuda.sparse.rows import THREADS, TURNED_COLUMNS
from sparsenn.backends.cuda.sparse.tiling import TILE_ROWS


@pytest.mark.parametrize("side", TILE_ROWS)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, rows=st.integers(1, 300), width=st.integers(1, 300), aside=st.booleans())
def test_rows_become_tiles_and_rows_again(side, seed, rows, width, aside):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=rows * width + aside).astype(np.float32)[aside:].reshape(rows, width)
    tiles = np.full((-(-rows // side), width, side), np.nan, np.float32)
    blocks = len(tiles) * (side // 32) * -(-width // TURNED_COLUMNS)
    sizes = np.int32(rows), np.int32(width), np.int32(side)
    into, back = (emulated_kernel("rows/dense_tiles.cu", name) for name in ("rows_to_tiles", "tiles_to_rows"))
    into.launch(blocks, THREADS, matrix, tiles, *sizes, seed=seed % 1000)
    lines = tiles.transpose(0, 2, 1).reshape(-1, width)
    assert np.array_equal(lines[:rows], matrix)
    assert not lines[rows:].any()
    found = np.full(rows * width + 4, np.nan, np.float32)
    back.launch(blocks, THREADS, tiles, found, *sizes, seed=seed % 1000)
    assert np.array_equal(found[: matrix.size].reshape(matrix.shape), matrix)
    assert np.isnan(found[matrix.size :]).all()
