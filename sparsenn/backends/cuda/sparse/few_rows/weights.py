"""Weights laid out for `few_rows` in float32, in order, and for `few_rows_half` in half precision, in any order.

`sparse/few_rows.cu` and `sparse/few_rows_half.cu` describe how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsenn.backends.cuda.runtime.layer_cache import cache_all_on_device
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.runtime.precision import WEIGHT_EXPONENT, scaled_weights
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, LayerNumbers
from sparsenn.backends.machine import WARP
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array
from sparsenn.formats.conversion import scan
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import map_threads

STEPS = 16  # weights of a thread in a chunk, as in the kernel
UNIT = 16  # bytes that a thread copies at once
PLACE_BYTES = 2

_Weights = TypeVar("_Weights", bound=tuple[Any, ...])


class SlicedWeights(NamedTuple):
    """A layer's weights and bias as the kernel reads them, in the order of its record."""

    chunks: Array  # (bytes,) uint8
    starts: Array  # (slices + 1,) int32
    outputs: Array  # (slices * 32,) int32, -1 for a thread that has none
    biases: Array  # (slices * 32,) float32

    @property
    def slices(self) -> int:
        """Number of slices."""
        return int(self.starts.size - 1)


def slice_weights(layer: LayerNumbers) -> SlicedWeights:
    """Lay out a layer's weights on the host."""
    weights, (inputs, outputs) = layer.weights, layer.weights.shape
    chunks = -(-np.diff(weights.indptr) // STEPS)
    order = np.argsort(-chunks, kind="stable")
    slices = parts_of(outputs, WARP)
    longest = np.zeros(slices * WARP, np.int64)
    longest[:outputs] = chunks[order]
    starts = scan(longest.reshape(-1, WARP).max(axis=1, initial=0))
    made = np.empty((int(starts[-1]), STEPS * (4 + PLACE_BYTES) // UNIT, WARP, UNIT), np.uint8)
    values = weights.values.astype(np.float32, copy=False)
    _write_chunks(
        *(weights.indptr, weights.indices, values, order, starts, inputs),
        *(made.view(np.float32), made.view(np.uint16)),
    )
    writes, biases = np.full(slices * WARP, -1, np.int32), np.zeros(slices * WARP, np.float32)
    writes[:outputs], biases[:outputs] = order, layer.bias[order]
    return SlicedWeights(made.reshape(-1), starts.astype(np.int32), writes, biases)


@compiled
def _write_chunks(
    indptr: Array,
    indices: Array,
    values: Array,
    order: Array,
    starts: Array,
    inputs: int,
    weights: Array,
    places: Array,
) -> None:
    """Write the chunks of all slices; `weights` and `places` view the same bytes, (chunks, units, 32, numbers)."""
    for number in range(starts.size - 1):
        for lane in range(32):
            first = last = 0
            rank = number * 32 + lane
            if rank < order.size:
                first, last = indptr[order[rank]], indptr[order[rank] + 1]
            for chunk in range(starts[number], starts[number + 1]):
                for step in range(16):
                    edge = first + (chunk - starts[number]) * 16 + step
                    place, weight = inputs, np.float32(-0.0)
                    if edge < last:
                        place, weight = indices[edge], values[edge if values.size > 1 else 0]
                    weights[chunk, step // 4, lane, step % 4] = weight
                    places[chunk, 4 + step // 8, lane, step % 8] = place


def on_device(layers: Sequence[DeviceLayer], key: str, lay_out: Callable[[LayerNumbers], _Weights]) -> list[_Weights]:
    """Return the layers' weights of a kind on the current device; `lay_out` makes missing ones, on several threads."""

    def made(missing: list[int]) -> list[_Weights]:
        host = map_threads(lambda at: lay_out(layers[at].host), missing)
        arrays = iter(to_device([array for each in host for array in each]))
        return [type(each)(*islice(arrays, len(each))) for each in host]

    return cache_all_on_device(layers, [key] * len(layers), made)


def example_layer() -> LayerNumbers:
    """Return the smallest layer, to compile functions of layers with."""
    weights = SparseLinear(CSC((1, 1), np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.float32))).weights
    return LayerNumbers(weights, np.zeros(1, np.float32), np.ones(1, np.int64))


@example
def _example() -> None:
    slice_weights(example_layer())


CLASSES = 8  # neighbouring lanes, whose reads of eight rows use different banks
RUN = np.dtype([("first", "i4"), ("fours", "i4"), ("ones", "i4"), ("bias", "f4"), ("scale", "f4")])


class PackedWeights(NamedTuple):
    """A layer's weights and biases as the kernel reads them."""

    words: Array  # (words,) uint32
    runs: Array  # (outputs,) of RUN as bytes, uint8


def pack_weights(layer: LayerNumbers) -> PackedWeights:
    """Lay out a layer's weights on the host."""
    weights, (inputs, outputs) = layer.weights, layer.weights.shape
    values = np.broadcast_to(weights.values.astype(np.float32), (weights.nnz,))
    output = np.repeat(np.arange(outputs), np.diff(weights.indptr))
    scaled, scales = scaled_weights(output, values, outputs)
    of_lane = -(-np.diff(weights.indptr) // WARP)
    starts = scan(of_lane)
    runs = np.zeros(outputs, RUN)
    runs["first"], runs["fours"], runs["ones"] = starts[:-1], of_lane // 4, of_lane % 4
    runs["bias"], runs["scale"] = layer.bias, np.ldexp(scales, -WEIGHT_EXPONENT)
    behind = parts_of(inputs, CLASSES) * CLASSES
    words = (behind + np.arange(WARP) % CLASSES).astype(np.uint32) << np.uint32(16)
    made = np.tile(words, int(starts[-1]))
    bits = scaled.astype(np.float16).view(np.uint16)
    _write_words(weights.indptr, weights.indices, bits, starts, np.zeros(WARP, np.int64), made)
    return PackedWeights(made, runs.view(np.uint8))


@compiled
def _write_words(indptr: Array, indices: Array, bits: Array, starts: Array, taken: Array, words: Array) -> None:
    """Write each weight to the lane of its place's remainder by 32, else by 8; to any other once these are full.

    `taken`, (32,) int64, is for the loop's own use.
    """
    for output in range(starts.size - 1):
        capacity, other = starts[output + 1] - starts[output], 0
        fours = capacity // 4 * 4
        taken[:] = 0
        for edge in range(indptr[output], indptr[output + 1]):
            place: int = indices[edge]
            lane = place % 32
            if taken[lane] == capacity:
                for each in range(place % 8, 32, 8):
                    if taken[each] < taken[lane]:
                        lane = each
            if taken[lane] == capacity:
                while taken[other] == capacity:
                    other += 1
                lane = other
            step = taken[lane]
            taken[lane] += 1
            word = starts[output] * 32
            word += step // 4 * 128 + lane * 4 + step % 4 if step < fours else step * 32 + lane
            words[word] = np.uint32(place) << np.uint32(16) | np.uint32(bits[edge])


@example
def _packed_example() -> None:
    pack_weights(example_layer())
