"""Operations on images written down: numbers, and lists of taps, in arrays that compiled functions take.

An operation is a record, whose columns are named here. A *tap* is a weight of a filter that is not zero. Filters go in
pairs, each along its own taps; four that have most taps in common walk them together, so that a pixel that is loaded
serves all four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.filter_tiles import MOST_VECTORS, SHARING
from sparsenn.backends.cpu.grids import Value
from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.layers import Activation, Conv2d, Identity, Pool2d

CUT_TAPS = 12
"""Taps of a filter, on average, in a cut of the input channels: storing and loading sums then take little beside."""

CUT_BYTES = 48 << 10
"""Bytes that a tile of lanes reads of the channels of a cut, at most: about those of a first-level cache."""

WINDOW, CUT_WINDOW = 8, 128
"""Filters that are paired among themselves, and that a thread takes together; the second where input channels are cut.

Filters of a pair have about as many taps. In the cuts of many filters, pairs have about as many as those before them: a
processor predicts where such loops end.
"""

SHARED = 0.5
"""Filters walk together where that many of their weights at common taps, as a share, are not zero."""


def shared_taps(weights: Array, per_group: int) -> Iterator[tuple[int, Array, Array]]:
    """Cut filters, (filters, weights of a filter) float32, into blocks of one group, whose taps are walked together.

    Yielded are a block's first filter, its taps, (taps,) int64, numbers within a filter, and its weights, (filters,
    taps).
    """
    for group in range(0, weights.shape[0], per_group):
        for first in range(group, group + per_group, SHARING):
            some = weights[first : min(first + SHARING, group + per_group)]
            taps = np.flatnonzero(some.any(axis=0))
            if some.shape[0] == SHARING and np.count_nonzero(some) >= SHARED * SHARING * taps.size:
                yield first, taps, some[:, taps]
                continue
            for number, alone in enumerate(some, start=first):
                taps = np.flatnonzero(alone)
                yield number, taps, alone[None, taps]


def work_of(layer: Conv2d) -> int:
    """Return the multiply-adds of a pixel of all outputs."""
    blocks = shared_taps(layer.weights.reshape(layer.filters, -1), layer.filters // layer.groups)
    return sum(weights.size for _, _, weights in blocks)


def channels_of_cut(channels: int, taps: float, phases: int, reach: int, lanes: int) -> int:
    """Return how many input channels of a convolution go together.

    taps : of a filter, on average. phases : of a channel. reach : numbers from the first to the last line that an
    output meets. lanes : of all images.
    """
    read = FLOAT_BYTES * phases * min(lanes, MOST_VECTORS * VECTOR + reach)
    size = 1
    while size < channels and (taps * size < CUT_TAPS * channels or 2 * size * read <= CUT_BYTES):
        size *= 2
    return min(size, channels)


class Taps:
    """Lists of taps, one behind the other."""

    def __init__(self) -> None:
        self._shifts: list[Array] = []
        self._weights: list[Array] = []
        self._size = 0

    def add(self, shifts: Array, weights: Array) -> tuple[int, int]:
        """Add some taps, weights (filters, taps); return the first and the last."""
        first, self._size = self._size, self._size + shifts.size
        self._shifts.append(shifts.astype(np.int32))
        self._weights.append(weights.T.reshape(-1))
        return first, self._size

    def arrays(self) -> tuple[Array, Array]:
        """Return all shifts, int32, and all weights, float32."""
        return (
            np.concatenate([np.zeros(0, np.int32), *self._shifts]),
            np.concatenate([np.zeros(0, np.float32), *self._weights]),
        )


COPY, CONVOLVE, LARGEST, MEAN, ADD, MULTIPLY, SCALE, OUTPUT = range(8)

(
    KIND, SOURCE, SOURCE_PLANE, SOURCE_LINE, SOURCE_IMAGE, SOURCE_HEIGHT, SOURCE_WIDTH,
    TARGET, TARGET_PLANE, TARGET_LINE, TARGET_IMAGE, TARGET_HEIGHT, TARGET_WIDTH, TOP, MASK,
    OTHER, OTHER_PLANE, OTHER_IMAGE, CHANNELS, ACTIVATION, FIRST_BLOCK, LAST_BLOCK, FIRST_BIAS,
    WINDOW_LINES, WINDOW_COLUMNS, DOWN, ACROSS, ABOVE, BESIDE, COUNTS_PADDING, FIRST_PAIR, LAST_PAIR, CUTS,
    FIRST_WINDOW, LAST_WINDOW, SOURCE_BITS, TARGET_BITS, SOURCE_OWN, TARGET_OWN, WORK,
) = range(40)  # fmt: skip
"""Columns of `Packed.operations`; places are those of a value's first pixel, -1 for none, and for rows as a source.
Of a convolution, `CUTS` are how many times the blocks follow each other, each time with the taps of some channels.
A channel's plane is that with the bits of its number that `SOURCE_BITS` and `TARGET_BITS` have; where these are not
all, `SOURCE_OWN` and `TARGET_OWN` are the numbers from one thread's planes to those of the next."""


class Packed(NamedTuple):
    """Operations in arrays that compiled functions take as one argument."""

    operations: Array  # (operations, 40) int64, columns as named above
    clips: Array  # (operations,) float32, the parameters of activations, infinity where there is none
    blocks: Array  # (blocks, 7) int64: 2 or 4 filters; the first and second; spans as the functions of tiles take them
    shifts: Array  # (taps of pairs,) int32, the distance from an output's lane to the pixel that a tap meets
    weights: Array  # (taps of pairs,) float32
    shared_shifts: Array  # int32, of filters that walk together
    shared_weights: Array  # float32, for each tap of such filters their weights
    biases: Array  # float32, what sums begin with
    masks: Array  # int32, of each size of values with margins
    pairs: Array  # (pairs, 2) int64: of phases the remainders of line and column; of pools the bounds of `_bounds`
    windows: Array  # int64, of each convolution the blocks that windows of filters begin with, and the last one's end
    tasks: Array  # (tasks, 3) int64: an operation; the first of its blocks or channels, and the last, excluded
    groups: Array  # (groups, 3) int64: a first task; how many follow each other; and how often, for other channels


@dataclass(eq=False)
class Operation:
    """An operation on values of the arena, or on rows."""

    kind: int
    source: Value | None  # None for rows
    target: Value | None  # None for rows
    other: Value | None = None
    layer: Any = None
    activation: Activation = Identity()  # noqa: RUF009
    image: tuple[int, int, int] = (0, 0, 0)  # the size of what it reads
    strides: tuple[int, int] = (1, 1)
    channel: int = 0  # the first plane that it writes

    @property
    def values(self) -> list[Value]:
        """Values in the arena that the operation reads and writes."""
        return [value for value in (self.source, self.other, self.target) if value is not None]


def reach_of(layer: Conv2d, strides: tuple[int, int]) -> list[tuple[Array, Array]]:
    """Return for lines and columns of a window the phase of each, and the distance from an output in it."""
    window, _, padding, dilation = layer.sliding_window
    found = []
    for size, before, apart, stride in zip(window, padding, dilation, strides, strict=True):
        distance, phase = np.divmod(np.arange(size) * apart - before, stride)
        found.append((phase, distance))
    return found


def _bounds(layer: Pool2d, width: int, outputs: int) -> list[tuple[int, int]]:
    """Return for each column of a window the outputs, the last excluded, for which it is in the image."""
    (_, columns), (_, across), (_, beside), _ = layer.sliding_window
    found = []
    for offset in range(-beside, columns - beside):
        first = max(0, (across - 1 - offset) // across)
        found.append((first, max(first, min(outputs, (width - 1 - offset) // across + 1))))
    return found


class Writer:
    """Makes records of operations on a number of images, and lists of taps."""

    def __init__(self, images: int) -> None:
        self._images = images
        self.records: list[list[int]] = []
        self.clips: list[float] = []
        self.blocks: list[tuple[int, ...]] = []
        self.taps, self.shared = Taps(), Taps()
        self.biases: list[Array] = []
        self.masks: list[Array] = []
        self._mask_places: dict[tuple[Any, int, int], int] = {}
        self.pairs: list[tuple[int, int]] = []
        self.windows: list[int] = []
        self.tasks: list[tuple[int, int, int]] = []
        self.groups: list[tuple[int, int, int]] = []
        self.work = self.cut_filters = 0

    def add_group(self, operations: range, together: int) -> None:
        """Add tasks: an operation, or several that `together` channels go through at a time."""
        channels = self.records[operations[-1]][CHANNELS]
        self.groups.append((len(self.tasks), len(operations), -(-channels // together) if together else 1))
        for first in range(0, channels, together or channels):
            for number in operations:
                record = self.records[number]
                last = min(first + together, channels) if together else channels
                if record[KIND] == CONVOLVE:
                    begin, end = record[FIRST_WINDOW], record[LAST_WINDOW]
                    if together:
                        begin += first // together
                        end = begin + 1
                    self.tasks.append((number, self.windows[begin], self.windows[end]))
                else:
                    self.tasks.append((number, first, last))

    def add(self, each: Operation, together: int) -> None:
        """Add an operation, `together` of whose filters are computed at a time; 0 for all."""
        record = [-1] * (WORK + 1)
        record[KIND] = each.kind
        record[SOURCE_HEIGHT], record[SOURCE_WIDTH] = each.image[1:]
        if each.source is None:  # rows, one a time
            _, height, width = each.image
            record[SOURCE_PLANE], record[SOURCE_LINE] = height * width, width
        else:
            record[SOURCE : SOURCE_IMAGE + 1] = self._placed(each.source)
        for value, bits, own in ((each.source, SOURCE_BITS, SOURCE_OWN), (each.target, TARGET_BITS, TARGET_OWN)):
            record[own] = 0
            if value is not None and value.together:
                record[bits] = value.together - 1
                record[own] = value.together * len(value.phases) * value.grid.laid(self._images).plane
        if each.target is not None:
            value, laid = each.target, each.target.grid.laid(self._images)
            record[TARGET : TARGET_IMAGE + 1] = self._placed(value)
            record[TARGET] += each.channel * laid.plane
            record[TARGET_HEIGHT : TARGET_WIDTH + 1] = value.height, value.width
            record[TOP] = laid.top
            if value.is_padded:
                record[MASK] = self._mask(value)
        if each.other is not None:
            record[OTHER], record[OTHER_PLANE], _, record[OTHER_IMAGE] = self._placed(each.other)
        record[CHANNELS] = each.image[0] if each.kind != CONVOLVE else each.layer.filters
        record[ACTIVATION], clip = activation_code(each.activation)
        record[DOWN], record[ACROSS] = each.strides
        record[WORK] = prod(each.image)
        if each.kind == COPY:
            record[FIRST_PAIR] = len(self.pairs)
            self.pairs += each.target.phases  # type: ignore[union-attr]
            record[LAST_PAIR] = len(self.pairs)
        elif each.kind == CONVOLVE:
            self._add_taps(each, record, together)
        elif each.kind in (LARGEST, MEAN):
            window, strides, padding, _ = each.layer.sliding_window
            record[WINDOW_LINES : WINDOW_COLUMNS + 1] = window
            record[DOWN : BESIDE + 1] = *strides, *padding
            record[FIRST_PAIR] = len(self.pairs)
            self.pairs += _bounds(each.layer, each.image[2], each.target.width)  # type: ignore[union-attr]
            record[COUNTS_PADDING] = int(each.kind == MEAN and each.layer.counts_padding)
            record[WORK] = prod(window) * each.target.channels * each.target.height * each.target.width  # type: ignore[union-attr]
        self.records.append(record)
        self.clips.append(clip)
        self.work += record[WORK]

    def _placed(self, value: Value) -> list[int]:
        laid = value.grid.laid(self._images)
        return [value.start + laid.top, laid.plane, laid.line, laid.image]

    def _mask(self, value: Value) -> int:
        key = value.grid.root, value.height, value.width
        if key not in self._mask_places:
            self._mask_places[key] = sum(each.size for each in self.masks)
            self.masks.append(value.grid.laid(self._images).mask(self._images, value.height, value.width))
        return self._mask_places[key]

    def _add_taps(self, each: Operation, record: list[int], together: int) -> None:
        layer, value = each.layer, each.source
        assert value is not None
        laid, phases = value.grid.laid(self._images), len(value.phases)
        (line_phase, line), (column_phase, column) = reach_of(layer, each.strides)
        number = np.array([[value.phases.index((int(y), int(x))) for x in column_phase] for y in line_phase])
        channels = layer.weights.shape[1]
        channel = np.arange(channels)[:, None, None]
        shifts = (channel * phases + number) * laid.plane + line[:, None] * laid.line + column
        shifts = shifts.reshape(-1)
        per_group = layer.filters // layer.groups
        blocks = list(shared_taps(layer.weights.reshape(layer.filters, -1), per_group))
        products = sum(weights.size for _, _, weights in blocks)
        size = channels
        if layer.groups == 1:
            lanes = (line.min() - line.max()) * -laid.line, laid.body
            size = channels_of_cut(size, products / layer.filters, phases, *lanes)
        cuts = np.arange(0, channels, size) * prod(layer.weights.shape[2:])
        if not together:
            together = CUT_WINDOW if cuts.size > 1 else WINDOW
        windows = [list(some) for _, some in groupby(blocks, lambda block: block[0] // together)]

        def taps_of(block: tuple[int, Array, Array], begin: int, end: int) -> tuple[Array, Array]:
            first, last = np.searchsorted(block[1], [begin, end])
            plane = block[0] // per_group * channels & record[SOURCE_BITS]
            return shifts[block[1][first:last]] + plane * phases * laid.plane, block[2][:, first:last]

        record[FIRST_BLOCK], record[CUTS], record[FIRST_WINDOW] = len(self.blocks), cuts.size, len(self.windows)
        for begin, end in zip(cuts, [*cuts[1:], layer.weights[0].size], strict=True):
            for some in windows:
                if begin == 0:
                    self.windows.append(len(self.blocks))
                alone = []
                for block in some:
                    taps, weights = taps_of(block, begin, end)
                    if len(weights) > 1:
                        first, last = self.shared.add(taps, weights)
                        self.blocks.append((SHARING, block[0], 0, first, last, SHARING * first, 0))
                    else:
                        alone.append((block[0], taps, weights))
                alone.sort(key=lambda one: one[1].size)
                if len(alone) % 2:
                    alone.append(alone[-1])  # with itself
                for one, two in zip(alone[::2], alone[1::2], strict=True):
                    self.blocks.append((2, one[0], two[0], *self.taps.add(*one[1:]), *self.taps.add(*two[1:])))
            if begin == 0:
                record[LAST_WINDOW], record[LAST_BLOCK] = len(self.windows), len(self.blocks)
                self.windows.append(len(self.blocks))
        if cuts.size > 1:
            self.cut_filters = max(self.cut_filters, layer.filters)
        record[FIRST_BIAS] = sum(some.size for some in self.biases)
        self.biases.append(layer.bias_vector() + np.float32(0))
        record[WORK] = products * each.target.height * each.target.width  # type: ignore[union-attr]

    def packed(self) -> Packed:
        """Return all that has been added."""
        return Packed(
            np.array(self.records, np.int64).reshape(-1, WORK + 1),
            np.array(self.clips, np.float32),
            np.array(self.blocks, np.int64).reshape(-1, 7),
            *self.taps.arrays(),
            *self.shared.arrays(),
            np.concatenate([np.zeros(0, np.float32), *self.biases]),
            np.concatenate([*self.masks, np.zeros(1, np.int32)]),
            np.array(self.pairs, np.int64).reshape(-1, 2),
            np.array([*self.windows, 0], np.int64),
            np.array(self.tasks, np.int64).reshape(-1, 3),
            np.array(self.groups, np.int64).reshape(-1, 3),
        )
