"""Slices: the weights of layers by ranges of outputs, and the sums of a range for one row.

A slice is computed from the row's inputs that are not zero, ascending. Where few of a slice's weights are stored, each
input is scattered through its own. Where more are, the sums of `WIDTH` outputs stay in registers: for each input, a
mask says which outputs have a weight, and these weights are expanded along the vector lanes as they are loaded. Or, if
asked for, all inputs are gathered, also those that are zero (`row_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.row_sums import (
    ABREAST,
    LANES,
    MOST_ROWS,
    VECTORS,
    WIDTH,
    can_gather,
    expand_one,
    expand_three,
    expand_two,
    gather_abreast,
    sort_by_steps,
)
from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array, csc_to_csr
from sparsenn.formats.arrays import read_only
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import address_of, compiled

GATHERED_SLICES = 2  # of a layer that is gathered, for each thread

ROW_COST = 0.25  # time of a further row, in that of the first

EXPANDED_EDGES = 2.1
"""Weights that are scattered in the time in which a vector of weights is expanded and multiplied, on AMD EPYC (Zen 4):
0.87 ns for a vector, 0.41 ns for a weight."""

SPLIT_EDGES = 1 << 14
"""Weights, as if scattered, of a slice that a thread takes: 7 us, in which another thread sees that there is work."""

MOST_THREADS = 8
"""Threads that share a row: of more, each would have too little to do between two layers."""

MOST_SLICES = (1 << 16) - 1  # that threads share

MOST_TARGETS = 1 << 16  # outputs of a slice that are scattered to: their places are 16 bits

SCATTERED, EXPANDED, GATHERED = range(3)  # how the slices of a layer are computed

FIELDS = 11
"""Numbers of a layer, in the order of the constants below; the numbers of its slices, and copies, lie behind."""

INPUTS, OUTPUTS, ACTIVATION, BIAS, SLICE, SLICES, TABLE, COPIES, IS_SPLIT, HOW, EDGES = range(FIELDS)
# BIAS: place of the bias in `values`, before the activation's parameter. SLICE: outputs of a slice. TABLE, COPIES:
# places in `numbers`. IS_SPLIT: whether threads share the slices. HOW: one of the three above. EDGES: weights.

SLICE_FIELDS = 4  # of a slice: where its values, targets, offsets and masks begin

ARRAYS = 10  # addresses of a job: of `sum_slice`, then those of `SlicedLayers` and `RowMemory`, in order
LAYER, GROUP, COUNT, TARGET, WIDEST, SLOTS, TOGETHER, JOB = range(ARRAYS, ARRAYS + 8)
# Further numbers of a job of rows: the layer, how many rows, how many inputs are not zero, where the sums begin in the
# lines, from one row's line to the next's, from one row's non-zeros of slices to the next's, and how many rows go
# together at most; then how many numbers a job has.


@dataclass(frozen=True, eq=False)
class SlicedLayers:
    """Layers by slices, in few arrays."""

    numbers: Array  # int64: `FIELDS` of each layer, then `SLICE_FIELDS` of each slice, and how many neurons outputs are
    offsets: Array  # uint32: of each slice, (inputs + 1,) where an input's weights begin among the slice's; or steps
    masks: Array  # uint16: of each slice that is expanded, (inputs, VECTORS) which outputs have a weight; or its order
    targets: Array  # uint16: of each slice that is scattered, the output of each weight in the slice; or inputs
    values: Array  # float32: the weights of each slice, then each layer's bias and activation's parameter
    widest: int  # the most inputs or outputs of a layer, in whole slices
    most_slices: int  # of a layer
    edges: int
    is_split: bool  # whether threads share the slices of a layer
    most_rows: int  # together: one where most weights are scattered, since rows differ in where they are zero


class RowMemory:
    """The memory of a few rows on their way through layers, and the job that refers to it and to the weights."""

    def __init__(self, weights: SlicedLayers) -> None:
        self._weights = weights
        self._arrays = (
            np.empty(weights.widest + 1, np.uint32),  # the inputs of a layer that are not zero
            np.empty(MOST_ROWS * (weights.widest + 1), np.float32),  # their numbers, row by row
            np.empty(2 * MOST_ROWS * weights.widest, np.float32),  # outputs of a layer, and of the next
            np.empty(MOST_ROWS * weights.most_slices, np.int64),  # the non-zeros of each slice
        )
        self.job = np.zeros(JOB, np.int64)
        stored = weights.numbers, weights.offsets, weights.masks, weights.targets, weights.values
        self.job[:ARRAYS] = [
            address_of(sum_slice, types.int64, types.int64),
            *(array.ctypes.data for array in (*stored, *self._arrays)),
        ]
        self.job[WIDEST], self.job[SLOTS] = weights.widest, weights.most_slices
        self.job[TOGETHER] = weights.most_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return sum(array.nbytes for array in self._arrays)


def sharing_threads(layer: SparseLinear, threads: int) -> int:
    """Return how many of some threads share a layer's slices."""
    return max(1, min(threads, MOST_THREADS, int(edge_cost(layer)) // SPLIT_EDGES))


def rows_together(layers: Sequence[SparseLinear]) -> int:
    """Return how many rows go through layers together, at most."""
    expanded = sum(layer.edges for layer in layers if edge_cost(layer) < layer.edges)
    return MOST_ROWS if 2 * expanded > sum(layer.edges for layer in layers) else 1


def edge_cost(layer: SparseLinear, rows: int = 1) -> float:
    """Return the time of a layer for up to `MOST_ROWS` rows without zeros, in that of a weight that is scattered."""
    vectors = parts_of(layer.outputs, WIDTH) * VECTORS * layer.inputs
    expanding = EXPANDED_EDGES * vectors if VECTOR == LANES else float("inf")
    return expanding * (1 + ROW_COST * (rows - 1)) if expanding < layer.edges else float(rows * layer.edges)


class _Slices(NamedTuple):
    """A layer's slices, in arrays of its own."""

    how: int
    width: int
    starts: Array  # (slices + 1,) int64, where each slice's weights begin
    offsets: Array
    masks: Array
    targets: Array
    values: Array


def slice_layers(layers: Sequence[SparseLinear], packed: Any, threads: int, gathers: bool) -> SlicedLayers:
    """Return layers by slices for a number of threads; `packed` has their biases, activations and copies.

    Layers are gathered where `gathers`, and the processor can.
    """
    cut = [_gathered(layer, threads) if gathers and can_gather(layer.inputs) else _cut(layer, threads)
           for layer in layers]  # fmt: skip
    records, numbers, constants = np.zeros((len(layers), FIELDS), np.int64), list[Array](), list[Array]()
    places = np.zeros(4, np.int64)  # the next slice's in values, targets, offsets and masks
    end, bias = records.size, sum(each.values.size for each in cut)
    for number, (layer, each) in enumerate(zip(layers, cut, strict=True)):
        if each.how == GATHERED:  # offsets are those of the layer
            table = places + np.outer(np.arange(each.starts.size - 1), [0, 0, each.width // ABREAST, each.width])
        else:
            table = places + np.outer(np.arange(each.starts.size - 1), [0, 0, layer.inputs + 1, layer.inputs * VECTORS])
            table[:, :2] += each.starts[:-1, None]
        places += [each.values.size, each.targets.size, each.offsets.size, each.masks.size]
        span = slice(packed.starts[number], packed.starts[number] + layer.outputs)
        is_split = len(table) <= MOST_SLICES and sharing_threads(layer, threads) > 1
        records[number] = (
            layer.inputs, layer.outputs, packed.activations[number], bias, each.width, len(table), end,
            end + table.size, is_split, each.how, layer.edges,
        )  # fmt: skip
        numbers += [table.ravel(), packed.copies[span]]
        constants += [packed.bias[span], packed.clips[number : number + 1]]
        end += table.size + layer.outputs
        bias += layer.outputs + 1
    by_array = ([each[place] for each in cut] for place in range(3, len(_Slices._fields)))
    offsets, masks, targets, values = by_array
    return SlicedLayers(
        numbers=read_only(np.concatenate([records.ravel(), *numbers])),
        offsets=read_only(np.concatenate(offsets)),
        masks=read_only(np.concatenate(masks)),
        targets=read_only(np.concatenate(targets)),
        values=read_only(np.concatenate([*values, *constants])),
        widest=int(max(1, *records[:, INPUTS], *(records[:, SLICE] * records[:, SLICES]))),
        most_slices=int(records[:, SLICES].max()),
        edges=sum(layer.edges for layer in layers),
        is_split=bool(records[:, IS_SPLIT].any()),
        most_rows=MOST_ROWS if gathers else rows_together(layers),
    )


def _gathered(layer: SparseLinear, threads: int) -> _Slices:
    least = sharing_threads(layer, threads)
    width = parts_of(parts_of(layer.outputs, GATHERED_SLICES * least if least > 1 else 1), ABREAST) * ABREAST
    width = max(ABREAST, min(width, MOST_TARGETS))
    matrix = layer.weights
    weights = read_only(matrix.expanded_values().astype(np.float32, copy=False))
    indptr, indices = read_only(matrix.indptr), read_only(matrix.indices)
    offsets, order, inputs, values = sort_by_steps(indptr, indices, weights, layer.inputs, width)
    starts = np.zeros(max(1, parts_of(layer.outputs, width)) + 1, np.int64)
    return _Slices(GATHERED, width, starts, offsets, order, inputs, values)


def _cut(layer: SparseLinear, threads: int) -> _Slices:
    by_rows, inputs, edges = csc_to_csr(layer.weights), layer.inputs, layer.edges
    is_expanded = edge_cost(layer) < edges
    least = max(sharing_threads(layer, threads), parts_of(layer.outputs, MOST_TARGETS))
    width = WIDTH if is_expanded else max(1, parts_of(layer.outputs, least))
    slices = max(1, parts_of(layer.outputs, width))
    cut = _Slices(
        EXPANDED if is_expanded else SCATTERED,
        width,
        starts=np.zeros(slices + 1, np.int64),
        offsets=np.zeros(slices * (inputs + 1), np.uint32),
        masks=np.zeros(slices * inputs * VECTORS if is_expanded else 0, np.uint16),
        targets=np.empty(0 if is_expanded else edges, np.uint16),
        values=np.empty(edges, np.float32),
    )
    weights = by_rows.expanded_values().astype(np.float32, copy=False)
    indptr, indices, stored = map(read_only, (by_rows.indptr, by_rows.indices, weights))
    _sort_by_slices(indptr, indices, stored, *cut[1:])
    return cut


@compiled
def _sort_by_slices(indptr: Array, indices: Array, values: Array, width: int, starts: Array, offsets: Array,
                    masks: Array, targets: Array, weights: Array) -> None:  # fmt: skip
    """Write the entries of CSR weights slice by slice; `starts` is (slices + 1,), the other arrays are one layer's."""
    inputs, slices = indptr.size - 1, starts.size - 1
    for column in range(inputs):
        for entry in range(indptr[column], indptr[column + 1]):
            offsets[np.int64(indices[entry]) // width * (inputs + 1) + column + 1] += np.uint32(1)
    for number in range(slices):
        base = number * (inputs + 1)
        for column in range(inputs):
            offsets[base + column + 1] += offsets[base + column]
        starts[number + 1] = starts[number] + offsets[base + inputs]
    for column in range(inputs):
        cut, place = -1, starts[0]
        for entry in range(indptr[column], indptr[column + 1]):
            output = int(indices[entry])
            target = output % width
            if output // width != cut:
                cut = output // width
                place = starts[cut] + offsets[cut * (inputs + 1) + column]
            weights[place] = values[entry]
            if masks.size > 0:
                masks[(cut * inputs + column) * VECTORS + target // LANES] |= np.uint16(1 << (target % LANES))
            else:
                targets[place] = np.uint16(target)
            place += 1


def _at(typing: Any, address: Any) -> Any:
    """Return the pointer of an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


pointer_of = intrinsic(_at)


@compiled
def sum_slice(address: int, number: int) -> None:
    """Compute a slice of the layer of the job at an address.

    Sums begin at zero, inputs ascending, then come the bias and the activation.
    """
    job = carray(pointer_of(address), 1, np.int64)
    numbers, offsets = carray(pointer_of(job[1]), 1, np.int64), carray(pointer_of(job[2]), 1, np.uint32)
    values, columns = carray(pointer_of(job[5]), 1, np.float32), carray(pointer_of(job[6]), 1, np.uint32)
    factors, lines = carray(pointer_of(job[7]), 1, np.float32), carray(pointer_of(job[8]), 1, np.float32)
    alive, record, count = carray(pointer_of(job[9]), 1, np.int64), FIELDS * job[LAYER], job[COUNT]
    rows, across, begin = job[GROUP], job[WIDEST], number * numbers[record + SLICE]
    outputs, to, apart = numbers[record + OUTPUTS], job[TARGET] + begin, job[WIDEST] + 1
    size = min(numbers[record + SLICE], outputs - begin)
    table = numbers[record + TABLE] + SLICE_FIELDS * number
    first, target, offset, mask = numbers[table], numbers[table + 1], numbers[table + 2], numbers[table + 3]
    masks, targets = carray(pointer_of(job[3]), 1, np.uint16), carray(pointer_of(job[4]), 1, np.uint16)
    how = numbers[record + HOW]
    if how == GATHERED:
        sums = np.empty(ABREAST, np.float32)
        for begun in range(0, size, ABREAST):
            stored = offset + begun // ABREAST
            start, stop = np.int64(offsets[stored]), np.int64(offsets[stored + 1])
            inputs, weights = target + start * ABREAST, first + start * ABREAST
            for row in range(rows):
                gather_abreast(factors, row * apart, targets, inputs, values, weights, stop - start, sums)
                for lane in range(min(ABREAST, size - begun)):
                    lines[to + row * across + np.int64(masks[mask + begun + lane])] = sums[lane]
    elif how == EXPANDED:
        if rows == 1:
            expand_one(factors, apart, columns, count, offsets, offset, masks, mask, values, first, lines, to, across)
        elif rows == 2:
            expand_two(factors, apart, columns, count, offsets, offset, masks, mask, values, first, lines, to, across)
        else:
            expand_three(factors, apart, columns, count, offsets, offset, masks, mask, values, first, lines, to, across)
    else:
        weight, aim = np.uintp(first), np.uintp(target)
        for row in range(rows):
            line = np.uintp(to + row * across)
            for output in range(np.uintp(size)):
                lines[line + output] = np.float32(0)
            for place in range(count):
                column, factor = np.uintp(offset) + np.uintp(columns[place]), factors[row * apart + place]
                if factor != np.float32(0):
                    for entry in range(np.uintp(offsets[column]), np.uintp(offsets[column + np.uintp(1)])):
                        lines[line + np.uintp(targets[aim + entry])] += factor * values[weight + entry]
    bias, kind = numbers[record + BIAS], numbers[record + ACTIVATION]
    for row in range(rows):
        alive[row * job[SLOTS] + number] = _finish(
            kind, bias + begin, values[bias + outputs], size, values, lines, to + row * across
        )


@compiled
def _finish(kind: int, bias: int, top: float, outputs: int, values: Array, line: Array, base: int) -> Any:
    """Add the bias to a line of sums and apply the activation; returns how many outputs are not zero."""
    zero, at, shift, alive = np.float32(0), np.uintp(base), np.uintp(bias), np.int32(0)
    if kind == RELU:
        for output in range(np.uintp(outputs)):
            z = line[at + output] + values[shift + output]
            z = zero if z < zero else z
            z = top if z > top else z
            line[at + output] = z
            alive += np.int32(1) if z != zero else np.int32(0)
        return alive
    for output in range(np.uintp(outputs)):
        line[at + output] += values[shift + output]
    if kind != IDENTITY:
        activate_line(kind, line, base, outputs, top)
    for output in range(np.uintp(outputs)):
        alive += np.int32(1) if line[at + output] != zero else np.int32(0)
    return alive


@compiled
def list_inputs(rows: int, line: Array, base: int, across: int, inputs: int, columns: Array, factors: Array,
                apart: int, how: int) -> Any:  # fmt: skip
    """List the columns in which a row has a number that is not zero, and all rows' numbers; returns how many.

    For a layer that is gathered, all columns, and a zero behind them.
    """
    if how == GATHERED:
        for row in range(np.uintp(rows)):
            begin, to = np.uintp(base) + row * np.uintp(across), row * np.uintp(apart)
            for column in range(np.uintp(inputs)):
                factors[to + column] = line[begin + column]
            factors[to + np.uintp(inputs)] = np.float32(0)
        return np.int64(inputs)
    count, step, first = np.uintp(0), np.uintp(across), np.uintp(base)
    if rows == 1:
        for column in range(np.uintp(inputs)):
            number = line[first + column]
            columns[count], factors[count] = np.uint32(column), number
            count += np.uintp(1) if number != np.float32(0) else np.uintp(0)
        return np.int64(count)
    for column in range(np.uintp(inputs)):
        is_used = False
        columns[count] = np.uint32(column)
        for row in range(np.uintp(rows)):
            number = line[first + row * step + column]
            factors[row * np.uintp(apart) + count] = number
            is_used |= number != np.float32(0)
        count += np.uintp(1) if is_used else np.uintp(0)
    return np.int64(count)


@compiled
def count_edges(numbers: Array, offsets: Array, layer: int, columns: Array, count: int) -> Any:
    """Return the multiply-adds of a layer for some columns."""
    record, edges = FIELDS * layer, np.int64(0)
    if numbers[record + HOW] == GATHERED:
        return numbers[record + EDGES]
    for number in range(numbers[record + SLICES]):
        base = numbers[numbers[record + TABLE] + SLICE_FIELDS * number + 2]
        for place in range(count):
            column = base + np.int64(columns[place])
            edges += np.int64(offsets[column + 1]) - np.int64(offsets[column])
    return edges
