"""The order of a layer's inputs for tensor cores that multiply two of four neighbouring weights.

Few outputs should have three or four weights in one group of four. Laying rows out in an order takes the less, the more
neighbours stay together; `order_in_runs` finds out how many may.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array
from sparsenn.runtime.jit import compiled, example

# Inputs.
FOUR = 4  # of a group
UNIT = 8  # of a unit of 16 bytes
SLAB = 64  # of a slab

UNITS = SLAB // UNIT  # of a slab

# Words of bits that are compared, at most: tenths of a second each.
GREEDY_WORK = 300_000_000  # to find groups
SWAP_WORK = 200_000_000  # to mend groups by swaps

ATTEMPTS = 128  # swaps that are tried for a group with conflicts before the next group
RUNS = (4, 2, 1)  # inputs that may stay together: the longer, the faster rows are laid out in an order
SPARE = 1 + 1 / 128  # slabs of an order of longer runs, at most, over those of another order
HOPELESS = 4  # conflicts of a group with which nearly all units have some for each tile of outputs, whatever is swapped


def order_inputs(weights: CSC, run: int = 1) -> Array:
    """Return an order of a layer's inputs in which few outputs have more than two weights in a group of four.

    It has the input at each place, int64, -1 for none, filled up to a multiple of `UNIT`. Aligned runs of 1, 2 or 4
    inputs stay together; those that have a weight come first.
    """
    return _ordered(weights, run)[0]


def order_in_runs(weights: CSC, neurons: int) -> tuple[int, Array]:
    """Return (run, order) with the longest runs that add next to nothing to what is multiplied."""
    tiles = parts_of(weights.shape[1], neurons)
    fewest = tiles * parts_of(np.unique(weights.indices).size, SLAB)
    found = []
    for run in RUNS:
        order, units, conflicts = _ordered(weights, run)
        crowded = -math.expm1(-conflicts / max(1, tiles * units)) * units  # units of a tile with something left over
        slabs = tiles * parts_of(units, UNITS) + min(conflicts, tiles * math.ceil(crowded / UNITS))
        found.append((run, order, slabs))
        if slabs <= SPARE * fewest:
            break
    least = SPARE * min(slabs for _, _, slabs in found)
    return next((run, order) for run, order, slabs in found if slabs <= least)


def _ordered(weights: CSC, run: int) -> tuple[Array, int, int]:
    """Return an order of the inputs, how many units have weights, and the conflicts that are left."""
    inputs, outputs = weights.shape
    runs = parts_of(inputs, run)
    in_run, within = np.divmod(weights.indices.astype(np.int64), run)
    degrees = np.bincount(in_run, minlength=runs)
    used, empty = np.flatnonzero(degrees), np.flatnonzero(degrees == 0)
    groups = parts_of(used.size * run, FOUR)
    by_degree = used[np.argsort(-degrees[used], kind="stable")]
    bits = np.zeros((groups * FOUR, max(1, parts_of(outputs, 64))), np.uint64)
    rank = np.full(runs, -1, np.int64)
    rank[by_degree] = np.arange(by_degree.size)
    _set_bits(weights.indptr.astype(np.int64), rank[in_run] * run + within, bits)
    members, cost = np.empty((groups, FOUR), np.int64), np.empty(groups, np.int64)
    _group(bits, run, max(16, GREEDY_WORK // (3 * max(1, groups) * bits.shape[1])), members)
    _mend(bits, run, members, SWAP_WORK if run == 1 else SWAP_WORK // 8, cost)
    members = members[np.argsort(-cost, kind="stable")]  # what is left over is in few units
    room = groups * FOUR // run - used.size
    filled = np.full(groups * FOUR // run, -1, np.int64)
    filled[: used.size] = by_degree
    filled[used.size : used.size + empty[:room].size] = empty[:room]
    placed = np.concatenate([filled[members.ravel()[::run] // run], empty[room:]])
    order = np.where(placed[:, None] < 0, -1, placed[:, None] * run + np.arange(run)).ravel()
    order[order >= inputs] = -1
    return padded(order, UNIT), parts_of(groups * FOUR, UNIT), int(cost.sum())


def padded(order: Array, multiple: int) -> Array:
    """Return an order with as many places, filled up with -1, as some multiple has."""
    made = np.full(parts_of(order.size, multiple) * multiple, -1, np.int64)
    made[: order.size] = order
    return made


@compiled
def _set_bits(indptr: Array, rows: Array, bits: Array) -> None:
    for output in range(indptr.size - 1):
        for entry in range(indptr[output], indptr[output + 1]):
            bits[rows[entry], output >> 6] |= np.uint64(1) << np.uint64(output & 63)


@compiled
def _ones(word: Any) -> Any:
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _group(bits: Array, run: int, candidates: int, members: Array) -> None:
    """Group rows of bits by four, `members` (groups, 4): each begins with the first run left and takes those that fit.

    Of runs by chance it takes the one that adds the fewest places where three have a bit, and among those the one that
    adds the fewest where two have.
    """
    rows, words = bits.shape
    left = np.arange(rows // run)
    taken = np.zeros(rows // run, np.bool_)
    first, count, chance = 0, rows // run, np.uint64(88172645463325252)
    one, two, three = np.empty(words, np.uint64), np.empty(words, np.uint64), np.empty(words, np.uint64)
    for group in range(rows // 4):
        while taken[first]:
            first += 1
        at = 0
        for place in range(count):  # runs left are compacted, the first of them in front
            if not taken[left[place]]:
                left[at] = left[place]
                at += 1
        count = at
        one[:], two[:], three[:] = np.uint64(0), np.uint64(0), np.uint64(0)
        for member in range(0, 4, run):
            best, best_cost = left[0], np.int64(1) << 60
            for number in range(min(candidates, count) if member else 0):
                if count <= candidates:
                    other = left[number]
                else:
                    chance ^= chance << np.uint64(13)
                    chance ^= chance >> np.uint64(7)
                    chance ^= chance << np.uint64(17)
                    other = left[np.int64(chance % np.uint64(count))]
                if taken[other]:
                    continue
                conflicts, pairs = np.int64(0), np.int64(0)
                row, next_row = run * other, run * other + run - 1  # runs of four are not chosen from
                for word in range(words):
                    any_bit, both = bits[row, word] | bits[next_row, word], bits[row, word] & bits[next_row, word]
                    if run == 1:  # there is no other one
                        both = np.uint64(0)
                    conflicts += _ones((two[word] & any_bit | one[word] & both) & ~three[word])
                    pairs += _ones(one[word] & any_bit)
                cost = conflicts * (64 * words + 1) + pairs
                if cost < best_cost:
                    best, best_cost = other, cost
            if taken[best]:  # all that were drawn were taken
                best = first
                while taken[best]:
                    best += 1
            taken[best] = True
            for row in range(run):
                members[group, member + row] = run * best + row
                for word in range(words):
                    three[word] |= two[word] & bits[run * best + row, word]
                    two[word] |= one[word] & bits[run * best + row, word]
                    one[word] |= bits[run * best + row, word]


@compiled
def _conflicts(bits: Array, a: int, b: int, c: int, d: int) -> Any:
    """Return in how many places at least three of four rows have a bit."""
    found = np.int64(0)
    for word in range(bits.shape[1]):
        x, y, z, u = bits[a, word], bits[b, word], bits[c, word], bits[d, word]
        found += _ones((x & y & (z | u)) | (z & u & (x | y)))
    return found


@compiled
def _mend(bits: Array, run: int, members: Array, work: int, cost: Array) -> None:
    """Swap runs of groups with conflicts with others, by chance, unless that adds to the sum of conflicts.

    Where groups have more than `HOPELESS` on average, it would not help. `cost` takes the conflicts left in each group.
    """
    groups, words = members.shape[0], bits.shape[1]
    for group in range(groups):
        four = members[group]
        cost[group] = _conflicts(bits, four[0], four[1], four[2], four[3])
    chance, spent, left = np.uint64(362436069362436069), np.int64(0), cost.sum()
    while run < 4 and 0 < left <= HOPELESS * groups and spent < work and groups > 1:
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
                i = np.int64(chance & np.uint64(3)) // run * run
                j = np.int64((chance >> np.uint64(2)) & np.uint64(3)) // run * run
                mine, yours = members[group], members[other]
                _swap(mine, yours, i, j, run)
                new_mine = _conflicts(bits, mine[0], mine[1], mine[2], mine[3])
                new_yours = _conflicts(bits, yours[0], yours[1], yours[2], yours[3])
                spent += 2 * words + 16
                added = new_mine + new_yours - cost[group] - cost[other]
                if added <= 0:
                    cost[group], cost[other] = new_mine, new_yours
                    left += added
                else:
                    _swap(mine, yours, i, j, run)


@compiled
def _swap(mine: Array, yours: Array, i: Any, j: Any, run: int) -> None:
    for k in range(run):
        mine[i + k], yours[j + k] = yours[j + k], mine[i + k]


@example
def _example() -> None:
    weights = CSC((8, 4), np.arange(0, 13, 3), np.tile(np.arange(3, dtype=np.uint16), 4), np.ones(12, np.float32))
    order_in_runs(weights, 4)
