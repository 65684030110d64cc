"""The host's largest cache: its size, as the system tells it, and how fast all threads together read from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsenn.errors import SparseNNError
from sparsenn.formats import Array
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import map_threads, thread_count

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Where Linux describes the first processor's caches."""

UNTOLD = (3, 8 << 20)
"""Level and bytes that are assumed where the system does not tell."""

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

BYTES_READ = 256 << 20
"""By each thread in one measurement: some ten milliseconds."""


def cache_level() -> int:
    """Return the level of the host's largest cache, 3 as a rule."""
    return _largest()[0]


def cache_bytes() -> int:
    """Return the size of the host's largest cache."""
    return _largest()[1]


def _largest() -> tuple[int, int]:
    found = []
    for folder in CACHES.glob("index*"):
        try:
            level, size = (folder.joinpath(name).read_text(encoding="ascii").strip() for name in ("level", "size"))
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"([0-9]+)([KMG]?)", size)
        if match and level.isdigit() and int(match[1]):
            found.append((int(level), int(match[1]) * UNITS[match[2]]))
    return max(found, key=lambda cache: cache[1], default=UNTOLD)


@compiled
def _read(numbers: Array, rounds: int) -> int:
    """Add up all numbers, in every round with that round's number on top; whole numbers fill vector registers."""
    total = np.int64(0)
    for round_number in range(rounds):
        for place in range(numbers.size):
            total += numbers[place] ^ np.int64(round_number)
    return int(total)


def reading() -> tuple[int, Callable[[], None]]:
    """Return work that reads a third of the largest cache again and again, and the bytes that it reads.

    Each thread has a part of that third to itself, which does not fit into the smaller caches of its core if the
    largest is so much larger. The work raises SparseNNError if what was read is not what is there.
    """
    threads = thread_count()
    size = max(1024, cache_bytes() // 3 // threads // 8)
    rounds = max(1, BYTES_READ // (8 * size))
    parts = [np.full(size, -1, np.int64) for _ in range(threads)]
    expected = -size * (rounds * (rounds + 1) // 2)  # -1 ^ n is -(n + 1)

    def work() -> None:
        found = map_threads(lambda part: _read(part, rounds), parts)
        if found != [expected] * threads:
            raise SparseNNError(f"reading the cache gave {found}, not {expected} for each thread")

    return 8 * size * rounds * threads, work


@example
def _read_little() -> None:
    _read(np.zeros(1, np.int64), 1)
