"""Rows on the device, in any form: weighing their non-zeros, making dense ones, giving each input its row.

Rows can also lie in *tiles*, an array of shape (tiles, width, rows of a tile), whose tiles may be further apart than
they are long: see `rows/tiles.cu` and `rows/dense_tiles.cu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, RowMap, RowsLeft
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import arriving
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, blocks_for, index_type
from sparsenn.backends.cuda.sparse.row_slices import NOTHING
from sparsenn.backends.machine import GRID_ROWS, WARP
from sparsenn.formats import CSR, Array

THREADS = 256
ROWS_PER_BLOCK = THREADS // 32

TURNED_COLUMNS = 128  # of 32 rows, that a block of `rows_to_tiles` or `tiles_to_rows` transposes
PIECE = 2048  # entries that a block of `to_dense` takes at a time: 8 a thread
MOST_SPREADING = 1 << 16  # blocks of `spread`: enough for any device, and they go on in strides
LISTING_THREADS = 1024  # of the one block of `list_owned`

_COUNT = program("rows/count.cu", INDEX=INDEX_TYPES)
_TO_DENSE = program("rows/to_dense.cu", INDEX=INDEX_TYPES, PIECE=(PIECE,))
_SPREAD = program("rows/spread.cu", NUMBER=("float", "half_bits"))
_TILES = program("rows/tiles.cu", INDEX=INDEX_TYPES)
_DENSE_TILES = program("rows/dense_tiles.cu", ROW=("float", "half_bits"), TILED=("float", "half_bits"))


def weigh_rows(features: Features, weights: Array) -> tuple[Array, Array]:
    """Add up the int64 weights of each row's non-zeros (entries, in CSR); return (sums, non-zeros), int64."""
    cp = cupy()
    rows, width = features.shape
    sums, nonzeros = cp.empty(rows, np.int64), cp.empty(rows, np.int64)
    grid = (blocks_for(rows, ROWS_PER_BLOCK),)
    if isinstance(features, CSR):
        kernel = _COUNT.kernel("count_csr", INDEX=index_type(features.indices))
        source = features.indptr, features.indices
        launch("count", kernel, grid, (THREADS,), np.int32(rows), *source, weights, sums, nonzeros)
    else:
        kernel, sizes = _COUNT.kernel("count_dense"), (np.int32(rows), np.int32(width))
        launch("count", kernel, grid, (THREADS,), *sizes, features, weights, sums, nonzeros)
    return sums, nonzeros


def as_dense(features: Features) -> Array:
    """Return the features as a dense row-major matrix, float32."""
    if not isinstance(features, CSR):
        return features
    return to_dense(features, cupy().empty(features.shape, np.float32))


def to_dense(features: CSR, dense: Any) -> Array:
    """Write sparse rows to a dense row-major matrix of their shape, float32, and return it."""
    rows, width = features.shape
    cuda = cupy().cuda
    cuda.runtime.memsetAsync(dense.data.ptr, 0, dense.nbytes, cuda.get_current_stream().ptr)
    if features.nnz:
        kernel = _TO_DENSE.kernel("to_dense", INDEX=index_type(features.indices))
        entries = (features.indptr, features.indices, features.values, np.int32(features.iso))
        grid = (-(-width // PIECE), min(rows, GRID_ROWS))
        launch("to_dense", kernel, grid, (THREADS,), np.int64(rows), np.int64(width), *entries, dense)
    return dense


# ---- What becomes of the rows that layers leave -----------------------------------------------------------------


def spread(left: RowsLeft, expansion: Array | None) -> Array:
    """Return each input's outputs, (rows, outputs), a new array; inputs without a row have zeros. Waits for nothing.

    `expansion`, (outputs,) int32, is the column of `left.features` for each output; None for one column each.
    """
    (features, row_map), rows = _left(left), left.inputs
    outputs = features.shape[1] if expansion is None else expansion.size
    target: Array = cupy().empty((rows, outputs), features.dtype)
    columns = NOTHING if expansion is None else expansion
    grid = (min(MOST_SPREADING, -(-rows * outputs // (4 * THREADS))),)
    sizes = (np.int64(rows), np.int64(outputs))
    width = np.int32(features.shape[1])
    kernel = _SPREAD.kernel("spread", NUMBER=_number(features))
    launch("spread", kernel, grid, (THREADS,), features, width, row_map, columns, *sizes, target)
    return target


def active_rows(left: RowsLeft) -> Array:
    """Return whether the row of each input has a non-zero, (inputs,) bool on the device; waits for nothing."""
    (features, row_map), rows = _left(left), left.inputs
    active: Array = cupy().empty(rows, np.bool_)
    width, grid = np.int32(features.shape[1]), (blocks_for(rows, ROWS_PER_BLOCK),)
    kernel = _SPREAD.kernel("active_rows", NUMBER=_number(features))
    launch("active", kernel, grid, (THREADS,), features, width, row_map, np.int32(rows), active)
    return active


def _number(features: Array) -> str:
    return "half_bits" if features.dtype == np.float16 else "float"


def on_device(left: RowsLeft) -> RowsLeft:
    """Return what layers left, all on the device; maps of single launches, and no rows at all, come from the host."""
    cp, rows = cupy(), left.row_map.rows
    if not isinstance(left.features, np.ndarray) and not isinstance(rows, np.ndarray):
        return left
    features = left.features if isinstance(left.features, CSR) else cp.asarray(left.features)
    if isinstance(rows, np.ndarray):
        rows = cp.asarray(rows, np.int32)
    return left._replace(features=features, row_map=RowMap(rows))


def mapped_inputs(row_map: RowMap) -> tuple[RowMap, Callable[[], tuple[Array, int]]]:
    """Queue a search for the inputs that have a row in a map, int32 on the device.

    Returns a copy of the map, and a function that waits, and returns these inputs (int64, increasing) and the row
    count.
    """
    assert row_map.rows is not None
    inputs = row_map.rows.size
    cp, blocks, words = cupy(), blocks_for(inputs, THREADS), -(-inputs // WARP)
    copy, found = cp.empty(inputs, np.int32), cp.empty(words + blocks, np.uint32)
    listed = cp.zeros(2 + inputs, np.int32)  # all of it is copied to the host, listed or not
    arguments = (row_map.rows, np.int32(inputs), copy, found)
    launch("owned", _SPREAD.kernel("owned_rows"), (blocks,), (THREADS,), *arguments)
    sizes = np.int32(words), np.int32(blocks)
    launch("owned", _SPREAD.kernel("list_owned"), (1,), (LISTING_THREADS,), found, *sizes, listed)
    fetched = arriving(listed)

    def wait() -> tuple[Array, int]:
        numbers = fetched()
        count, used = numbers[:2].tolist()
        return numbers[2 : 2 + count].astype(np.int64), used

    return RowMap(copy), wait


def _left(left: RowsLeft) -> tuple[Any, Any]:
    left = on_device(left)
    return as_dense(left.features), NOTHING if left.row_map.rows is None else left.row_map.rows


# ---- In tiles ---------------------------------------------------------------------------------------------------


def tiles_from_csr(features: CSR, side: int, tiles: Any = None) -> Any:
    """Lay sparse rows out in tiles of `side` rows, a multiple of 32; rows that fill the last one up are zeros."""
    rows, width = features.shape
    cp = cupy()
    if tiles is None:
        tiles = cp.empty((-(-rows // side), width, side), np.float32)
    _clear(tiles)
    kernel = _TILES.kernel("scatter_rows", INDEX=index_type(features.indices))
    entries = (features.indptr, features.indices, features.values, np.int32(features.iso))
    sizes = (np.int32(rows), np.int32(room_of(tiles)), np.int32(side))
    launch("tiles_from_csr", kernel, (blocks_for(rows, ROWS_PER_BLOCK),), (THREADS,), *sizes, *entries, tiles)
    return tiles


def _clear(tiles: Any) -> None:
    if tiles.size:
        cuda, last = cupy().cuda, (tiles.shape[0] - 1) * tiles.strides[0] + tiles[0].nbytes
        cuda.runtime.memsetAsync(tiles.data.ptr, 0, last, cuda.get_current_stream().ptr)


def rows_to_tiles(matrix: Any, side: int, tiles: Any = None) -> Any:
    """Lay dense rows, float32 and contiguous, out in tiles; parameters and result as for `tiles_from_csr`."""
    rows, width = matrix.shape
    if tiles is None:
        tiles = cupy().empty((-(-rows // side), width, side), np.float32)
    return _turn("rows_to_tiles", tiles, (matrix, tiles, NOTHING), rows, matrix)


def largest_numbers(matrix: Any, exponents: Any, largest: Any, rows: int) -> None:
    """Queue a search for the largest number of each row, which scales the row to halves; missing rows are zeros.

    `exponents` and `largest`, (layers, at least `rows`) int32, take the first layer's scales and the bits of its
    largest numbers; `largest` of the other layers becomes 0.
    """
    layers, room = largest.shape
    kernel = _DENSE_TILES.kernel("largest_numbers", ROW=_number(matrix), TILED="half_bits")
    sizes = (*map(np.int64, (matrix.shape[0], rows, room)), np.int32(matrix.shape[1]), np.int32(layers))
    launch("largest", kernel, (blocks_for(rows, ROWS_PER_BLOCK),), (THREADS,), matrix, exponents, largest, *sizes)


def rows_to_half_tiles(matrix: Any, tiles: Any, exponents: Any) -> Any:
    """Lay dense rows out in tiles of halves, scaled as `exponents` says; return the tiles, float16."""
    return _turn("rows_to_tiles", tiles, (matrix, tiles, exponents), matrix.shape[0], matrix)


def tiles_to_rows(tiles: Any, rows: int) -> Any:
    """Return the first `rows` rows of tiles as a new row-major matrix of their type; there are as many as it takes."""
    matrix = cupy().empty((rows, tiles.shape[1]), tiles.dtype)
    return _turn("tiles_to_rows", tiles, (tiles, matrix), rows, matrix)


def _turn(name: str, tiles: Any, arrays: tuple[Any, ...], rows: int, matrix: Any) -> Any:
    count, width, side = tiles.shape
    if tiles.size:
        kernel = _DENSE_TILES.kernel(name, ROW=_number(matrix), TILED=_number(tiles))
        blocks = count * (side // WARP) * -(-width // TURNED_COLUMNS)
        sizes = map(np.int32, (rows, width, side, room_of(tiles)))
        launch(name, kernel, (blocks,), (THREADS,), *arrays, *sizes)
    return arrays[1]


def room_of(tiles: Any) -> int:
    """Return how many lines a tile has room for: as many as lie between the beginnings of two."""
    return int(tiles.strides[0] // tiles.strides[1]) if tiles.size else 0
