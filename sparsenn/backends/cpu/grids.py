"""Where the pixels of images lie while they go through layers: grids of lanes, which all values of equal size share.

The planes of a value's channels follow each other. In a plane some images lie one below the other, lines of pixels
behind lines, and a margin of zeros behind each line and below each image stands for the padding on all sides: what
reads beyond one end of a line meets the margin of another. So a window meets each of its elements at a fixed distance
from an output's lane, and a sum over taps runs over lanes without a branch. A value that a convolution with a stride
reads is sorted into *phases* before: planes of those pixels whose line and column leave the same remainder.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

LINE = 16
"""Numbers of a cache line, at whose beginnings planes begin; planes take an odd number of lines, so that a cache holds
the same place of several planes in different sets."""


@dataclass(eq=False)
class Grid:
    """The lanes of values that outputs and their inputs share; `replacement` is the grid that it was merged into."""

    lines: int = 1
    width: int = 1
    below: int = 0  # lines of margin below an image
    beside: int = 0  # numbers of margin behind a line
    replacement: Grid | None = None

    @property
    def root(self) -> Grid:
        """Return the grid that this one has become."""
        return self if self.replacement is None else self.replacement.root

    def merge(self, other: Grid) -> None:
        """Merge two grids into one."""
        one, two = self.root, other.root
        if one is not two:
            two.replacement = one
            one.widen(two.lines, two.width, two.below, two.beside)

    def widen(self, lines: int, width: int, below: int = 0, beside: int = 0) -> None:
        """Widen the grid to images and margins of a size."""
        one = self.root
        one.lines, one.width = max(one.lines, lines), max(one.width, width)
        one.below, one.beside = max(one.below, below), max(one.beside, beside)

    def laid(self, images: int) -> Laid:
        """Return the sizes for a number of images."""
        one = self.root
        line = one.width + one.beside
        image = (one.lines + one.below) * line
        top = parts_of(one.below * line + one.beside, LINE) * LINE
        body = parts_of((images - 1) * image + one.lines * line, LINE) * LINE
        body += LINE * ((top + body) // LINE % 2 == 0)
        return Laid(line, image, top, body)


@dataclass(frozen=True)
class Laid:
    """Sizes of a grid, in numbers: from a line, and from an image, to the next; margin and body of a plane."""

    line: int
    image: int
    top: int
    body: int

    @property
    def plane(self) -> int:
        """Numbers from one plane to the next."""
        return self.top + self.body

    def mask(self, images: int, height: int, width: int) -> Array:
        """Return int32 with all bits set in lanes that are pixels, and 0 in the margins."""
        lane = np.arange(self.body)
        line, column = np.divmod(lane % self.image, self.line)
        return np.where((lane < images * self.image) & (line < height) & (column < width), -1, 0).astype(np.int32)


@dataclass(eq=False)
class Value:
    """The planes that an operation writes: of channels, or of their phases."""

    channels: int
    height: int
    width: int
    grid: Grid = field(default_factory=Grid)
    is_padded: bool = False  # whether a window reads beyond the pixels, and margins have to be zero
    phases: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    first: int = -1  # the operation that writes it
    last: int = -1  # the last that reads it
    start: int = 0  # where its first margin begins
    together: int = 0  # channels that have planes at a time, a power of two; 0 for all
    threads: int = 1  # each of which has planes of its own for these channels

    def __post_init__(self) -> None:
        self.grid.widen(self.height, self.width)

    def size(self, images: int) -> int:
        """Return how many numbers it takes, with what vectors at its end read beyond."""
        laid = self.grid.laid(images)
        return (self.together * self.threads or self.channels) * len(self.phases) * laid.plane + laid.top + LINE


def allocate(values: list[Value], images: int) -> int:
    """Give each value a place, free while it is needed; returns how many numbers all of them take."""
    placed: list[Value] = []
    for value in sorted(values, key=lambda each: each.first):
        size, start = value.size(images), 0
        for other in sorted(placed, key=lambda each: each.start):
            if other.last < value.first:
                continue
            if other.start - start >= size:
                break
            start = max(start, other.start + parts_of(other.size(images), LINE) * LINE)
        value.start = start
        placed.append(value)
    return max((value.start + value.size(images) for value in values), default=0)
