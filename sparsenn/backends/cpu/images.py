"""Pooling, softmax and layer normalisation on the CPU, on plain threads: float32, whose sums are of float64."""

from __future__ import annotations

from functools import lru_cache, singledispatch
from math import prod
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.image_graph import GraphStack, graph_of, run_graph
from sparsenn.backends.cpu.tiles import element_place, number, spread
from sparsenn.backends.host import combine
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import CombiningLayer, Flatten, ImageLayer, LayerNorm, LogSoftmax, Pool2d, Slice, SoftmaxLayer
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import TASKS, chunks, map_threads, thread_count

_PARTIAL_SUMS = 8
"""Float64 sums that layer normalisation adds up at a time: one register of AVX-512, or two of AVX2."""


@singledispatch
def run_layer(layer: Any, shape: tuple[int, ...], *matrices: Array) -> Array:
    """Run a layer of images that is no convolution, on (rows, inputs) float32; `Flatten` returns the features."""
    raise UsageError(f"the CPU backend does not know the layer {type(layer).__name__}")


@run_layer.register
def _(layer: CombiningLayer, shape: tuple[int, ...], *matrices: Array) -> Array:
    return combine(layer, matrices)


@run_layer.register
def _(layer: Flatten, shape: tuple[int, ...], features: Array) -> Array:
    layer.output_shape((features.shape[0], *shape))
    return features


@run_layer.register
def _(layer: Slice, shape: tuple[int, ...], features: Array) -> Array:
    outputs = _outputs(layer, shape, features)
    first, last = layer.columns(shape)

    def copy(chunk: tuple[int, int]) -> None:
        blocks = features[slice(*chunk)].reshape(-1, layer.block(shape))
        np.copyto(outputs[slice(*chunk)].reshape(-1, last - first), blocks[:, first:last])

    map_threads(copy, _chunks(features.shape[0]))
    return outputs


@run_layer.register
def _(layer: SoftmaxLayer, shape: tuple[int, ...], features: Array) -> Array:
    outputs = _outputs(layer, shape, features)
    run = _log_softmax if isinstance(layer, LogSoftmax) else _softmax
    map_threads(lambda chunk: run(features[slice(*chunk)], outputs[slice(*chunk)]), _chunks(features.shape[0]))
    return outputs


@run_layer.register
def _(layer: LayerNorm, shape: tuple[int, ...], features: Array) -> Array:
    outputs = _outputs(layer, shape, features)
    inputs, results = np.ascontiguousarray(features).reshape(-1, layer.width), outputs.reshape(-1, layer.width)
    scale, shift = (np.asarray(numbers, np.float64) for numbers in (layer.scale, layer.shift))

    def run(chunk: tuple[int, int]) -> None:
        sums = np.empty(_PARTIAL_SUMS)
        _layer_norm(inputs[slice(*chunk)], scale, shift, layer.epsilon, sums, results[slice(*chunk)])

    map_threads(run, _chunks(inputs.shape[0]))
    return outputs


@run_layer.register
def _(layer: Pool2d, shape: tuple[int, ...], features: Array) -> Array:
    return run_graph(_graph(layer, shape), features)


@lru_cache(64)
def _graph(layer: Pool2d, shape: tuple[int, ...]) -> GraphStack:
    return graph_of((layer,), (shape, layer.output_shape((1, *shape))[1:]))


def _outputs(layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
    rows, *found = layer.output_shape((features.shape[0], *shape))
    return np.empty((rows, prod(found)), np.float32)


def count_nonzeros(features: Array) -> Array:
    """Return the non-zeros of each row of a matrix, (rows,) int64."""
    counts = np.empty(features.shape[0], np.int64)
    map_threads(lambda chunk: _count(features[slice(*chunk)], counts[slice(*chunk)]), _chunks(features.shape[0]))
    return counts


def _chunks(count: int) -> list[tuple[int, int]]:
    return chunks(count, -(-count // (TASKS * thread_count())) or 1)


@compiled
def _largest(row: Array) -> np.floating[Any]:
    """Return the largest number of a row, or NaN if it holds one."""
    largest = np.float32(-np.inf)
    for value in row:
        largest = largest if value <= largest or largest != largest else value
    return largest


@compiled
def _softmax(rows: Array, outputs: Array) -> None:
    """Compute exp(y - largest) and divide by their sum, which is added up in float64."""
    for row in range(rows.shape[0]):
        largest = _largest(rows[row])
        total = 0.0
        for column in range(rows.shape[1]):
            power = np.exp(rows[row, column] - largest)
            outputs[row, column] = power
            total += power
        for column in range(rows.shape[1]):
            outputs[row, column] = np.float32(outputs[row, column] / total)


@compiled
def _log_softmax(rows: Array, outputs: Array) -> None:
    """Compute y - largest, and subtract the logarithm of the sum of its exp, which is added up in float64."""
    for row in range(rows.shape[0]):
        largest = _largest(rows[row])
        total = 0.0
        for column in range(rows.shape[1]):
            total += np.exp(rows[row, column] - largest)
        logarithm = np.log(total)
        for column in range(rows.shape[1]):
            outputs[row, column] = np.float32(rows[row, column] - largest - logarithm)


def _lanes(squared: bool) -> Any:
    """Return a function that adds up y - mean, or its squares, of a row: all partial sums side by side.

    It is called with a row, how many of its numbers to add up, a multiple of the partial sums, the mean, and where the
    sums go. It is in LLVM's own words: numba would keep the sums in memory.
    """
    kind = ir.VectorType(ir.DoubleType(), _PARTIAL_SUMS)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, count, mean, sums = arguments
        means, total = spread(builder, mean, _PARTIAL_SUMS), cgutils.alloca_once(builder, kind)
        builder.store(ir.Constant(kind, [0.0] * _PARTIAL_SUMS), total)
        with cgutils.for_range(builder, builder.sdiv(count, number(_PARTIAL_SUMS))) as loop:
            place = element_place(
                context, builder, signature.args[0], row, builder.mul(loop.index, number(_PARTIAL_SUMS))
            )
            floats = ir.VectorType(ir.FloatType(), _PARTIAL_SUMS).as_pointer()
            met = builder.fpext(builder.load(builder.bitcast(place, floats), align=4), kind)
            difference = builder.fsub(met, means)
            more = builder.fmul(difference, difference) if squared else difference
            builder.store(builder.fadd(builder.load(total), more), total)
        place = element_place(context, builder, signature.args[3], sums, number(0))
        builder.store(builder.load(total), builder.bitcast(place, kind.as_pointer()), align=8)
        return context.get_dummy_value()

    def summed(typing: Any, row: Any, count: Any, mean: Any, sums: Any) -> Any:
        return types.void(row, types.intp, types.float64, sums), generate

    return intrinsic(summed)


_lanes_of_differences, _lanes_of_squares = _lanes(False), _lanes(True)


@compiled
def _sum_of_differences(row: Array, mean: float, squared: bool, sums: Array) -> float:
    """Return the sum of y - mean, or of its squares, of a row: that of partial sums, which fill a register."""
    whole = row.shape[0] - row.shape[0] % _PARTIAL_SUMS
    if squared:
        _lanes_of_squares(row, whole, mean, sums)
    else:
        _lanes_of_differences(row, whole, mean, sums)
    for column in range(whole, row.shape[0]):
        difference = row[column] - mean
        sums[column - whole] += difference * difference if squared else difference
    total = 0.0
    for lane in range(_PARTIAL_SUMS):
        total += sums[lane]
    return total


@compiled
def _layer_norm(rows: Array, scale: Array, shift: Array, epsilon: float, sums: Array, outputs: Array) -> None:
    """Compute (y - mean) / sqrt(variance + epsilon) · scale + shift in float64, each row in two passes."""
    width = rows.shape[1]
    for row in range(rows.shape[0]):
        mean = _sum_of_differences(rows[row], 0.0, False, sums) / width
        variance = _sum_of_differences(rows[row], mean, True, sums) / width
        factor = 1.0 / np.sqrt(variance + epsilon)
        for column in range(width):
            outputs[row, column] = np.float32((rows[row, column] - mean) * factor * scale[column] + shift[column])


@compiled
def _count(rows: Array, counts: Array) -> None:
    for row in range(rows.shape[0]):
        found = 0
        for column in range(rows.shape[1]):
            found += rows[row, column] != 0
        counts[row] = found


@example
def _example() -> None:
    run_layer(LayerNorm(np.ones(2), np.zeros(2)), (2,), np.zeros((1, 2), np.float32))
