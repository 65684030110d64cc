"""Tiles: sums of a few vectors of lanes, for some filters or rows, that stay in registers from first to last product.

They are written in LLVM's own words: numba would keep the sums of a loop over lanes in memory, which takes twice as
long. So are the few instructions that find what is not zero in a vector, and that ask for memory ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = [
    "BITS",
    "TALL",
    "TILE",
    "VECTOR",
    "WIDE_TILE",
    "ask_for",
    "four_filters",
    "four_vectors",
    "largest_of_window",
    "lowest",
    "nonzeros",
    "one_filter",
    "one_filter_wide",
    "one_row",
    "one_vector",
    "tall_rows",
    "three_vectors",
    "two_rows",
    "two_vectors",
]

VECTOR = next((width for name, width in (("avx512f", 16), ("avx", 8)) if get_host_cpu_features().get(name)), 4)
"""Numbers of a vector register."""

BITS = 64  # numbers that `nonzeros` looks at
TILE = 4 * VECTOR  # lanes of a tile: of four filters, of one, or of some rows
WIDE_TILE = 8 * VECTOR  # lanes of a wide tile, of a single filter

TALL = 6 if VECTOR == 16 else 3
"""Rows of a tall tile: with four vectors each, about as many sums as there are registers for."""

_VECTOR = ir.VectorType(ir.FloatType(), VECTOR)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _vector_place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(_place(context, builder, kind, array, index), _VECTOR.as_pointer())


def _spread(builder: Any, number: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), lanes)


def _multiplied(builder: Any, pixels: Any, weight: Any, total: Any) -> Any:
    return builder.fadd(total, builder.fmul(pixels, weight, flags=("contract",)), flags=("contract",))


def _larger(builder: Any, pixels: Any, weight: Any, total: Any) -> Any:
    """Return the larger numbers; a NaN is larger than any."""
    kept = builder.or_(builder.fcmp_ordered("<=", pixels, total), builder.fcmp_unordered("uno", total, total))
    return builder.select(kept, total, pixels)


def _tile(filters: int, vectors: int, combined: Callable[..., Any], weighted: bool = True) -> Any:
    """Return a function that computes a tile.

    It is called with a panel and the place of the first lane in it at a shift of 0; the images of a pixel; shifts, and
    the first and last of them; weights, and the place of the first; what the sums begin with, and the place of the
    first filter's; and where sums go, the place of the first, and from one filter's to the next's.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        panel, at, images, shifts, first, last, weights, v, begins, begin, sums, to, apart = arguments
        kinds = dict(zip(("panel", "at", "images", "shifts", "first", "last", "weights", "v", "begins", "begin",
                          "sums"), signature.args, strict=False))  # fmt: skip

        number = partial(ir.Constant, at.type)

        def vector_at(kind: str, array: Any, index: Any) -> Any:
            return _vector_place(context, builder, kinds[kind], array, index)

        totals = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)] for _ in range(filters)]
        for k, row in enumerate(totals):
            start = builder.load(_place(context, builder, kinds["begins"], begins, builder.add(begin, number(k))))
            for total in row:
                builder.store(_spread(builder, start), total)
        with cgutils.for_range(builder, builder.sub(last, first)) as loop:
            shift = builder.load(_place(context, builder, kinds["shifts"], shifts, builder.add(first, loop.index)))
            place = builder.add(at, builder.mul(shift, images))
            pixels = [
                builder.load(vector_at("panel", panel, builder.add(place, number(j * VECTOR))), align=4)
                for j in range(vectors)
            ]
            for k, row in enumerate(totals):
                weight = None
                if weighted:
                    index = builder.add(builder.add(v, builder.mul(loop.index, number(filters))), number(k))
                    weight = _spread(builder, builder.load(_place(context, builder, kinds["weights"], weights, index)))
                for total, met in zip(row, pixels, strict=True):
                    builder.store(combined(builder, met, weight, builder.load(total)), total)
        for k, row in enumerate(totals):
            for j, total in enumerate(row):
                index = builder.add(builder.add(to, builder.mul(apart, number(k))), number(j * VECTOR))
                builder.store(builder.load(total), vector_at("sums", sums, index), align=4)
        return context.get_dummy_value()

    def tile(typing: Any, panel: Any, at: Any, images: Any, shifts: Any, first: Any, last: Any, weights: Any, v: Any,
             begins: Any, begin: Any, sums: Any, to: Any, apart: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(
            panel, whole, whole, shifts, whole, whole, weights, whole, begins, whole, sums, whole, whole
        ), generate

    return intrinsic(tile)


def _rows_tile(height: int) -> Any:
    """Return a function that adds the products of some inputs to the sums of `height` rows and `TILE` outputs.

    It is called with rows, the place of the first input, and from one row to the next; weights, of each input those of
    the outputs, and the place of the first; how many inputs; whether sums begin at zero; and sums, the place of the
    first, and from one row's to the next's.
    """
    vectors = TILE // VECTOR

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, at, apart, weights, first, inputs, fresh, sums, to, across = arguments
        of_rows, of_weights, of_sums = signature.args[0], signature.args[3], signature.args[7]

        number = partial(ir.Constant, at.type)

        def sums_at(row: int, vector: int) -> Any:
            index = builder.add(builder.add(to, builder.mul(across, number(row))), number(vector * VECTOR))
            return _vector_place(context, builder, of_sums, sums, index)

        totals = {(i, j): cgutils.alloca_once(builder, _VECTOR) for i in range(height) for j in range(vectors)}
        for total in totals.values():
            builder.store(ir.Constant(_VECTOR, [0.0] * VECTOR), total)
        with builder.if_then(builder.not_(fresh)):
            for place, total in totals.items():
                builder.store(builder.load(sums_at(*place), align=4), total)
        starts = [
            _place(context, builder, of_rows, rows, builder.add(at, builder.mul(apart, number(i))))
            for i in range(height)
        ]
        with cgutils.for_range(builder, inputs) as loop:
            begin = builder.add(first, builder.mul(loop.index, number(TILE)))
            places = [builder.add(begin, number(j * VECTOR)) for j in range(vectors)]
            met = [
                builder.load(_vector_place(context, builder, of_weights, weights, place), align=4) for place in places
            ]
            for i, start in enumerate(starts):
                value = _spread(builder, builder.load(builder.gep(start, [loop.index])))
                for j, some in enumerate(met):
                    total = totals[i, j]
                    builder.store(_multiplied(builder, value, some, builder.load(total)), total)
        for place, total in totals.items():
            builder.store(builder.load(total), sums_at(*place), align=4)
        return context.get_dummy_value()

    def tile(typing: Any, rows: Any, at: Any, apart: Any, weights: Any, first: Any, inputs: Any, fresh: Any, sums: Any,
             to: Any, across: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(rows, whole, whole, weights, whole, whole, types.boolean, sums, whole, whole), generate

    return intrinsic(tile)


def _lines_tile(vectors: int) -> Any:
    """Return a function that adds products of lines of `TILE` lanes to the sums of the first vectors of one.

    It is called with lines; which of them, the first and the last; their weights; whether sums begin at zero; and sums,
    and the place of the first.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        panel, lines, first, last, weights, fresh, sums, to = arguments
        of_panel, of_lines, _, _, of_weights, _, of_sums, _ = signature.args

        number = partial(ir.Constant, to.type)

        def place(of_array: Any, array: Any, start: Any, vector: int) -> Any:
            return _vector_place(context, builder, of_array, array, builder.add(start, number(vector * VECTOR)))

        totals = [cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)]
        for total in totals:
            builder.store(ir.Constant(_VECTOR, [0.0] * VECTOR), total)
        with builder.if_then(builder.not_(fresh)):
            for j, total in enumerate(totals):
                builder.store(builder.load(place(of_sums, sums, to, j), align=4), total)
        with cgutils.for_range(builder, builder.sub(last, first)) as loop:
            at = builder.add(first, loop.index)
            line = builder.zext(builder.load(_place(context, builder, of_lines, lines, at)), to.type)
            start = builder.mul(line, number(TILE))
            weight = _spread(builder, builder.load(_place(context, builder, of_weights, weights, at)))
            for j, total in enumerate(totals):
                met = builder.load(place(of_panel, panel, start, j), align=4)
                builder.store(_multiplied(builder, met, weight, builder.load(total)), total)
        for j, total in enumerate(totals):
            builder.store(builder.load(total), place(of_sums, sums, to, j), align=4)
        return context.get_dummy_value()

    def tile(typing: Any, panel: Any, lines: Any, first: Any, last: Any, weights: Any, fresh: Any, sums: Any,
             to: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(panel, lines, whole, whole, weights, types.boolean, sums, whole), generate

    return intrinsic(tile)


def _asking(typing: Any, array: Any, index: Any) -> Any:
    """Begin to bring the cache line of an array's element into the first-level cache; nothing waits for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        where = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(prefetch, [where, *(ir.Constant(number, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _nonzeros(typing: Any, array: Any, index: Any) -> Any:
    """Return which of 64 numbers, from an element of a float32 array on, are not zero: a bit each, int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.VectorType(ir.FloatType(), BITS)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        where = builder.bitcast(builder.gep(data, [arguments[1]]), whole.as_pointer())
        found = builder.fcmp_unordered("!=", builder.load(where, align=4), ir.Constant(whole, [0.0] * BITS))
        return builder.bitcast(found, ir.IntType(BITS))

    return types.int64(array, types.intp), generate


def _lowest(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


ask_for, nonzeros, lowest = intrinsic(_asking), intrinsic(_nonzeros), intrinsic(_lowest)
four_filters = _tile(4, 4, _multiplied)
one_filter, one_filter_wide = _tile(1, 4, _multiplied), _tile(1, 8, _multiplied)
largest_of_window = _tile(1, 4, _larger, weighted=False)
tall_rows, two_rows, one_row = map(_rows_tile, (TALL, 2, 1))
four_vectors, three_vectors, two_vectors, one_vector = map(_lines_tile, (4, 3, 2, 1))
