"""Gathering: sums of a row for outputs side by side, each lane's inputs loaded from wherever they lie.

As `expanding`, written in LLVM's own words; the instruction is AVX-512's. Weights are stored step by step, one of each
output, so that each output takes its inputs in ascending order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.expanding import LANES
from sparsenn.backends.cpu.tiles import VECTOR, element_place, multiplied
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled

VECTORS = 4  # vectors of sums, which hide one another's latency
ABREAST = LANES * VECTORS  # outputs whose sums are computed side by side

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

        def number(value: int) -> Any:
            return ir.Constant(at.type, value)

        def load(of: Any, array: Any, index: Any, kind: Any, align: int) -> Any:
            place = builder.bitcast(element_place(context, builder, of, array, index), kind.as_pointer())
            return builder.load(place, align=align)

        totals = [cgutils.alloca_once(builder, floats) for _ in range(VECTORS)]
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
