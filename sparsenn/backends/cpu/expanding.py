"""Expanding: sums of few rows in registers, of weights that are stored without zeros beside masks of where they are.

As `tiles`, written in LLVM's own words. The instruction that loads weights and spreads them by a mask is AVX-512's.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.tiles import element_place, multiplied, spread

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

        def number(value: int) -> Any:
            return ir.Constant(whole, value)

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
