"""How a product of matrices is cut for `vectorized`, of gemm and of conv2d: into tiles, and its sums into parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sparsenn.backends.machine import WARP
from sparsenn.studies.traffic import shared_tiled, tiled

# As in `kernels/tiles_ahead.cuh`.
EACH = 8  # rows and columns of a thread
DEEP = 8  # terms of a tile

FILL_TILES = 6
"""Tiles of terms whose time a block takes before it multiplies, and after."""

BUSY_WARPS = 12
"""Warps of a multiprocessor that keep it multiplying all the time."""

# Per second, about an H200's; only their ratios matter.
MULTIPLY_ADDS = 1.7e11  # of one multiprocessor
CACHE_BYTES = 4e10  # from the shared cache to one multiprocessor
MEMORY_BYTES = 3e12  # from memory to all multiprocessors

UNHIDDEN = 0.15
"""The part of the time for copying tiles that multiplying does not hide."""


@dataclass(frozen=True)
class Tiling:
    """The shape of a block's tile."""

    warps: tuple[int, int]  # of a block, down and across
    lanes: tuple[int, int] = (4, 8)  # of a warp, likewise

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.warps[0] * self.lanes[0] * EACH

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.warps[1] * self.lanes[1] * EACH

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps[0] * self.warps[1]

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has at a time, at least."""
        return 6 if self.threads == 64 else 512 // self.threads

    def defines(self) -> dict[str, int | str]:
        """Return the tile's shape as its kernels take it."""
        (warps_down, warps_across), (lanes_down, lanes_across) = self.warps, self.lanes
        return {
            "WARPS_DOWN": warps_down,
            "WARPS_ACROSS": warps_across,
            "LANES_DOWN": lanes_down,
            "LANES_ACROSS": lanes_across,
        }

    def seconds(self, busy: float) -> float:
        """Return about what the multiply-adds of a tile of terms take, on a multiprocessor that is busy so far."""
        copied = 4 * (self.rows + self.columns) * DEEP / CACHE_BYTES
        return self.rows * self.columns * DEEP / (MULTIPLY_ADDS * busy) + UNHIDDEN * copied

    def tiles(self, rows: int, columns: int) -> int:
        """Return how many tiles a product has."""
        return -(-rows // self.rows) * -(-columns // self.columns)


TILINGS = (
    Tiling((4, 2)),
    Tiling((2, 4)),
    Tiling((8, 1)),
    Tiling((2, 1)),
    Tiling((2, 1), (16, 2)),
)
"""128 x 128, 64 x 256, 256 x 64, 64 x 64 and 256 x 16."""

MODEL = tiled(shared_tiled, TILINGS[0].rows, thread_tile=(EACH, EACH))
"""Of what it moves, as long as there are enough tiles of the first shape."""


@dataclass(frozen=True)
class Cut:
    """How a product is cut."""

    tiling: Tiling  # of the product
    deep: int  # tiles of terms that a part of the sums consists of; the last part's may be fewer
    parts: int  # of the sums; more than one are added up by a second kernel


@cache
def cut_for(rows: int, columns: int, depth: int, multiprocessors: int) -> Cut:
    """Return the cut that should take the least time.

    A tile takes its multiply-adds, those beyond the product's edges included; blocks of a multiprocessor share it; and
    sums in parts are written and read once more.
    """
    return min(_cuts(rows, columns, depth, multiprocessors), key=lambda found: found[0])[1]


def _cuts(rows: int, columns: int, depth: int, multiprocessors: int) -> Iterator[tuple[float, Cut]]:
    """Yield cuts with the seconds that each should take; of one tiling, those of few parts first."""
    for tiling in TILINGS:
        tiles, terms = tiling.tiles(rows, columns), -(-depth // DEEP)
        most = max(1, min(terms, 4 * tiling.resident * multiprocessors // tiles))
        for wanted in range(1, most + 1):
            deep = -(-terms // wanted)
            parts = -(-terms // deep)
            if parts != wanted:
                continue
            there = -(-tiles * parts // multiprocessors)
            busy = min(1.0, min(there, tiling.resident) * tiling.threads / WARP / BUSY_WARPS)
            added = 4 * rows * columns * (2 * parts + 1) / MEMORY_BYTES if parts > 1 else 0.0
            yield there * (deep + FILL_TILES) * tiling.seconds(busy) + added, Cut(tiling, deep, parts)
