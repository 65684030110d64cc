"""The own kernels of training on the CPU.

All products are one loop: a row of C gathers rows of B, eight at a time, each times one number of A, so that the
vector registers hold neighbouring columns and no sum is ever reordered. Threads share rows or columns of the result,
never a sum: the bits do not depend on how many there are.
"""

from __future__ import annotations

import numba
import numpy as np

from sparsenn.backends.cpu.activation import activate_line, activation_code, slope
from sparsenn.formats import Array
from sparsenn.layers import Activation, ReLU
from sparsenn.runtime.jit import compiled, example, threaded

_ROWS = 16
"""Rows of a result that a thread computes at a time; they share what they read of B in the cache."""

_COLUMNS = 256
"""Columns of a result that a thread computes at a time."""


def code(activation: Activation) -> tuple[int, np.float32]:
    """Return an activation's number and its parameter, infinite where there is none, as the kernels take them."""
    kind, clip = activation_code(activation)
    return kind, np.float32(clip)


@compiled
def _add_product(A: Array, B: Array, C: Array, row: int, first: int, last: int) -> None:
    """Add to columns first to last of one row of C those of A[row] · B, the terms in order."""
    terms = B.shape[0]
    whole = terms - terms % 8
    for k in range(0, whole, 8):
        a0, a1, a2, a3 = A[row, k], A[row, k + 1], A[row, k + 2], A[row, k + 3]
        a4, a5, a6, a7 = A[row, k + 4], A[row, k + 5], A[row, k + 6], A[row, k + 7]
        for j in range(first, last):
            total = C[row, j] + a0 * B[k, j]
            total += a1 * B[k + 1, j]
            total += a2 * B[k + 2, j]
            total += a3 * B[k + 3, j]
            total += a4 * B[k + 4, j]
            total += a5 * B[k + 5, j]
            total += a6 * B[k + 6, j]
            total += a7 * B[k + 7, j]
            C[row, j] = total
    for k in range(whole, terms):
        a0 = A[row, k]
        for j in range(first, last):
            C[row, j] += a0 * B[k, j]


@threaded
def forward(inputs: Array, weights: Array, bias: Array, kind: int, clip: np.float32, outputs: Array) -> None:
    """Compute outputs = activation(inputs · weights + bias).

    inputs, weights, bias, outputs : float32, (rows, in), (in, out), (out,) and (rows, out), row-major.
    kind, clip : what `code` returns.
    """
    rows, columns = outputs.shape
    bands = (columns + _COLUMNS - 1) // _COLUMNS
    for task in numba.prange(bands * ((rows + _ROWS - 1) // _ROWS)):
        first, start = task % bands * _COLUMNS, task // bands * _ROWS
        last = min(columns, first + _COLUMNS)
        for row in range(start, min(rows, start + _ROWS)):
            for j in range(first, last):
                outputs[row, j] = bias[j]
            _add_product(inputs, weights, outputs, row, first, last)
            activate_line(kind, outputs[row], first, last - first, clip)


@threaded
def backward(
    weights: Array, slopes: Array, values: Array, kind: int, clip: np.float32, below: Array, below_columns: Array
) -> None:
    """Take slopes through a layer and through the activation below it.

    weights : float32 (in, out).
    slopes : by the layer's sums, by column: float32 (out, rows).
    values : the layer's inputs, which are the outputs of the activation below: float32 (rows, in).
    kind, clip : that activation, as `code` returns it.
    below, below_columns : become the slopes by the sums below, float32 (rows, in) and by column (in, rows).
    """
    inputs, rows = below_columns.shape
    for task in numba.prange((inputs + _ROWS - 1) // _ROWS):
        start = task * _ROWS
        stop = min(inputs, start + _ROWS)
        for i in range(start, stop):
            for j in range(rows):
                below_columns[i, j] = 0
            _add_product(weights, slopes, below_columns, i, 0, rows)
        for j in range(rows):
            for i in range(start, stop):
                below_columns[i, j] *= slope(kind, values[j, i], clip)
                below[j, i] = below_columns[i, j]


@threaded
def update(
    values: Array,
    slopes: Array,
    weights: Array,
    bias: Array,
    weight_velocities: Array,
    bias_velocities: Array,
    gradient: Array,
    rate: np.float32,
    momentum: np.float32,
) -> None:
    """Update a layer's parameters: v = momentum·v - rate·gradient, w = w + v.

    values, slopes : the layer's inputs and the slopes by its sums, float32 (rows, in) and (rows, out).
    weights, weight_velocities : float32 (in, out), updated.
    bias, bias_velocities : float32 (out,), updated.
    gradient : float32 (in, out), overwritten.
    """
    inputs, outputs = weights.shape
    columns = values.T
    for task in numba.prange((inputs + _ROWS - 1) // _ROWS):
        for i in range(task * _ROWS, min(inputs, (task + 1) * _ROWS)):
            for j in range(outputs):
                gradient[i, j] = 0
            _add_product(columns, slopes, gradient, i, 0, outputs)
            for j in range(outputs):
                weight_velocities[i, j] = momentum * weight_velocities[i, j] - rate * gradient[i, j]
                weights[i, j] += weight_velocities[i, j]
    for j in range(outputs):
        total = np.float32(0)
        for row in range(slopes.shape[0]):
            total += slopes[row, j]
        bias_velocities[j] = momentum * bias_velocities[j] - rate * total
        bias[j] += bias_velocities[j]


@example
def _train() -> None:
    row, column, square = (np.ones(shape, np.float32) for shape in ((1, 2), (2, 1), (2, 2)))
    bias, rate = np.zeros(2, np.float32), np.float32(0.1)
    forward(row, square, bias, *code(ReLU()), np.empty_like(row))
    backward(square, column, row, *code(ReLU()), np.empty_like(row), np.empty_like(column))
    update(row, row, square, bias, np.zeros_like(square), np.zeros_like(bias), np.empty_like(square), rate, rate)
