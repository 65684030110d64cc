"""Packed: the weights of consecutive layers, end to end, in blocks of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import activation_code
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.formats.arrays import read_only
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import compiled, example

__all__ = ["BLOCK", "Packed", "blocks_of", "pack"]

BLOCK = 256
"""Inputs of a block: half of them, by 64 lanes, or all, by 32, are what a first-level cache of 32 KiB holds."""

BLOCK_ENTRIES = 10
"""Mean entries of an output in a block from which on a layer is cut into blocks: loading and storing sums then take
little beside."""


class Packed(NamedTuple):
    """Weights and parameters of L layers, in arrays that the kernels take as one argument.

    A layer has one block, or blocks of `BLOCK` inputs. Its entries come block by block, output by output.

    starts : (L + 1,) int64, where each layer's outputs begin in `bias` and `copies`.
    offsets : int64: the entries of output j of layer k in block b span offsets[s] to offsets[s + 1], s = firsts[k] +
        b * outputs + j.
    values : float32; an iso-valued layer has one, of stride 0.
    bias : (all outputs,) float32, no zero of them negative: it would make the sign of an output that of a sum's zero.
    """

    widths: Array  # (L + 1,) int64, width before each layer and after the last
    starts: Array
    blocks: Array  # (L,) int64, blocks of each layer
    firsts: Array  # (L,) int64, where each layer's offsets begin in `offsets`
    offsets: Array
    inputs: Array  # (all entries,) uint16 or int32, the input of each entry
    values: Array
    value_starts: Array  # (L,) int64, where each layer's values begin, less its first entry times the stride
    value_strides: Array  # (L,) int64, 1; or 0 for an iso-valued layer
    bias: Array
    copies: Array  # (all outputs,) int32, how many neurons each output stands for
    activations: Array  # (L,) int64, codes of `sparsenn.backends.cpu.activation`
    clips: Array  # (L,) float32, the parameters of the activations, infinity where there is none


def blocks_of(layer: SparseLinear) -> int:
    """Return the number of blocks that a layer is cut into."""
    blocks = -(-layer.inputs // BLOCK)
    return blocks if layer.edges >= BLOCK_ENTRIES * layer.outputs * blocks else 1


@compiled
def _sort_by_blocks(indptr: Array, indices: Array, values: Array, block: int, first: int, offsets: Array,
                    inputs: Array, sorted_values: Array) -> None:  # fmt: skip
    """Write the entries of CSC weights block by block, the first to `inputs[first]`; an only value is not written."""
    outputs, step = indptr.size - 1, 0 if values.size == 1 else 1
    for output in range(outputs):
        for entry in range(indptr[output], indptr[output + 1]):
            offsets[indices[entry] // block * outputs + output] += 1
    place = first
    for number in range(offsets.size):
        count = offsets[number]
        offsets[number] = place
        place += count
    for output in range(outputs):
        cut, place = -1, 0
        for entry in range(indptr[output], indptr[output + 1]):
            if indices[entry] // block != cut:
                cut = indices[entry] // block
                place = offsets[cut * outputs + output]
            inputs[place] = indices[entry]
            if step:
                sorted_values[place - first] = values[entry]
            place += 1


@example
def _sort_example() -> None:
    offsets, index, value = np.zeros(1, np.int64), np.zeros(1, np.uint16), np.zeros(1, np.float32)
    entries = read_only(np.array([0, 1])), read_only(index), read_only(value)
    _sort_by_blocks(*entries, 1, 0, offsets, np.zeros_like(index), np.zeros_like(value))


def pack(layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Packed:
    """Copy the layers' arrays into one `Packed`."""
    codes = []
    for number, layer in enumerate(layers, start=1):
        try:
            codes.append(activation_code(layer.activation))
        except UsageError as error:
            raise UsageError(f"layer {number}: {error}") from error
    weights, blocks = [layer.weights for layer in layers], [blocks_of(layer) for layer in layers]
    entries = np.cumsum([0, *(matrix.nnz for matrix in weights)])
    stored = np.cumsum([0, *(matrix.values.size for matrix in weights)])
    firsts = np.cumsum([0, *(each * layer.outputs + 1 for each, layer in zip(blocks, layers, strict=True))])
    offsets = np.zeros(firsts[-1], np.int64)
    inputs = np.empty(entries[-1], np.result_type(*(matrix.indices.dtype for matrix in weights)))
    values = np.concatenate([matrix.values.astype(np.float32, copy=False) for matrix in weights])
    for number, (matrix, layer) in enumerate(zip(weights, layers, strict=True)):
        block = BLOCK if blocks[number] > 1 else max(1, layer.inputs)
        own = values[stored[number] : stored[number + 1]]
        entered = read_only(matrix.indptr), read_only(matrix.indices), read_only(own.copy())
        _sort_by_blocks(*entered, block, entries[number], offsets[firsts[number] : firsts[number + 1]], inputs, own)
    strides = np.array([0 if matrix.iso else 1 for matrix in weights], np.int64)
    return Packed(
        widths=np.array([layers[0].inputs, *(layer.outputs for layer in layers)], np.int64),
        starts=np.cumsum([0, *(layer.outputs for layer in layers)], dtype=np.int64),
        blocks=np.array(blocks, np.int64),
        firsts=firsts[:-1].astype(np.int64),
        offsets=offsets,
        inputs=inputs,
        values=values,
        value_starts=stored[:-1] - strides * entries[:-1],
        value_strides=strides,
        bias=np.concatenate([layer.bias_vector() for layer in layers]) + np.float32(0),
        copies=np.concatenate(copies).astype(np.int32, copy=False),
        activations=np.array([code for code, _ in codes], np.int64),
        clips=np.array([clip for _, clip in codes], np.float32),
    )
