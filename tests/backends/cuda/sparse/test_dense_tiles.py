"""Dense rows into tiles and back: the kernels emulated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_emulation import emulated_kernel
from strategies import seeds

from sparsenn.backends.cuda.sparse.chunks.tiling import TILE_ROWS
from sparsenn.backends.cuda.sparse.rows import THREADS, TURNED_COLUMNS

LOWEST_EXPONENT, SCALED_EXPONENT = -96, 15
"""As in `sparse/row_scale.cuh`."""


@pytest.mark.parametrize("side", TILE_ROWS)
@settings(max_examples=25, deadline=None)
@given(seed=seeds, rows=st.integers(1, 300), width=st.integers(1, 300), further=st.integers(0, 9), aside=st.booleans())
def test_rows_become_tiles_and_rows_again(side, seed, rows, width, further, aside):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=rows * width + aside).astype(np.float32)[aside:].reshape(rows, width)
    room = width + further
    tiles = np.full((-(-rows // side), room, side), np.nan, np.float32)
    blocks = len(tiles) * (side // 32) * -(-width // TURNED_COLUMNS)
    sizes = tuple(map(np.int32, (rows, width, side, room)))
    into, back = (emulated_kernel("rows/dense_tiles.cu", name) for name in ("rows_to_tiles", "tiles_to_rows"))
    into.launch(blocks, THREADS, matrix, tiles, None, *sizes, seed=seed % 1000)
    lines = tiles.transpose(0, 2, 1).reshape(-1, room)
    assert np.array_equal(lines[:rows, :width], matrix)
    assert not lines[rows:, :width].any()
    assert np.isnan(lines[:, width:]).all()
    found = np.full(rows * width + 4, np.nan, np.float32)
    back.launch(blocks, THREADS, tiles, found, *sizes, seed=seed % 1000)
    assert np.array_equal(found[: matrix.size].reshape(matrix.shape), matrix)
    assert np.isnan(found[matrix.size :]).all()


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@settings(max_examples=25, deadline=None)
@given(seed=seeds, rows=st.integers(1, 200), width=st.integers(1, 300), side=st.sampled_from([64, 128]))
def test_rows_become_tiles_of_halves_scaled_by_their_largest_number(kind, seed, rows, width, side):
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-4, 4, (rows, 1))
    matrix = (rng.normal(size=(rows, width)) * sizes * (rng.random((rows, 1)) < 0.9)).astype(kind)
    count = -(-rows // side)
    tiles = np.full((count, width, side), np.nan, np.float16)
    exponents, largest = np.full((2, 3, count * side), 77, np.int32)
    number = "half_bits" if kind is np.float16 else "float"
    look, into, back = (
        emulated_kernel("rows/dense_tiles.cu", name, ROW=of, TILED="half_bits")
        for name, of in (("largest_numbers", number), ("rows_to_tiles", number), ("tiles_to_rows", "half_bits"))
    )
    look.launch(
        *(2, THREADS, matrix, exponents, largest, np.int64(rows), np.int64(count * side), np.int64(count * side)),
        *(np.int32(width), np.int32(3)),
    )
    right = np.zeros(count * side, np.float32)
    right[:rows] = np.abs(matrix.astype(np.float32)).max(axis=1)
    assert np.array_equal(largest[0].view(np.float32), right)
    assert not largest[1:].any()
    assert np.array_equal(exponents[0], np.where(right > 0, np.frexp(right)[1], LOWEST_EXPONENT))
    blocks = count * (side // 32) * -(-width // TURNED_COLUMNS)
    cut = tuple(map(np.int32, (rows, width, side, width)))
    into.launch(blocks, THREADS, matrix, tiles, exponents, *cut, seed=seed % 1000)
    lines = tiles.transpose(0, 2, 1).reshape(-1, width)
    scale = np.ldexp(np.float32(1), SCALED_EXPONENT - exponents[0, :rows, None])
    assert np.array_equal(lines[:rows], (matrix.astype(np.float32) * scale).astype(np.float16))
    assert not lines[rows:].any()
    found = np.full((rows, width), np.nan, np.float16)
    back.launch(blocks, THREADS, tiles, found, *cut, seed=seed % 1000)
    assert np.array_equal(found, lines[:rows])
