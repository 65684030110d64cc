"""Sums of few rows in registers, of weights that are stored without zeros, in two forms.

*Expanding*: masks beside the weights say where these are; the instruction that loads weights and spreads them by a mask
is AVX-512's, as is that which gathers. *Gathering*: sums of a row for outputs side by side, each lane's inputs loaded
from wherever they lie; weights are stored step by step, one of each output, so that each output takes its inputs in
ascending order.

As `tiles`, written in LLVM's own words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.tiles import VECTOR, element_place, multiplied, number, spread
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

VECTORS = 8  # vectors of sums of a row that stay in registers
LANES = 16  # numbers of a vector, of AVX-512 alone; other processors do not run this code, but compile it
WIDTH = LANES * VECTORS  # outputs whose sums are computed together

MOST_ROWS = 3
"""Rows whose sums are computed together, from weights that are expanded once: for as many there are registers."""


_VECTOR = ir.VectorType(ir.FloatType(), LANES)


def _expanding(rows: int) -> Any:
    """Return a function that writes the sums of `WIDTH` outputs of some rows, in the order of columns.

    It is called with the rows' numbers, from one row to the next, their columns and the count of these; offsets, masks
    and values, each with the place of the slice's first; and sums, the place of the first, and from row to row.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, apart, _, count, _, offset, _, mask, _, first, _, to, across = arguments
        arrays = {"numbers": 0, "columns": 2, "offsets": 4, "masks": 6, "values": 8, "sums": 10}
        lanes, whole = ir.VectorType(ir.IntType(1), LANES), to.type
        kind = ir.FunctionType(_VECTOR, [ir.FloatType().as_pointer(), lanes, _VECTOR])
        expand = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.expandload.v16f32")
        zeros = ir.Constant(_VECTOR, [0.0] * LANES)

        def place(name: str, index: Any) -> Any:
            return element_place(context, builder, signature.args[arrays[name]], arguments[arrays[name]], index)

        totals = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(VECTORS)] for _ in range(rows)]
        for line in totals:
            for total in line:
                builder.store(zeros, total)
        with cgutils.for_range(builder, count) as loop:
            column = builder.zext(builder.load(place("columns", loop.index)), whole)
            entry = builder.zext(builder.load(place("offsets", builder.add(offset, column))), whole)
            weights = place("values", builder.add(first, entry))
            base = builder.add(mask, builder.mul(column, number(VECTORS)))
            factors = [
                spread(
                    builder,
                    builder.load(place("numbers", builder.add(loop.index, builder.mul(apart, number(row))))),
                    LANES,
                )
                for row in range(rows)
            ]
            for vector in range(VECTORS):
                bits = builder.load(place("masks", builder.add(base, number(vector))))
                stored = builder.bitcast(bits, lanes)
                weight = builder.call(expand, [weights, stored, zeros])
                for factor, line in zip(factors, totals, strict=True):
                    before = builder.load(line[vector])
                    after = multiplied(builder, factor, weight, before)
                    builder.store(builder.select(stored, after, before), line[vector])
                weights = builder.gep(weights, [builder.zext(builder.ctpop(bits), whole)])
        for row, line in enumerate(totals):
            for vector, total in enumerate(line):
                index = builder.add(builder.add(to, builder.mul(across, number(row))), number(LANES * vector))
                target = builder.bitcast(place("sums", index), _VECTOR.as_pointer())
                builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    def expanded(typing: Any, numbers: Any, apart: Any, columns: Any, count: Any, offsets: Any, offset: Any, masks: Any,
                 mask: Any, values: Any, first: Any, sums: Any, to: Any, across: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(
            numbers, whole, columns, whole, offsets, whole, masks, whole, values, whole, sums, whole, whole
        ), generate

    return intrinsic(expanded)


expand_one, expand_two, expand_three = map(_expanding, range(1, MOST_ROWS + 1))


GATHERED_VECTORS = 4  # vectors of sums, which hide one another's latency
ABREAST = LANES * GATHERED_VECTORS  # outputs whose sums are computed side by side

MOST_INPUTS = (1 << 16) - 1  # of a layer: their numbers, and the one beyond the last, are 16 bits


def can_gather(inputs: int) -> bool:
    """Return whether the processor gathers, and has room for the numbers of a layer's inputs."""
    return VECTOR == LANES and inputs <= MOST_INPUTS


def _gathering(typing: Any, numbers: Any, row: Any, lines: Any, at: Any, weights: Any, v: Any, steps: Any,
               sums: Any) -> Any:  # fmt: skip
    """Write the sums of `ABREAST` outputs of a row, whose numbers begin at a place.

    Called with numbers and that place; inputs, and the place of the first step's, likewise weights; how many steps; and
    the sums.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, row, lines, at, weights, v, steps, sums = arguments
        of_numbers, _, of_lines, _, of_weights, _, _, of_sums = signature.args
        if VECTOR != LANES:  # which compiles this code, but does not run it
            return context.get_dummy_value()
        floats, whole = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)
        short, every = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(1), LANES)
        zeros = ir.Constant(floats, [0.0] * LANES)
        address = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(floats, [floats, address, whole, every, ir.IntType(32)])
        gather = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.gather.dps.512")
        base = builder.bitcast(element_place(context, builder, of_numbers, numbers, row), address)

        def load(of: Any, array: Any, index: Any, kind: Any, align: int) -> Any:
            place = builder.bitcast(element_place(context, builder, of, array, index), kind.as_pointer())
            return builder.load(place, align=align)

        totals = [cgutils.alloca_once(builder, floats) for _ in range(GATHERED_VECTORS)]
        for total in totals:
            builder.store(zeros, total)
        with cgutils.for_range(builder, steps) as loop:
            begin = builder.mul(loop.index, number(ABREAST))
            for vector, total in enumerate(totals):
                index = builder.add(begin, number(LANES * vector))
                places = builder.zext(load(of_lines, lines, builder.add(at, index), short, 2), whole)
                weight = load(of_weights, weights, builder.add(v, index), floats, 4)
                lanes, scale = ir.Constant(every, [1] * LANES), ir.Constant(ir.IntType(32), 4)
                met = builder.call(gather, [zeros, base, places, lanes, scale])
                builder.store(multiplied(builder, met, weight, builder.load(total)), total)
        for vector, total in enumerate(totals):
            place = element_place(context, builder, of_sums, sums, number(LANES * vector))
            builder.store(builder.load(total), builder.bitcast(place, floats.as_pointer()), align=4)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(numbers, whole, lines, whole, weights, whole, whole, sums), generate


gather_abreast = intrinsic(_gathering)


def sort_by_steps(indptr: Array, indices: Array, values: Array, inputs: int, width: int) -> tuple[Array, ...]:
    """Return CSC weights step by step, for slices of `width` outputs, a multiple of `ABREAST`.

    Of a slice, outputs with about as many weights stand abreast; those with fewer have zeros for an input beyond the
    last. Returns where the steps of each `ABREAST` outputs begin, the outputs within their slice, in their order, and
    of each step the inputs and the weights.
    """
    counts = np.diff(indptr)
    outputs = counts.size
    order = np.lexsort((counts, np.arange(outputs) // width))
    most = np.zeros(parts_of(outputs, ABREAST) * ABREAST, np.int64)
    most[:outputs] = counts[order]
    offsets = np.concatenate([[0], np.cumsum(most.reshape(-1, ABREAST).max(axis=1, initial=0))]).astype(np.uint32)
    lines, weights = np.full(offsets[-1] * ABREAST, inputs, np.uint16), np.zeros(offsets[-1] * ABREAST, np.float32)
    _fill_steps(indptr, indices, values, order, offsets, lines, weights)
    return offsets, (order % width).astype(np.uint16), lines, weights


@compiled
def _fill_steps(indptr: Array, indices: Array, values: Array, order: Array, offsets: Array, lines: Array,
                weights: Array) -> None:  # fmt: skip
    for place in range(order.size):
        to = np.int64(offsets[place // ABREAST]) * ABREAST + place % ABREAST
        for entry in range(indptr[order[place]], indptr[order[place] + 1]):
            lines[to], weights[to] = indices[entry], values[entry]
            to += ABREAST
