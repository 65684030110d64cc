"""Tiles: sums of a few vectors of lanes, for some filters or rows, that stay in registers from first to last product.

They are written in LLVM's own words: numba would keep the sums of a loop over lanes in memory, which takes twice as
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.core import cgutils, types
from numba.extending import intrinsic


def _has(feature: str) -> bool:
    """Return whether numba compiles for a processor with a feature: this one, unless NUMBA_CPU_FEATURES says which."""
    asked: str | None = numba.config.CPU_FEATURES
    return bool(get_host_cpu_features().get(feature)) if asked is None else f"+{feature}" in asked.split(",")


VECTOR = next((width for name, width in (("avx512f", 16), ("avx", 8)) if _has(name)), 4)
"""Numbers of a vector register."""

TILE = 4 * VECTOR  # lanes of a tile: of one output, or of some rows

GROUP = 4 if VECTOR == 16 else 2
"""Outputs whose sums over the lines of a panel are computed side by side: one's products wait for one another."""

TALL = 6 if VECTOR == 16 else 3
"""Rows of a tall tile: with four vectors each, about as many sums as there are registers for."""

_VECTOR = ir.VectorType(ir.FloatType(), VECTOR)
_WHOLE = ir.VectorType(ir.IntType(32), VECTOR)

number = partial(ir.Constant, ir.IntType(64))  # a constant place, or difference of places, of numba's `intp`


def element_place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return the address of an element of an array of numba's."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def vector_place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return the address of a vector whose first number is an element of an array."""
    return builder.bitcast(element_place(context, builder, kind, array, index), _VECTOR.as_pointer())


def spread(builder: Any, number: Any, lanes: int = VECTOR) -> Any:
    """Return a vector all of whose numbers are one."""
    none = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    one = builder.insert_element(none, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, none, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))


def multiplied(builder: Any, pixels: Any, weight: Any, total: Any) -> Any:
    """Return total + pixels * weight, which becomes a fused multiply-add."""
    return builder.fadd(total, builder.fmul(pixels, weight, flags=("contract",)), flags=("contract",))


def atomic(name: str) -> Any:
    """Return a function of an array, a place in it and a number, which is done in one step; all see its order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, value = arguments
        place = element_place(context, builder, signature.args[0], array, index)
        if name == "load":
            return builder.load_atomic(place, "seq_cst", 8)
        return builder.atomic_rmw(name, place, value, "seq_cst")

    def function(typing: Any, array: Any, index: Any, value: Any) -> Any:
        return types.int64(array, types.intp, types.int64), generate

    return intrinsic(function)


def _summing(typing: Any, panel: Any, at: Any, lines: Any, shifts: Any, first: Any, last: Any, weights: Any, v: Any,
             begins: Any, begin: Any, sums: Any, to: Any) -> Any:  # fmt: skip
    """Compute the sums of `TILE` lanes: what they begin with, and products of lines of a panel with a weight each.

    Called with a panel, and the place of the first lane in it at a shift of 0; how many numbers a shift skips; shifts,
    and the first and last of them; weights, and the place of the first; what the sums begin with, and its place; and
    where sums go, and the place of the first.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        panel, at, lines, shifts, first, last, weights, v, begins, begin, sums, to = arguments
        of_panel, _, _, of_shifts, _, _, of_weights, _, of_begins, _, of_sums, _ = signature.args
        vectors = range(TILE // VECTOR)

        totals = [cgutils.alloca_once(builder, _VECTOR) for _ in vectors]
        start = builder.load(element_place(context, builder, of_begins, begins, begin))
        for total in totals:
            builder.store(spread(builder, start), total)
        with cgutils.for_range(builder, builder.sub(last, first)) as loop:
            shift = builder.load(element_place(context, builder, of_shifts, shifts, builder.add(first, loop.index)))
            line = builder.add(at, builder.mul(shift, lines))
            index = builder.add(v, loop.index)
            weight = spread(builder, builder.load(element_place(context, builder, of_weights, weights, index)))
            for j, total in enumerate(totals):
                index = builder.add(line, number(j * VECTOR))
                met = builder.load(vector_place(context, builder, of_panel, panel, index), align=4)
                builder.store(multiplied(builder, met, weight, builder.load(total)), total)
        for j, total in enumerate(totals):
            index = builder.add(to, number(j * VECTOR))
            builder.store(builder.load(total), vector_place(context, builder, of_sums, sums, index), align=4)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(panel, whole, whole, shifts, whole, whole, weights, whole, begins, whole, sums, whole), generate


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

        def sums_at(row: int, vector: int) -> Any:
            index = builder.add(builder.add(to, builder.mul(across, number(row))), number(vector * VECTOR))
            return vector_place(context, builder, of_sums, sums, index)

        totals = {(i, j): cgutils.alloca_once(builder, _VECTOR) for i in range(height) for j in range(vectors)}
        for total in totals.values():
            builder.store(ir.Constant(_VECTOR, [0.0] * VECTOR), total)
        with builder.if_then(builder.not_(fresh)):
            for place, total in totals.items():
                builder.store(builder.load(sums_at(*place), align=4), total)
        starts = [
            element_place(context, builder, of_rows, rows, builder.add(at, builder.mul(apart, number(i))))
            for i in range(height)
        ]
        with cgutils.for_range(builder, inputs) as loop:
            begin = builder.add(first, builder.mul(loop.index, number(TILE)))
            places = [builder.add(begin, number(j * VECTOR)) for j in range(vectors)]
            met = [
                builder.load(vector_place(context, builder, of_weights, weights, place), align=4) for place in places
            ]
            for i, start in enumerate(starts):
                value = spread(builder, builder.load(builder.gep(start, [loop.index])))
                for j, some in enumerate(met):
                    total = totals[i, j]
                    builder.store(multiplied(builder, value, some, builder.load(total)), total)
        for place, total in totals.items():
            builder.store(builder.load(total), sums_at(*place), align=4)
        return context.get_dummy_value()

    def tile(typing: Any, rows: Any, at: Any, apart: Any, weights: Any, first: Any, inputs: Any, fresh: Any, sums: Any,
             to: Any, across: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(rows, whole, whole, weights, whole, whole, types.boolean, sums, whole, whole), generate

    return intrinsic(tile)


def _lines_tile(vectors: int) -> Any:
    """Return a function that adds products of a panel's lines, of some vectors each, to the sums of `GROUP` outputs.

    It is called with lines; steps, the first and the last, each of a line and a weight for every output; weights, the
    place of the first less that of the first line, and from one to the next; whether sums begin at zero; whether to
    finish: to add the biases, whose first place follows, and limit sums to a range; how often each sum that is not
    zero counts, and counts of the lanes; the outputs, and the place of the first of them; and sums.
    """
    across = vectors * VECTOR

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        names = ("panel", "lines", "first", "last", "weights", "v", "step", "fresh", "finish", "biases", "bias",
                 "low", "high", "copies", "counts", "outputs", "group", "sums")  # fmt: skip
        kinds, values = (dict(zip(names, each, strict=True)) for each in (signature.args, arguments))
        nothing, whole = ir.Constant(_VECTOR, [0.0] * VECTOR), values["first"].type

        def scalar(name: str, index: Any) -> Any:
            return builder.load(element_place(context, builder, kinds[name], values[name], index))

        def vector(name: str, index: Any) -> Any:
            return vector_place(context, builder, kinds[name], values[name], index)

        outputs = [
            builder.sext(scalar("outputs", builder.add(values["group"], number(i))), whole) for i in range(GROUP)
        ]
        totals, places = {}, {}
        for i, output in enumerate(outputs):
            line = builder.mul(output, number(across))
            for j in range(vectors):
                totals[i, j] = cgutils.alloca_once(builder, _VECTOR)
                places[i, j] = vector("sums", builder.add(line, number(j * VECTOR)))
                builder.store(nothing, totals[i, j])
        with builder.if_then(builder.not_(values["fresh"])):
            for key, total in totals.items():
                builder.store(builder.load(places[key], align=4), total)
        with cgutils.for_range(builder, builder.sub(values["last"], values["first"])) as loop:
            at = builder.mul(builder.add(values["first"], loop.index), number(GROUP))
            for i in range(GROUP):
                entry = builder.add(at, number(i))
                start = builder.mul(builder.zext(scalar("lines", entry), whole), number(across))
                index = builder.add(values["v"], builder.mul(entry, values["step"]))
                weight = spread(builder, scalar("weights", index))
                for j in range(vectors):
                    met = builder.load(vector("panel", builder.add(start, number(j * VECTOR))), align=4)
                    builder.store(multiplied(builder, met, weight, builder.load(totals[i, j])), totals[i, j])
        with builder.if_then(values["finish"]):
            low, high = spread(builder, values["low"]), spread(builder, values["high"])
            for i, output in enumerate(outputs):
                slot = builder.add(values["bias"], output)
                bias, copies = (spread(builder, scalar(name, slot)) for name in ("biases", "copies"))
                for j in range(vectors):
                    z = builder.fadd(builder.load(totals[i, j]), bias)
                    z = builder.select(builder.fcmp_ordered("<", z, low), low, z)
                    z = builder.select(builder.fcmp_ordered(">", z, high), high, z)
                    builder.store(z, totals[i, j])
                    place = builder.bitcast(vector("counts", number(j * VECTOR)), _WHOLE.as_pointer())
                    none = ir.Constant(_WHOLE, [0] * VECTOR)
                    more = builder.select(builder.fcmp_unordered("!=", z, nothing), copies, none)
                    builder.store(builder.add(builder.load(place, align=4), more), place, align=4)
        for key, total in totals.items():
            builder.store(builder.load(total), places[key], align=4)
        return context.get_dummy_value()

    def tile(typing: Any, panel: Any, lines: Any, first: Any, last: Any, weights: Any, v: Any, step: Any, fresh: Any,
             finish: Any, biases: Any, bias: Any, low: Any, high: Any, copies: Any, counts: Any, outputs: Any,
             group: Any, sums: Any) -> Any:  # fmt: skip
        whole, flag = types.intp, types.boolean
        return types.void(
            panel, lines, whole, whole, weights, whole, whole, flag, flag, biases, whole, types.float32, types.float32,
            copies, counts, outputs, whole, sums
        ), generate  # fmt: skip

    return intrinsic(tile)


def _transposing(typing: Any, source: Any, begin: Any, apart: Any, target: Any, to: Any, across: Any) -> Any:
    """Copy a square of `VECTOR` numbers a side, its lines as columns.

    Called with an array, the place of the first number, and from one line to the next; likewise of the other array.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, apart, target, to, across = arguments
        of_source, _, _, of_target, _, _ = signature.args

        def place(kind: Any, array: Any, first: Any, step: Any, line: int) -> Any:
            index = builder.add(first, builder.mul(step, number(line)))
            return vector_place(context, builder, kind, array, index)

        def woven(one: Any, other: Any, first: int) -> Any:
            lanes = [lane for i in range(first, first + VECTOR // 2) for lane in (i, VECTOR + i)]
            return builder.shuffle_vector(one, other, ir.Constant(_WHOLE, lanes))

        lines = [builder.load(place(of_source, source, begin, apart, i), align=4) for i in range(VECTOR)]
        for _ in range(VECTOR.bit_length() - 1):  # each time, lines become pairs of what were lines half a square apart
            pairs = list(zip(lines[: VECTOR // 2], lines[VECTOR // 2 :], strict=True))
            lines = [woven(one, other, first) for one, other in pairs for first in (0, VECTOR // 2)]
        for i, line in enumerate(lines):
            builder.store(line, place(of_target, target, to, across, i), align=4)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(source, whole, whole, target, whole, whole), generate


def _larger_of(builder: Any, one: Any, other: Any) -> Any:
    """Return the larger of two numbers, or of each two of vectors; a NaN is larger than any."""
    stays = builder.or_(builder.fcmp_ordered("<=", other, one), builder.fcmp_unordered("uno", one, one))
    return builder.select(stays, one, other)


def _larger(typing: Any, one: Any, other: Any) -> Any:
    """Return the larger of two numbers without a branch; a NaN is larger than any."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _larger_of(builder, *arguments)

    return types.float32(types.float32, types.float32), generate


def _raising(typing: Any, array: Any, to: Any, other: Any, begin: Any, vectors: Any, fresh: Any) -> Any:
    """Have some vectors of an array hold the larger numbers, its own or another array's; the other's if `fresh`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, to, other, begin, vectors, fresh = arguments
        of_array, _, of_other, _, _, _ = signature.args
        with cgutils.for_range(builder, vectors) as loop:
            lane = builder.mul(loop.index, number(VECTOR))
            place = vector_place(context, builder, of_array, array, builder.add(to, lane))
            met = vector_place(context, builder, of_other, other, builder.add(begin, lane))
            new, old = builder.load(met, align=4), builder.load(place, align=4)
            builder.store(builder.select(fresh, new, _larger_of(builder, old, new)), place, align=4)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(array, whole, other, whole, whole, types.boolean), generate


def _raising_squares(
    typing: Any, source: Any, begin: Any, apart: Any, target: Any, to: Any, step: Any, lines: Any, columns: Any
) -> Any:
    """Write the largest number of each square of 2 by 2; zeros fill what is left of a line's last vector.

    Called with an array, where its first line begins, and how far the next one is; an array, where the first line of
    largest numbers goes, and how far the next one is; how many lines go there, and the numbers of each.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, apart, target, to, step, lines, columns = arguments
        of_source, of_target = signature.args[0], signature.args[3]
        lanes, zero = ir.Constant(_WHOLE, list(range(VECTOR))), ir.Constant(_VECTOR, [0.0] * VECTOR)
        evens, odds = (ir.Constant(_WHOLE, list(range(first, 2 * VECTOR, 2))) for first in (0, 1))
        vectors = builder.sdiv(builder.add(columns, number(VECTOR - 1)), number(VECTOR))
        with cgutils.for_range(builder, lines) as line:
            above = builder.add(begin, builder.mul(line.index, builder.mul(apart, number(2))))
            first = builder.add(to, builder.mul(line.index, step))
            with cgutils.for_range(builder, vectors) as loop:
                done, halves = builder.mul(loop.index, number(VECTOR)), []
                for half in (0, VECTOR):
                    at = builder.add(above, builder.add(builder.mul(done, number(2)), number(half)))
                    places = (at, builder.add(at, apart))
                    met = (vector_place(context, builder, of_source, source, place) for place in places)
                    halves.append(_larger_of(builder, *(builder.load(place, align=4) for place in met)))
                found = _larger_of(builder, *(builder.shuffle_vector(*halves, chosen) for chosen in (evens, odds)))
                left = spread(builder, builder.trunc(builder.sub(columns, done), ir.IntType(32)))
                found = builder.select(builder.icmp_signed("<", lanes, left), found, zero)
                place = vector_place(context, builder, of_target, target, builder.add(first, done))
                builder.store(found, place, align=4)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(source, whole, whole, target, whole, whole, whole, whole), generate


def _sorting(
    typing: Any, source: Any, begin: Any, apart: Any, target: Any, even: Any, odd: Any, step: Any, lines: Any,
    columns: Any,
) -> Any:  # fmt: skip
    """Write every other number of some lines to one place, and those between to another, unless that is negative.

    Called with an array, where its first line begins, and how far the next one is; an array, where the first line goes
    of either, and how far the next one is; how many lines, and the numbers of each. Zeros fill a line up to the next
    one, and what is left of its last vector. A single line may be 0 from the next: it takes as many vectors as it has
    numbers for.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, apart, target, even, odd, step, lines, columns = arguments
        of_source, of_target = signature.args[0], signature.args[3]
        evens, zero = list(range(0, VECTOR, 2)), ir.Constant(_VECTOR, [0.0] * VECTOR)
        lanes, one = ir.Constant(_WHOLE, list(range(0, 2 * VECTOR, 2))), ir.Constant(ir.IntType(32), 1)
        is_alone = builder.icmp_signed("<", odd, number(0))
        # alone, the second vector begins a number earlier, so that none beyond the last one that counts is read
        second = builder.select(is_alone, number(VECTOR - 1), number(VECTOR))

        def move(first: Any, to: Any, done: Any) -> None:
            at = builder.add(first, builder.mul(done, number(2)))
            low, high = (
                builder.load(vector_place(context, builder, of_source, source, place), align=4)
                for place in (at, builder.add(at, second))
            )
            left = builder.trunc(builder.sub(columns, builder.mul(done, number(2))), ir.IntType(32))

            def write(place: Any, chosen: Sequence[int], left: Any) -> None:
                found = builder.shuffle_vector(low, high, ir.Constant(_WHOLE, chosen))
                found = builder.select(builder.icmp_signed("<", lanes, spread(builder, left)), found, zero)
                index = builder.add(place, builder.add(to, done))
                builder.store(found, vector_place(context, builder, of_target, target, index), align=4)

            with builder.if_else(is_alone) as (alone, both):
                with alone:
                    write(even, [*evens, *(VECTOR + 1 + i for i in evens)], left)
                with both:
                    write(even, list(range(0, 2 * VECTOR, 2)), left)
                    write(odd, list(range(1, 2 * VECTOR, 2)), builder.sub(left, one))

        is_single = builder.icmp_signed("==", step, number(0))
        extent = builder.select(is_single, builder.sdiv(builder.add(columns, number(1)), number(2)), step)
        with cgutils.for_range(builder, lines) as line:
            first, to = builder.add(begin, builder.mul(line.index, apart)), builder.mul(line.index, step)
            move(first, to, number(0))
            # further vectors begin where a cache line does: to write across two takes several times as long
            beyond = builder.and_(builder.add(even, to), number(VECTOR - 1))
            done = builder.select(is_single, number(VECTOR), builder.sub(number(VECTOR), beyond))
            vectors = builder.sdiv(builder.add(builder.sub(extent, done), number(VECTOR - 1)), number(VECTOR))
            with cgutils.for_range(builder, vectors) as loop:
                move(first, to, builder.add(done, builder.mul(loop.index, number(VECTOR))))
        return context.get_dummy_value()

    whole = types.intp
    return types.void(source, whole, whole, target, whole, whole, whole, whole, whole), generate


def _adding_lines(typing: Any, totals: Any, array: Any, begin: Any, apart: Any, lines: Any, columns: Any) -> Any:
    """Have float64 totals be the sums of columns, line after line; what the last vectors read beyond is added up, too.

    Called with the totals; an array, where its first line begins, and how far the next one is; how many lines, and the
    numbers of each.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals, array, begin, apart, lines, columns = arguments
        of_totals, of_array = signature.args[:2]
        doubles = ir.VectorType(ir.DoubleType(), VECTOR)
        total = cgutils.alloca_once(builder, doubles)
        vectors = builder.sdiv(builder.add(columns, number(VECTOR - 1)), number(VECTOR))
        with cgutils.for_range(builder, vectors) as loop:
            done = builder.mul(loop.index, number(VECTOR))
            builder.store(ir.Constant(doubles, [0.0] * VECTOR), total)
            first = builder.add(begin, done)
            with cgutils.for_range(builder, lines) as line:
                index = builder.add(first, builder.mul(line.index, apart))
                met = builder.load(vector_place(context, builder, of_array, array, index), align=4)
                builder.store(builder.fadd(builder.load(total), builder.fpext(met, doubles)), total)
            place = element_place(context, builder, of_totals, totals, done)
            builder.store(builder.load(total), builder.bitcast(place, doubles.as_pointer()), align=8)
        return context.get_dummy_value()

    whole = types.intp
    return types.void(totals, array, whole, whole, whole, whole), generate


add_lines, larger, one_filter, raise_squares, raise_vectors, sort_lines = map(
    intrinsic, (_adding_lines, _larger, _summing, _raising_squares, _raising, _sorting)
)
transpose_square = intrinsic(_transposing)
tall_rows, two_rows, one_row = map(_rows_tile, (TALL, 2, 1))
four_vectors, three_vectors, two_vectors, one_vector = map(_lines_tile, (4, 3, 2, 1))
