"""Sparse weights in the form of which Hopper's tensor cores multiply only two of four neighbours; on the host.

An output may have weights of two of four neighbouring inputs. Which inputs are neighbours is free: `order_inputs` looks
for an order in which few outputs have three or four weights in one group of four. What is left over goes into slabs of
its own, so that any weights can be packed. `sparse/two_of_four.cuh` says how the bytes lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array
from sparsenn.jit import compiled, example

__all__ = [
    "FOUR",
    "GROUP",
    "LOWEST",
    "SLAB",
    "UNIT",
    "UNITS",
    "WEIGHT_EXPONENT",
    "Packed",
    "count_conflicts",
    "group_bytes",
    "order_inputs",
    "pack",
    "padded",
    "plain_order",
]

FOUR, UNIT, SLAB, GROUP = 4, 8, 64, 64
"""Inputs of a group, of a unit of 16 bytes, and of a slab; outputs that one instruction multiplies."""

UNITS = SLAB // UNIT
"""Of a slab."""

PLACES_BYTES = 4 * 128
"""Where the weights of a slab and 64 outputs belong: a word a thread of a warpgroup."""

WEIGHT_EXPONENT = 14
"""Weights of an output are scaled so that all are below two to the power of this."""

LOWEST, HIGHEST = -100, 127
"""Exponents that weights are scaled by."""

GREEDY_WORK, SWAP_WORK = 300_000_000, 200_000_000
"""Words of bits that are looked at, at most, to find groups, and to mend them by swaps: tenths of a second each."""

ATTEMPTS = 128
"""Swaps that are tried for a group with conflicts before the next one has its turn."""

HOPELESS = 4
"""Conflicts of a group with which nearly all units have some for each tile of outputs, whatever is swapped."""


# ---- The order of inputs ----------------------------------------------------------------------------------------


def order_inputs(weights: CSC) -> Array:
    """Return an order of a layer's inputs in which few outputs have more than two weights in a group of four.

    It takes 0.1 seconds for 4096 x 4096, and 0.3 for 16384 x 16384, with a twentieth and a hundredth of all weights.

    Parameters
    ----------
    weights : on the host; columns are outputs.

    Returns
    -------
    (a multiple of `UNIT`,) int64: the input at each place, each once; -1 where there is none. Inputs that have a weight
    come first.
    """
    inputs, outputs = weights.shape
    degrees = np.bincount(weights.indices, minlength=inputs)
    used, empty = np.flatnonzero(degrees), np.flatnonzero(degrees == 0)
    groups = parts_of(used.size, FOUR)
    by_degree = used[np.argsort(-degrees[used], kind="stable")]
    bits = np.zeros((groups * FOUR, max(1, parts_of(outputs, 64))), np.uint64)
    row = np.full(inputs, -1, np.int64)
    row[by_degree] = np.arange(by_degree.size)
    _set_bits(weights.indptr.astype(np.int64), row[weights.indices], bits)
    members, cost = np.empty((groups, FOUR), np.int64), np.empty(groups, np.int64)
    _group(bits, max(16, GREEDY_WORK // (3 * max(1, groups) * bits.shape[1])), members)
    _mend(bits, members, SWAP_WORK, cost)
    members = members[np.argsort(-cost, kind="stable")]  # what is left over is in few units
    room = groups * FOUR - used.size
    filled = np.full(groups * FOUR, -1, np.int64)
    filled[: used.size] = by_degree
    filled[used.size : used.size + empty[:room].size] = empty[:room]
    return padded(np.concatenate([filled[members.ravel()], empty[room:]]), UNIT)


def plain_order(width: int) -> Array:
    """Return the order of numbers that stay where they are; as `order_inputs` returns one."""
    return padded(np.arange(width), UNIT)


def padded(order: Array, multiple: int) -> Array:
    """Return an order with as many places, filled up with -1, as some multiple has."""
    made = np.full(parts_of(order.size, multiple) * multiple, -1, np.int64)
    made[: order.size] = order
    return made


def count_conflicts(weights: CSC, order: Array) -> int:
    """Return how many weights are left over: those of an output in a group of four beyond its first two."""
    _, _, slot = _slots_of(weights, order, np.arange(weights.shape[1]))
    return int((slot >= 2).sum())


@compiled
def _set_bits(indptr: Array, rows: Array, bits: Array) -> None:
    for output in range(indptr.size - 1):
        for entry in range(indptr[output], indptr[output + 1]):
            bits[rows[entry], output >> 6] |= np.uint64(1) << np.uint64(output & 63)


@compiled
def _ones(word: Any) -> Any:
    """Return how many bits of a word are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _group(bits: Array, candidates: int, members: Array) -> None:
    """Group rows of bits by four, `members` (groups, 4): each begins with the first row left and takes those that fit.

    Of rows by chance it takes the one that adds the fewest places where three have a bit, and among those the one that
    adds the fewest where two have.
    """
    rows, words = bits.shape
    left = np.arange(rows)
    taken = np.zeros(rows, np.bool_)
    first, count, chance = 0, rows, np.uint64(88172645463325252)
    one, two, three = np.empty(words, np.uint64), np.empty(words, np.uint64), np.empty(words, np.uint64)
    for group in range(rows // 4):
        while taken[first]:
            first += 1
        at = 0
        for place in range(count):  # rows left are compacted, the first of them in front
            if not taken[left[place]]:
                left[at] = left[place]
                at += 1
        count = at
        members[group, 0] = left[0]
        taken[left[0]] = True
        for word in range(words):
            one[word], two[word], three[word] = bits[left[0], word], np.uint64(0), np.uint64(0)
        for member in range(1, 4):
            best, best_cost = -1, np.int64(1) << 60
            for number in range(min(candidates, count)):
                if count <= candidates:
                    row = left[number]
                else:
                    chance ^= chance << np.uint64(13)
                    chance ^= chance >> np.uint64(7)
                    chance ^= chance << np.uint64(17)
                    row = left[np.int64(chance % np.uint64(count))]
                if taken[row]:
                    continue
                conflicts, pairs = np.int64(0), np.int64(0)
                for word in range(words):
                    conflicts += _ones(two[word] & ~three[word] & bits[row, word])
                    pairs += _ones(one[word] & bits[row, word])
                cost = conflicts * (64 * words + 1) + pairs
                if cost < best_cost:
                    best, best_cost = row, cost
            if best < 0:  # all that were drawn were taken
                best = first
                while taken[best]:
                    best += 1
            members[group, member] = best
            taken[best] = True
            for word in range(words):
                three[word] |= two[word] & bits[best, word]
                two[word] |= one[word] & bits[best, word]
                one[word] |= bits[best, word]


@compiled
def _conflicts(bits: Array, a: int, b: int, c: int, d: int) -> Any:
    """Return in how many places at least three of four rows have a bit."""
    found = np.int64(0)
    for word in range(bits.shape[1]):
        x, y, z, u = bits[a, word], bits[b, word], bits[c, word], bits[d, word]
        found += _ones((x & y & (z | u)) | (z & u & (x | y)))
    return found


@compiled
def _mend(bits: Array, members: Array, work: int, cost: Array) -> None:
    """Swap members of groups with conflicts with others, by chance, unless that adds to the sum of conflicts.

    Where groups have more than `HOPELESS` on average, it would not help.

    cost : (groups,) int64, takes the conflicts that each is left with.
    """
    groups, words = members.shape[0], bits.shape[1]
    for group in range(groups):
        four = members[group]
        cost[group] = _conflicts(bits, four[0], four[1], four[2], four[3])
    chance, spent, left = np.uint64(362436069362436069), np.int64(0), cost.sum()
    while 0 < left <= HOPELESS * groups and spent < work and groups > 1:
        for group in range(groups):
            for _ in range(ATTEMPTS):
                if cost[group] == 0 or spent >= work:
                    break
                chance ^= chance << np.uint64(13)
                chance ^= chance >> np.uint64(7)
                chance ^= chance << np.uint64(17)
                other = np.int64((chance >> np.uint64(8)) % np.uint64(groups))
                if other == group:
                    continue
                i, j = np.int64(chance & np.uint64(3)), np.int64((chance >> np.uint64(2)) & np.uint64(3))
                mine, yours = members[group], members[other]
                mine[i], yours[j] = yours[j], mine[i]
                new_mine = _conflicts(bits, mine[0], mine[1], mine[2], mine[3])
                new_yours = _conflicts(bits, yours[0], yours[1], yours[2], yours[3])
                spent += 2 * words + 16
                added = new_mine + new_yours - cost[group] - cost[other]
                if added <= 0:
                    cost[group], cost[other] = new_mine, new_yours
                    left += added
                else:
                    mine[i], yours[j] = yours[j], mine[i]


# ---- Packing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Packed:
    """A layer's weights as the kernel multiplies them.

    Parameters
    ----------
    shape : (places of inputs, places of outputs), those that are none included.
    neurons : outputs of a tile, a multiple of `GROUP`.
    planes : 2 where numbers are split into a high and a low half, else 1.
    image : uint8, slab by slab, those of a tile one after the other: for each `GROUP` of the tile, for each plane, the
        weights.
    places : uint32, likewise for each `GROUP` a word for each thread of four warps: where the weights belong.
    starts : (tiles + 1,) int32, the first slab of each tile, and the end.
    units : (slabs, `UNITS`) int32, the units of inputs that a slab multiplies.
    scales : (places of outputs,) float32, powers of two by which sums are multiplied in the end.
    extra : slabs that there are only for what was left over.
    """

    shape: tuple[int, int]
    neurons: int
    planes: int
    image: Array
    places: Array
    starts: Array
    units: Array
    scales: Array
    extra: int


def group_bytes(planes: int) -> int:
    """Return the bytes of a slab's weights for `GROUP` outputs."""
    return planes * GROUP * SLAB


def pack(weights: CSC, order: Array, outputs: Array, neurons: int, planes: int) -> Packed:
    """Pack a layer's weights, on the host.

    Parameters
    ----------
    order : the input at each place, as `order_inputs` has it.
    outputs : likewise, the output at each place.
    neurons : outputs of a tile.
    planes : 1 or 2.
    """
    outputs = padded(outputs, neurons)
    tiles = outputs.size // neurons
    place, values, slot = _slots_of(weights, order, outputs)
    input_place, output_place = place
    tile, row = np.divmod(output_place, neurons)
    exponents = _exponents(output_place, values, outputs.size)
    halves = _halves(np.ldexp(values, WEIGHT_EXPONENT - exponents[output_place]), planes)
    listed = _Slabs.of(tiles, order.size // UNIT, tile, input_place // UNIT, slot >= 2)
    slab, unit = listed.find(tile, input_place // UNIT, slot >= 2)
    groups = listed.units.shape[0], neurons // GROUP
    image = np.zeros((*groups, group_bytes(planes)), np.uint8)
    places = np.full((*groups, PLACES_BYTES), 0x44, np.uint8)  # any two that differ
    _write(image, places, slab, row, unit * UNIT + input_place % UNIT, slot % 2, halves)
    return Packed(
        (order.size, outputs.size),
        neurons,
        planes,
        image.reshape(-1),
        places.reshape(-1).view(np.uint32),
        listed.starts,
        listed.units,
        np.ldexp(np.float32(1), exponents).astype(np.float32),
        listed.extra,
    )


def _slots_of(weights: CSC, order: Array, outputs: Array) -> tuple[tuple[Array, Array], Array, Array]:
    """Return the places of each weight's input and output, sorted; values; and which it is of its four."""
    place_of_input = np.zeros(weights.shape[0], np.int64)
    place_of_input[order[order >= 0]] = np.flatnonzero(order >= 0)
    place_of_output = np.zeros(weights.shape[1], np.int64)
    place_of_output[outputs[outputs >= 0]] = np.flatnonzero(outputs >= 0)
    column = np.repeat(np.arange(weights.shape[1]), np.diff(weights.indptr))
    key = place_of_output[column] * order.size + place_of_input[weights.indices]
    sorting = np.argsort(key, kind="stable")
    values = np.broadcast_to(weights.values, key.shape)[sorting].astype(np.float64)
    output_place, input_place = np.divmod(key[sorting], max(1, order.size))
    four = key[sorting] // FOUR
    begins = np.ones(four.size, bool)
    begins[1:] = four[1:] != four[:-1]
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1] if four.size else four
    return (input_place, output_place), values, np.arange(four.size) - first


def _exponents(output: Array, values: Array, outputs: int) -> Array:
    """Return for each output the exponent of the smallest power of two above all its weights; 0 without weights."""
    largest = np.zeros(outputs)
    np.maximum.at(largest, output, np.abs(values))
    exponents: Array = np.clip(np.frexp(largest)[1], LOWEST, HIGHEST)
    return exponents


def _halves(scaled: Array, planes: int) -> Array:
    """Return numbers as halves, shape (planes, numbers): each, and what that leaves of it."""
    high = scaled.astype(np.float16)
    return np.stack([high, (scaled - high.astype(np.float64)).astype(np.float16)][:planes])


@dataclass(frozen=True, eq=False)
class _Slabs:
    """The slabs of all tiles, and where units are in them.

    Parameters
    ----------
    starts, units, extra : as of `Packed`.
    slab, unit : (tiles, 2, units of inputs) int64: where a unit of a tile is, and that of what was left over.
    """

    starts: Array
    units: Array
    extra: int
    slab: Array
    unit: Array

    @classmethod
    def of(cls, tiles: int, all_units: int, tile: Array, unit: Array, left_over: Array) -> _Slabs:
        """List the units that weights have, then those of what was left over, eight a slab; the last may repeat."""
        present = np.zeros((tiles, 2, all_units), bool)
        present[tile, left_over.astype(np.int64), unit] = True
        slab, within = np.zeros(present.shape, np.int64), np.zeros(present.shape, np.int64)
        starts, listed, extra = np.zeros(tiles + 1, np.int32), [np.zeros((0, UNITS), np.int32)], 0
        for number, of_tile in enumerate(present):
            there = np.nonzero(of_tile)
            count = there[1].size
            slab[number][there] = starts[number] + np.arange(count) // UNITS
            within[number][there] = np.arange(count) % UNITS
            slabs = parts_of(count, UNITS)
            filled = np.full(slabs * UNITS, there[1][-1] if count else 0, np.int32)
            filled[:count] = there[1]
            listed.append(filled.reshape(slabs, UNITS))
            starts[number + 1] = starts[number] + slabs
            extra += slabs - parts_of(int(of_tile[0].sum()), UNITS)
        return cls(starts, np.concatenate(listed), extra, slab, within)

    def find(self, tile: Array, unit: Array, left_over: Array) -> tuple[Array, Array]:
        """Return each weight's slab, and its unit's place there."""
        which = tile, left_over.astype(np.int64), unit
        return self.slab[which], self.unit[which]


def _write(image: Array, places: Array, slab: Array, row: Array, depth: Array, number: Array, halves: Array) -> None:
    """Write weights, sorted so that those of one four are neighbours, and where they belong.

    Parameters
    ----------
    image, places : uint8 (slabs, groups of outputs, bytes), of slabs without weights.
    slab, row, depth : of each weight: the slab, the output of the tile, and the input of the slab.
    number : 0 or 1: which it is of the one or two of its four.
    halves : (planes, weights).
    """
    if not slab.size:
        return
    alone = np.ones(slab.size, bool)  # of its four
    second = np.flatnonzero(number == 1)
    partner = second - 1
    alone[second] = alone[partner] = False
    place = depth % FOUR
    slot = np.where(alone, place == FOUR - 1, number == 1).astype(np.int64)
    group, line = np.divmod(row, GROUP)
    column = depth // FOUR * 2 + slot
    at = (column // UNIT * GROUP + line) * 2 * UNIT + column % UNIT * 2
    words = image.view(np.uint16)
    for plane, numbers in enumerate(halves.view(np.uint16)):
        words[slab, group, (plane * GROUP * SLAB + at) // 2] = numbers
    nibble = np.where(place == FOUR - 1, place << 2, place | (FOUR - 1) << 2)  # where the other one is zero
    nibble[partner] = nibble[second] = place[partner] | place[second] << 2
    warp, line = np.divmod(line, 16)
    lower, g = np.divmod(line, 8)
    step, four = np.divmod(depth // FOUR, 8)
    half, four = np.divmod(four, 4)
    thread = warp * 32 + g * 4 + step * 2 + half
    where = slab, group, 4 * thread + 2 * lower + four // 2
    upper = four % 2 == 1
    for chosen, shift in ((~upper, 0), (upper, 4)):
        of_chosen = tuple(index[chosen] for index in where)
        kept = places[of_chosen] & (0xF0 if shift == 0 else 0x0F)
        places[of_chosen] = kept | (nibble[chosen] << shift).astype(np.uint8)


@example
def _example() -> None:
    weights = CSC((8, 4), np.arange(0, 13, 3), np.tile(np.arange(3, dtype=np.uint16), 4), np.ones(12, np.float32))
    order_inputs(weights)
