"""Weights laid out for `few_rows_half`, as `sparse/few_rows_half.cu` describes; half precision, in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.runtime.precision import WEIGHT_EXPONENT, scaled_weights
from sparsenn.backends.cuda.sparse.few_rows.weights import example_layer
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.backends.machine import WARP
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.formats.conversion import scan
from sparsenn.runtime.jit import compiled, example

CLASSES = 8  # neighbouring lanes, whose reads of eight rows use different banks
RUN = np.dtype([("first", "i4"), ("fours", "i4"), ("ones", "i4"), ("bias", "f4"), ("scale", "f4")])


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """A layer's weights and biases as the kernel reads them."""

    words: Array  # (words,) uint32
    runs: Array  # (outputs,) of RUN as bytes, uint8

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All arrays, in the order of the fields."""
        return self.words, self.runs


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
def _example() -> None:
    pack_weights(example_layer())
