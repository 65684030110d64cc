"""Packed: the weights of consecutive layers, end to end, in blocks of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.tiles import GROUP
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array, index_dtype
from sparsenn.formats.arrays import read_only
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import compiled, example

BLOCKS = (128, 256, 512, 1024)
"""Inputs of a block, at least: 128 by 64 lanes are what a first-level cache of 32 KiB holds."""

BLOCK_ENTRIES = 16
"""Mean entries of an output in a block, at least: loading and storing sums then take little beside."""

WINDOW = 128
"""Outputs that are sorted by their entries in a block: those of a group have about as many, and most groups as many as
the one before, so that a processor predicts where its loop ends. Threads share few rows by windows."""


class Packed(NamedTuple):
    """Weights and parameters of L layers, in arrays that the kernels take as one argument.

    A layer has one block of inputs, or several. Its outputs are in groups of `GROUP`: in each block, the outputs of a
    window in the order of their entries there. Of a group, first come the first entries of all outputs, then the second
    ones, and so on; an output with fewer entries, and one that only fills the last group, has zeros for an input beyond
    the last, whose line is zero.

    starts : (L + 1,) int64, where each layer's outputs begin in `bias` and `copies`; a zero is behind them.
    offsets : int64: the steps of group j of layer k in block b, with an entry of each output, span offsets[s] to
        offsets[s + 1], s = firsts[k] + b * groups + j.
    values : float32; an iso-valued layer has one, of stride 0.
    bias : (all outputs,) float32, no zero of them negative: it would make the sign of an output that of a sum's zero.
    """

    widths: Array  # (L + 1,) int64, width before each layer and after the last
    starts: Array
    blocks: Array  # (L,) int64, blocks of each layer
    edges: Array  # (L,) int64, weights of each layer
    firsts: Array  # (L,) int64, where each layer's offsets begin in `offsets`
    offsets: Array
    outputs: Array  # (offsets, GROUP) int32, the outputs of each group, in one dimension
    inputs: Array  # (steps, GROUP) uint16 or int32, the input of each entry, in one dimension
    values: Array
    value_starts: Array  # (L,) int64, where each layer's values begin, less its first entry times the stride
    value_strides: Array  # (L,) int64, 1; or 0 for an iso-valued layer
    bias: Array
    copies: Array  # (all outputs,) int32, how many neurons each output stands for
    activations: Array  # (L,) int64, codes of `sparsenn.backends.cpu.activation`
    clips: Array  # (L,) float32, the parameters of the activations, infinity where there is none


def block_of(layer: SparseLinear) -> int:
    """Return the number of inputs of the blocks that a layer is cut into; all where it is not cut."""
    entries = layer.edges / max(1, layer.inputs * layer.outputs)
    fitting = (block for block in BLOCKS if block < layer.inputs and entries * block >= BLOCK_ENTRIES)
    return next(fitting, max(1, layer.inputs))


def blocks_of(layer: SparseLinear) -> int:
    """Return the number of blocks that a layer is cut into."""
    return max(1, parts_of(layer.inputs, block_of(layer)))


@compiled
def _group(indptr: Array, indices: Array, block: int, first: int, offsets: Array, outputs: Array,
           places: Array) -> None:  # fmt: skip
    """Order the outputs of CSC weights block by block.

    first : the layer's first step. offsets, outputs : of the layer; written. places : (blocks, outputs) int64, zeros;
    returns the place of each output's first entry in a block.
    """
    width, many, step = indptr.size - 1, places.shape[0], first
    counts, groups = np.empty(WINDOW, np.int64), (width + GROUP - 1) // GROUP
    for output in range(width):
        for entry in range(indptr[output], indptr[output + 1]):
            places[np.int64(indices[entry]) // block, output] += 1
    for number in range(many):
        for start in range(0, width, WINDOW):
            base, stop = number * groups * GROUP + start, min(start + WINDOW, width)
            for output in range(start, stop):
                place, count = output - start, places[number, output]
                while place > 0 and counts[place - 1] > count:
                    counts[place], outputs[base + place] = counts[place - 1], outputs[base + place - 1]
                    place -= 1
                counts[place], outputs[base + place] = count, output
            for place in range(0, stop - start, GROUP):
                offsets[number * groups + (start + place) // GROUP] = step
                last = min(place + GROUP, stop - start)
                for each in range(place, last):
                    places[number, outputs[base + each]] = step * GROUP + each - place
                for each in range(last, place + GROUP):
                    outputs[base + each] = width
                step += counts[last - 1]
    offsets[many * groups] = step


@compiled
def _fill(indptr: Array, indices: Array, values: Array, has_values: bool, block: int, places: Array, first: int,
          inputs: Array, grouped: Array) -> None:  # fmt: skip
    """Write the entries of CSC weights to their places, in `grouped` less `first`; values where each has its own."""
    for output in range(indptr.size - 1):
        cut, place = np.int64(-1), np.int64(0)
        for entry in range(indptr[output], indptr[output + 1]):
            if np.int64(indices[entry]) // block != cut:
                cut = np.int64(indices[entry]) // block
                place = places[cut, output]
            inputs[place] = indices[entry]
            if has_values:
                grouped[place - first] = values[entry]
            place += GROUP


@example
def _group_example() -> None:
    indptr, index, value = np.array([0, 1]), np.zeros(1, np.uint16), np.zeros(1, np.float32)
    entries, places = (read_only(indptr), read_only(index)), np.zeros((1, 1), np.int64)
    _group(*entries, 1, 0, np.zeros(2, np.int64), np.zeros(2 * GROUP, np.int32), places)
    inputs, grouped = np.zeros(GROUP, index.dtype), np.zeros(GROUP, np.float32)
    _fill(*entries, read_only(value), True, 1, places, 0, inputs, grouped)


def pack(layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Packed:
    """Copy the layers' arrays into one `Packed`."""
    codes = []
    for number, layer in enumerate(layers, start=1):
        try:
            codes.append(activation_code(layer.activation))
        except UsageError as error:
            raise UsageError(f"layer {number}: {error}") from error
    weights, cuts = [layer.weights for layer in layers], [block_of(layer) for layer in layers]
    blocks, groups = list(map(blocks_of, layers)), [parts_of(layer.outputs, GROUP) for layer in layers]
    firsts = np.cumsum([0, *(each * many + 1 for each, many in zip(blocks, groups, strict=True))])
    offsets, outputs = np.zeros(firsts[-1], np.int64), np.zeros(firsts[-1] * GROUP, np.int32)
    places, steps = list[Array](), [0]
    for number, (matrix, layer) in enumerate(zip(weights, layers, strict=True)):
        first, last = firsts[number], firsts[number + 1]
        places.append(np.zeros((blocks[number], layer.outputs), np.int64))
        own = offsets[first:last], outputs[first * GROUP : last * GROUP]
        _group(read_only(matrix.indptr), read_only(matrix.indices), cuts[number], steps[-1], *own, places[-1])
        steps.append(int(offsets[last - 1]))
    entries = GROUP * np.array(steps, np.int64)
    fills = [last - first > matrix.nnz for first, last, matrix in zip(entries, entries[1:], weights, strict=False)]
    strides = np.array([0 if matrix.iso else 1 for matrix in weights], np.int64)
    stored = np.cumsum([0, *np.where(strides, np.diff(entries), 1)])
    inputs, values = np.empty(entries[-1], _type_of_inputs(layers, fills)), np.zeros(stored[-1], np.float32)
    for number, (matrix, layer) in enumerate(zip(weights, layers, strict=True)):
        inputs[entries[number] : entries[number + 1]] = layer.inputs if fills[number] else 0
        own_values = values[stored[number] : stored[number + 1]]
        numbers = matrix.values.astype(np.float32, copy=False)
        if matrix.iso:
            own_values[:] = numbers
        arrays = read_only(matrix.indptr), read_only(matrix.indices), read_only(numbers)
        _fill(*arrays, not matrix.iso, cuts[number], places[number], entries[number], inputs, own_values)
    starts = np.cumsum([0, *(layer.outputs + 1 for layer in layers)], dtype=np.int64)
    bias, multiplicities = np.zeros(starts[-1], np.float32), np.zeros(starts[-1], np.int32)
    for first, layer, each in zip(starts, layers, copies, strict=False):
        span = slice(first, first + layer.outputs)
        multiplicities[span] = each
        if layer.bias is not None:
            bias[span] = layer.bias + np.float32(0)  # no negative zero
    return Packed(
        widths=np.array([layers[0].inputs, *(layer.outputs for layer in layers)], np.int64),
        starts=starts,
        blocks=np.array(blocks, np.int64),
        edges=np.array([matrix.nnz for matrix in weights], np.int64),
        firsts=firsts[:-1].astype(np.int64),
        offsets=offsets,
        outputs=outputs,
        inputs=inputs,
        values=values,
        value_starts=stored[:-1] - strides * entries[:-1],
        value_strides=strides,
        bias=bias,
        copies=multiplicities,
        activations=np.array([code for code, _ in codes], np.int64),
        clips=np.array([clip for _, clip in codes], np.float32),
    )


def _type_of_inputs(layers: Sequence[SparseLinear], fills: Sequence[bool]) -> Any:
    """Return the type of the layers' inputs, and of the one beyond the last where a layer needs that."""
    types = [layer.weights.indices.dtype for layer in layers]
    types += [index_dtype(layer.inputs + 1) for layer, fill in zip(layers, fills, strict=True) if fill]
    return np.result_type(*types)
