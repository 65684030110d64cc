"""Finding groups (rows of a CSR, columns of a CSC, rows of a dense matrix) that are equal bit for bit.

Groups are hashed, then every group is compared whole with the first one of the same hash: the hash only saves
comparisons, it never decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.formats.arrays import Array
from sparsenn.formats.compressed import Compressed
from sparsenn.runtime.jit import compiled
from sparsenn.runtime.workers import chunks, map_threads

_HASHED = 4096  # groups hashed per task


@compiled
def _stir(state: Any, word: Any, factor: Any) -> Any:
    mixed = (state ^ word) * factor
    return mixed ^ (mixed >> np.uint64(29))


@compiled
def _packed(words: Array, at: int, count: int, bits: int) -> Any:
    """Pack `count` words of `bits` bits into one of 64."""
    packed = np.uint64(0)
    for k in range(count):
        packed |= np.uint64(words[at + k]) << np.uint64(bits * k)
    return packed


@compiled
def _hash_spans(words: Array, offsets: Array, start: int, stop: int, hashes: Array) -> None:
    """Mix the words of each span (words[offsets[g]:offsets[g + 1]]) into hashes[g], for g in start..stop.

    Eight words of 16 or 32 bits at a time go, packed into 64 bits, into two states with different odd multipliers
    (from the fractional parts of the golden ratio and of e), which hides the multiplier's latency.
    """
    p, q = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xB7E151628AED2A6B)
    narrow = words.itemsize == 2
    for group in range(start, stop):
        at, last = offsets[group], offsets[group + 1]
        one, two = np.uint64(last - at) * p, q
        while at + 8 <= last:
            if narrow:
                one = _stir(one, _packed(words, at, 4, 16), p)
                two = _stir(two, _packed(words, at + 4, 4, 16), q)
            else:
                one = _stir(one, _packed(words, at, 2, 32), p)
                two = _stir(two, _packed(words, at + 2, 2, 32), q)
                one = _stir(one, _packed(words, at + 4, 2, 32), p)
                two = _stir(two, _packed(words, at + 6, 2, 32), q)
            at += 8
        while at < last:
            one = _stir(one, np.uint64(words[at]), p)
            at += 1
        hashes[group] ^= _stir(one ^ (two >> np.uint64(32)) ^ (two << np.uint64(32)), np.uint64(0), p)


@compiled
def _same(words: Array, offsets: Array, left: int, right: int) -> bool:
    a, b = offsets[left], offsets[right]
    length = offsets[left + 1] - a
    if length != offsets[right + 1] - b:
        return False
    for k in range(length):  # noqa: SIM110 - numba compiles no generators here
        if words[a + k] != words[b + k]:
            return False
    return True


def _group_equal(hashes: Array, words: Array, offsets: Array, more: Array, more_offsets: Array) -> tuple[Array, Array]:
    """Group spans that are equal in `words` and in `more`, found by hash, then compared whole.

    hashes : (groups,) uint64. words, more : uint32 or uint16, `more` may be empty; offsets : (groups + 1,) int64.
    Returns (representatives, group): the first span of each group, increasing, and every span's group; int64.
    """
    representatives, group = np.empty(hashes.size, np.int64), np.empty(hashes.size, np.int64)
    found = _find_equal(hashes, words, offsets, more, more_offsets, representatives, group)
    return representatives[:found].copy(), group


@compiled
def _find_equal(
    hashes: Array,
    words: Array,
    offsets: Array,
    more: Array,
    more_offsets: Array,
    representatives: Array,
    group: Array,
) -> int:
    """Write what `_group_equal` returns; returns how many groups there are."""
    total = hashes.size
    size = 16
    while size < 2 * total:
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int64)
    found = 0
    for row in range(total):
        slot = hashes[row] & mask
        while True:
            known = table[slot]
            if known < 0:
                table[slot] = found
                representatives[found] = row
                group[row] = found
                found += 1
                break
            other = representatives[known]
            same = hashes[other] == hashes[row]
            same = same and _same(words, offsets, other, row)
            if same and (more.size == 0 or _same(more, more_offsets, other, row)):
                group[row] = known
                break
            slot = (slot + np.uint64(1)) & mask
    return found


def _words(values: Array) -> Array:
    """View 16-, 32- and 64-bit elements as 16- or 32-bit words: equality of words is equality of bits."""
    return values.reshape(-1).view(np.uint16 if values.itemsize == 2 else np.uint32)


def _group(groups: int, *spans: tuple[Array, Array]) -> tuple[Array, Array]:
    hashes = np.zeros(groups, np.uint64)
    for words, offsets in spans:

        def mix(bounds: tuple[int, int], words: Array = words, offsets: Array = offsets) -> None:
            _hash_spans(words, offsets, *bounds, hashes)

        map_threads(mix, chunks(groups, _HASHED))
    more = spans[1] if len(spans) > 1 else (np.zeros(0, np.uint32), spans[0][1])
    return _group_equal(hashes, *spans[0], *more)


def equal_groups(matrix: Compressed) -> tuple[Array, Array]:
    """Group equal rows of a CSR matrix, or equal columns of a CSC matrix.

    Returns (representatives, group): the first member of each group, increasing, and the group of each row or
    column; both int64.
    """
    spans = [(_words(matrix.indices), matrix.indptr)]
    if not matrix.iso:
        size = matrix.values.itemsize // 4
        spans.append((_words(matrix.values), matrix.indptr * size))
    return _group(matrix.groups, *spans)


def equal_patterns(matrix: Compressed) -> tuple[Array, Array]:
    """Group rows of a CSR, or columns of a CSC, with entries at the same places; returns what `equal_groups` does."""
    return _group(matrix.groups, (_words(matrix.indices), matrix.indptr))


def equal_rows(matrix: Array) -> tuple[Array, Array]:
    """Group equal rows of a dense matrix of shape (rows, width); returns what `equal_groups` does."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * (width * matrix.itemsize // 4)
    return _group(rows, (_words(np.ascontiguousarray(matrix)), offsets))
