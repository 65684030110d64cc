"""Dense products whose sums have one order, whatever is multiplied beside them: for `reproducible` plans.

Each output begins at zero, and has its products added by increasing input, each by a fused multiply-add where the
processor has such. How rows and columns are cut, for caches and for threads, changes none of that.
"""

from __future__ import annotations

import numpy as np

from sparsenn.formats import Array
from sparsenn.jit import compiled
from sparsenn.workers import chunks, map_threads, thread_count

__all__ = ["multiply"]

COLUMNS, DEPTH = 256, 64
"""Columns and inputs whose weights, 64 KiB, all rows meet before the next ones: they stay in a second-level cache."""

WORTH = 1 << 18
"""Multiply-adds that are worth a thread."""


def multiply(rows: Array, weights: Array, sums: Array) -> None:
    """Compute a product, on as many threads as pay.

    Parameters
    ----------
    rows : (rows, inputs) float32.
    weights : (inputs, outputs) float32.
    sums : (rows, outputs) float32, where the product goes.
    """
    count, width = sums.shape
    parts = max(1, min(thread_count(), count * weights.size // WORTH))
    down = min(parts, -(-count // 4)) or 1
    across = -(-parts // down)
    pieces = [
        (*some, *columns)
        for some in chunks(count, 4 * -(-count // (4 * down)))
        for columns in chunks(width, COLUMNS * -(-width // (COLUMNS * across)))
    ]
    map_threads(lambda piece: _multiply(rows, weights, sums, *piece), pieces)


@compiled
def _multiply(rows: Array, weights: Array, sums: Array, start: int, stop: int, first: int, last: int) -> None:
    """Compute columns first to last of rows start to stop."""
    inputs = rows.shape[1]
    sums[start:stop, first:last] = np.float32(0)
    for left in range(first, last, COLUMNS):
        right = min(left + COLUMNS, last)
        for top in range(0, inputs, DEPTH):
            bottom = min(top + DEPTH, inputs)
            row = start
            while row + 4 <= stop:
                _add_to_four(rows[row : row + 4], weights, sums[row : row + 4], top, bottom, left, right)
                row += 4
            while row < stop:
                _add_to_one(rows[row], weights, sums[row], top, bottom, left, right)
                row += 1


@compiled
def _add_to_four(rows: Array, weights: Array, sums: Array, top: int, bottom: int, left: int, right: int) -> None:
    """Add the products of inputs top to bottom to columns left to right of four rows, two inputs at a time."""
    a, b, c, d = sums[0, left:right], sums[1, left:right], sums[2, left:right], sums[3, left:right]
    for k in range(top, bottom - 1, 2):
        one, two = weights[k, left:right], weights[k + 1, left:right]
        a0, b0, c0, d0 = rows[0, k], rows[1, k], rows[2, k], rows[3, k]
        a1, b1, c1, d1 = rows[0, k + 1], rows[1, k + 1], rows[2, k + 1], rows[3, k + 1]
        for lane in range(np.uintp(right - left)):
            a[lane] = (a[lane] + a0 * one[lane]) + a1 * two[lane]
            b[lane] = (b[lane] + b0 * one[lane]) + b1 * two[lane]
            c[lane] = (c[lane] + c0 * one[lane]) + c1 * two[lane]
            d[lane] = (d[lane] + d0 * one[lane]) + d1 * two[lane]
    if (bottom - top) % 2:
        for row in range(4):
            _add_to_one(rows[row], weights, sums[row], bottom - 1, bottom, left, right)


@compiled
def _add_to_one(row: Array, weights: Array, sums: Array, top: int, bottom: int, left: int, right: int) -> None:
    """Add the products of inputs top to bottom to columns left to right of a row."""
    for k in range(top, bottom):
        value, some, line = row[k], weights[k, left:right], sums[left:right]
        for lane in range(np.uintp(right - left)):
            line[lane] = line[lane] + value * some[lane]
