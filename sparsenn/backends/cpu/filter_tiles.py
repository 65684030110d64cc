"""Tiles of a convolution: sums of some filters at some vectors of lanes, in registers from the bias to the store.

They are written in LLVM's own words, as those in `tiles`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic

from sparsenn.backends.cpu.tiles import VECTOR, atomic, element_place, multiplied, number, spread, vector_place

SHARING = 4
"""Filters that walk their taps together."""

MOST_VECTORS, MOST_SHARED = (8, 4) if VECTOR == 16 else (6, 2)
"""Vectors of a tile at most, of a pair of filters and of those that share taps: as many as registers hold the sums of.
A tile of a pair has any number up to that, one of filters that share taps a power of two."""

_VECTOR = ir.VectorType(ir.FloatType(), VECTOR)
_WHOLE = ir.VectorType(ir.IntType(32), VECTOR)


class _Tile:
    """The code of one call: the values of its arguments, and the sums."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._context, self._builder = context, builder
        names = ("arena", "at", "shifts", "weights", "spans", "begins", "outs", "sums", "partial", "residual", "mask",
                 "mask_at", "flags", "clip", "vectors")  # fmt: skip
        self._kinds = dict(zip(names, signature.args, strict=True))
        self._values = dict(zip(names, arguments, strict=True))

    def unpacked(self, name: str) -> Sequence[Any]:
        return cgutils.unpack_tuple(self._builder, self._values[name])

    def scalar(self, name: str, index: Any) -> Any:
        where = element_place(self._context, self._builder, self._kinds[name], self._values[name], index)
        return self._builder.load(where)

    def vector_at(self, name: str, index: Any) -> Any:
        return vector_place(self._context, self._builder, self._kinds[name], self._values[name], index)

    def flag(self, bit: int) -> Any:
        found = self._builder.and_(self._values["flags"], number(bit))
        return self._builder.icmp_signed("!=", found, number(0))

    def begin(self, filters: int, vectors: int) -> list[list[Any]]:
        """Return the sums, which begin with the biases, or as the taps of other channels left them."""
        builder = self._builder
        totals = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(vectors)] for _ in range(filters)]
        with builder.if_else(self.flag(8)) as (continued, fresh):
            with continued:
                for total, place in zip(itertools.chain(*totals), self._partial(filters, vectors), strict=True):
                    builder.store(builder.load(place, align=4), total)
            with fresh:
                for start, row in zip(self.unpacked("begins"), totals, strict=True):
                    for total in row:
                        builder.store(spread(builder, start), total)
        return totals

    def _partial(self, filters: int, vectors: int) -> Iterator[Any]:
        """Yield the places of partial sums."""
        for first in self.unpacked("partial")[:filters]:
            for j in range(vectors):
                yield self.vector_at("sums", self._builder.add(first, number(j * VECTOR)))

    def pixels(self, tap: Any, vectors: int) -> list[Any]:
        """Return places of the pixels that a tap meets."""
        shift = self._builder.sext(self.scalar("shifts", tap), ir.IntType(64))
        base = self._builder.add(self._values["at"], shift)
        return [self.vector_at("arena", self._builder.add(base, number(j * VECTOR))) for j in range(vectors)]

    def multiply(self, row: Sequence[Any], pixels: Sequence[Any], weight: Any) -> None:
        """Add products with a weight to a filter's sums."""
        builder, value = self._builder, spread(self._builder, self.scalar("weights", weight))
        for total, pixel in zip(row, pixels, strict=True):
            met = builder.load(pixel, align=4)
            builder.store(multiplied(builder, met, value, builder.load(total)), total)

    def walk(self, rows: Sequence[Sequence[Any]], firsts: Sequence[Any], count: Any) -> None:
        """Add products of some filters, each with taps of its own, which begin at `firsts`."""
        with cgutils.for_range(self._builder, count) as loop:
            for row, first in zip(rows, firsts, strict=True):
                tap = self._builder.add(first, loop.index)
                self.multiply(row, self.pixels(tap, len(row)), tap)

    def end(self, totals: Sequence[Sequence[Any]]) -> None:
        """Store the sums where the taps of other channels go on with them, or finish them."""
        builder = self._builder
        with builder.if_else(self.flag(16)) as (goes_on, finished):
            with goes_on:
                places = self._partial(len(totals), len(totals[0]))
                for total, place in zip(itertools.chain(*totals), places, strict=True):
                    builder.store(builder.load(total), place, align=4)
            with finished:
                self._finish(totals)

    def _finish(self, totals: Sequence[Sequence[Any]]) -> None:
        """Add the residual, apply a clip, leave padding zero, and store, each where the flags say so."""
        builder = self._builder
        places = [
            (total, builder.add(out, number(j * VECTOR)), j)
            for out, row in zip(self.unpacked("outs"), totals, strict=True)
            for j, total in enumerate(row)
        ]
        with builder.if_then(self.flag(1)):
            for total, out, _ in places:
                met = builder.load(self.vector_at("arena", builder.add(out, self._values["residual"])), align=4)
                builder.store(builder.fadd(builder.load(total), met), total)
        with builder.if_then(self.flag(2)):
            zero, clip = ir.Constant(_VECTOR, [0.0] * VECTOR), spread(builder, self._values["clip"])
            for total, _, _ in places:
                z = builder.load(total)
                below = builder.select(builder.fcmp_ordered(">", z, clip), clip, z)
                builder.store(builder.select(builder.fcmp_ordered("<", z, zero), zero, below), total)
        with builder.if_then(self.flag(4)):
            for total, _, j in places:
                index = builder.add(self._values["mask_at"], number(j * VECTOR))
                bits = builder.bitcast(self.vector_at("mask", index), _WHOLE.as_pointer())
                some = builder.and_(builder.bitcast(builder.load(total), _WHOLE), builder.load(bits, align=4))
                builder.store(builder.bitcast(some, _VECTOR), total)
        for total, out, _ in places:
            builder.store(builder.load(total), self.vector_at("arena", out), align=4)


def _pair(tile: _Tile, builder: Any, vectors: int) -> None:
    """Walk both filters' taps as long as both have any, so that one's sums hide the latency of the other's."""
    first, last, other_first, other_last = tile.unpacked("spans")
    count, other = builder.sub(last, first), builder.sub(other_last, other_first)
    both = builder.select(builder.icmp_signed("<", count, other), count, other)
    rows = tile.begin(2, vectors)
    tile.walk(rows, (first, other_first), both)
    tile.walk(rows[:1], (builder.add(first, both),), builder.sub(count, both))
    tile.walk(rows[1:], (builder.add(other_first, both),), builder.sub(other, both))
    tile.end(rows)


def _sharing(tile: _Tile, builder: Any, vectors: int) -> None:
    """Walk the taps once: a pixel that is loaded serves all filters."""
    first, last, weight = tile.unpacked("spans")
    rows = tile.begin(SHARING, vectors)
    with cgutils.for_range(builder, builder.sub(last, first)) as loop:
        pixels = tile.pixels(builder.add(first, loop.index), vectors)
        begin = builder.add(weight, builder.mul(loop.index, number(SHARING)))
        for k, row in enumerate(rows):
            tile.multiply(row, pixels, builder.add(begin, number(k)))
    tile.end(rows)


def _tile(filters: int, spans: int, sizes: Sequence[int], body: Any) -> Any:
    """Return a function that computes a tile of one of some numbers of vectors.

    It is called with the arena, and the place in it that a shift of 0 meets at the first lane; shifts and weights of
    all taps; the filters' first and last tap; what their sums begin with; where they go; partial sums, and the filters'
    places there; the distance from where sums go to what is added to them; a mask, and its place for the first lane;
    flags: 1 to add, 2 to clip, 4 to mask, 8 to begin with partial sums, 16 to end with such; the clip; and how many
    vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end = builder.append_basic_block()
        switch = builder.switch(arguments[-1], end)
        for vectors in sizes:
            block = builder.append_basic_block()
            switch.add_case(ir.Constant(arguments[-1].type, vectors), block)
            builder.position_at_end(block)
            body(_Tile(context, builder, signature, arguments), builder, vectors)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    def tile(typing: Any, arena: Any, at: Any, shifts: Any, weights: Any, spans_: Any, begins: Any, outs: Any,
             sums: Any, partial: Any, residual: Any, mask: Any, mask_at: Any, flags: Any, clip: Any,
             vectors: Any) -> Any:  # fmt: skip
        whole = types.intp
        return types.void(
            arena, whole, shifts, weights, UniTuple(whole, spans), UniTuple(types.float32, filters),
            UniTuple(whole, filters), sums, UniTuple(whole, filters), whole, mask, whole, whole, types.float32, whole
        ), generate  # fmt: skip

    return intrinsic(tile)


pair_of_filters = _tile(2, 4, range(1, MOST_VECTORS + 1), _pair)
sharing_filters = _tile(SHARING, 3, [size for size in (1, 2, 4) if size <= MOST_SHARED], _sharing)
add_atomically, read_atomically = atomic("add"), atomic("load")
