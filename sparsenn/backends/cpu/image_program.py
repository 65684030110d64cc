"""Layers of images as the CPU's kernel takes them: operations on values that lie in grids, and lists of taps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.filter_tiles import SHARING
from sparsenn.backends.cpu.grids import LINE, Grid, Value, allocate
from sparsenn.backends.cpu.image_taps import CUT_WINDOW, WINDOW, Taps, channels_of_cut, shared_taps
from sparsenn.backends.cpu.processor import CACHE_BYTES
from sparsenn.backends.sizes import FLOAT_BYTES
from sparsenn.formats import Array
from sparsenn.layers import (
    Activation,
    Add,
    AvgPool2d,
    Concatenate,
    Conv2d,
    Flatten,
    Identity,
    MaxPool2d,
    Multiply,
    Pool2d,
)

__all__ = ["Packed", "Planner", "Program"]

COPY, CONVOLVE, LARGEST, MEAN, ADD, MULTIPLY, SCALE, OUTPUT = range(8)

(
    KIND, SOURCE, SOURCE_PLANE, SOURCE_LINE, SOURCE_IMAGE, SOURCE_HEIGHT, SOURCE_WIDTH,
    TARGET, TARGET_PLANE, TARGET_LINE, TARGET_IMAGE, TARGET_HEIGHT, TARGET_WIDTH, TOP, MASK,
    OTHER, OTHER_PLANE, OTHER_IMAGE, CHANNELS, ACTIVATION, FIRST_BLOCK, LAST_BLOCK, FIRST_BIAS,
    WINDOW_LINES, WINDOW_COLUMNS, DOWN, ACROSS, ABOVE, BESIDE, COUNTS_PADDING, FIRST_PAIR, LAST_PAIR, CUTS,
    FIRST_WINDOW, LAST_WINDOW, SOURCE_BITS, TARGET_BITS, WORK,
) = range(38)  # fmt: skip
"""Columns of `Packed.operations`; places are those of a value's first pixel, -1 for none, and for rows as a source.
Of a convolution, `CUTS` are how many times the blocks follow each other, each time with the taps of some channels.
A channel's plane is that with the bits of its number that `SOURCE_BITS` and `TARGET_BITS` have."""


class Packed(NamedTuple):
    """Operations in arrays that compiled functions take as one argument."""

    operations: Array  # (operations, 38) int64, columns as named above
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


@dataclass(frozen=True, eq=False)
class Program:
    """Operations on some images at a time, which lie in one buffer, the *arena*."""

    packed: Packed
    images: int  # at most
    size: int  # numbers of the arena
    widest: int  # numbers of a line at most, in whole lines of a cache
    outputs: int  # of an image
    work: int  # multiply-adds, or what takes as long, of an image
    cut_filters: int  # the most filters of a convolution whose input channels are cut


@dataclass(eq=False)
class _Operation:
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


class Planner:
    """Makes operations of layers, then places values."""

    def __init__(
        self, layers: Sequence[Any], shapes: Sequence[tuple[int, ...]], sources: Sequence[tuple[int, ...]]
    ) -> None:
        self.layers, self.shapes, self.sources = layers, shapes, sources
        self.operations: list[_Operation] = []
        self._readers = [sum(number in each for each in sources) for number in range(len(shapes))]
        self._values: dict[int, Value] = {}
        self._images: dict[int, Any] = {0: shapes[0]}
        self._phases: dict[tuple[int, int, int], Value] = {}
        for number, layer in enumerate(layers, start=1):
            self._add(number, layer, sources[number - 1])
        last = self._value(len(layers))
        self.operations.append(_Operation(OUTPUT, last, None, image=self._images[len(layers)]))

    def _value(self, number: int) -> Value:
        """Return a value in the arena, into which rows are copied."""
        if number not in self._values:
            assert number == 0
            self._values[0] = _value_of(self.shapes[0])
            copy = _Operation(COPY, None, self._values[0], image=self._images[0])
            self.operations.insert(0, copy)
        return self._values[number]

    def _add(self, number: int, layer: Any, sources: tuple[int, ...]) -> None:
        shape = self.shapes[number]
        if isinstance(layer, Flatten):
            self._values[number], self._images[number] = self._value(sources[0]), self._images[sources[0]]
            return
        self._images[number] = shape
        if isinstance(layer, Conv2d):
            self._values[number] = self._convolve(layer, sources[0], shape)
        elif isinstance(layer, Concatenate):
            target, channel = _value_of(shape), 0
            for source in sources:
                image = self._images[source]
                self.operations.append(_Operation(COPY, self._value(source), target, image=image, channel=channel))
                channel += image[0]
            self._values[number] = target
        elif isinstance(layer, Add | Multiply):
            self._values[number] = self._residual(layer, sources) or self._combine(layer, sources)
        else:
            kind = LARGEST if isinstance(layer, MaxPool2d) else MEAN
            assert kind == LARGEST or isinstance(layer, AvgPool2d)
            self._values[number] = _value_of(shape)
            image = self._images[sources[0]]
            self.operations.append(
                _Operation(kind, self._value(sources[0]), self._values[number], layer=layer, image=image)
            )

    def _convolve(self, layer: Conv2d, source: int, shape: tuple[int, ...]) -> Value:
        _, strides, _, _ = layer.sliding_window
        down, across = (stride if outputs > 1 else 1 for stride, outputs in zip(strides, shape[1:], strict=True))
        image = self._images[source]
        value = self._value(source) if (down, across) == (1, 1) else self._sorted(source, down, across)
        lines, columns = _reach(layer, (down, across))
        margins = []
        for reached, size, stride, outputs in (
            (lines, image[1], down, shape[1]),
            (columns, image[2], across, shape[2]),
        ):
            beyond = outputs - 1 + int(reached[1].max()) - (size // stride - 1)
            margins.append(max(0, -int(reached[1].min()), beyond))
        value.grid.widen(1, 1, *margins)
        value.is_padded = value.is_padded or any(margins)
        for phase in ((int(y), int(x)) for y in np.unique(lines[0]) for x in np.unique(columns[0])):
            if phase not in value.phases:
                value.phases.append(phase)
        target = Value(shape[0], shape[1], shape[2], value.grid)
        operation = _Operation(CONVOLVE, value, target, layer=layer, activation=layer.activation, image=image)
        operation.strides = down, across
        self.operations.append(operation)
        return target

    def _sorted(self, source: int, down: int, across: int) -> Value:
        """Return a value whose planes are phases; those that are needed are added by each reader."""
        key = source, down, across
        if key not in self._phases:
            channels, height, width = image = self._images[source]
            value = Value(channels, -(-height // down), -(-width // across), Grid(), phases=[])
            before = None if source == 0 else self._value(source)
            operation = _Operation(COPY, before, value, image=image)
            operation.strides = down, across
            self.operations.append(operation)
            self._phases[key] = value
        return self._phases[key]

    def _residual(self, layer: Any, sources: tuple[int, ...]) -> Value | None:
        """Have a convolution add the other input of a sum, where nothing else reads the convolution."""
        if not isinstance(layer, Add) or len(sources) != 2 or sources[0] == sources[1]:
            return None
        before, number = sorted(sources)
        operation = next((each for each in self.operations if each.target is self._values[number]), None)
        if operation is None or operation.kind != CONVOLVE or operation.other is not None:
            return None
        if not isinstance(operation.activation, Identity) or self._readers[number] != 1:
            return None
        operation.other, operation.activation = self._value(before), layer.activation
        operation.source.grid.merge(operation.other.grid)  # type: ignore[union-attr]
        return operation.target

    def _combine(self, layer: Any, sources: tuple[int, ...]) -> Value:
        first, *others = sources
        value = self._value(first)
        for place, number in enumerate(others, start=1):
            one, two = value, self._value(number)
            if one.height * one.width < two.height * two.width:
                one, two = two, one
            is_factor = (one.height, one.width) != (two.height, two.width)
            kind = ADD if isinstance(layer, Add) else SCALE if is_factor else MULTIPLY
            if kind != SCALE:
                one.grid.merge(two.grid)
            value = Value(one.channels, one.height, one.width, one.grid)
            activation = layer.activation if place == len(others) else Identity()
            image = (one.channels, one.height, one.width)
            self.operations.append(_Operation(kind, one, value, two, activation=activation, image=image))
        return value

    def streams(self, images: int) -> dict[int, tuple[range, int]]:
        """Return operations that go together, some channels at a time, and how many, by the first of them.

        A channel that a convolution makes goes through a depthwise one alone. Where the planes of all channels would
        leave the cache before they are read, they share those of some.
        """
        found = {}
        readers = Counter(value for each in self.operations for value in (each.source, each.other) if value)
        for number, each in enumerate(self.operations):
            chain = self.operations[number : number + 2]
            if chain[-1].kind == COPY:
                chain = self.operations[number : number + 3]
            values, sources = [one.target for one in chain[:-1]], [one.source for one in chain[1:]]
            if not _goes_by_channel(each, chain[-1]) or sources != values:
                continue
            between = [value for value in values if value is not None and readers[value] == 1]
            if len(between) < len(values):
                continue
            planes = sum(len(value.phases) * value.grid.laid(images).plane for value in between)
            if FLOAT_BYTES * planes * each.layer.filters > CACHE_BYTES // 2:
                together = SHARING
                while 2 * together * FLOAT_BYTES * planes <= CACHE_BYTES // 4:
                    together *= 2
                found[number] = range(number, number + len(chain)), together
        return found

    def packed(self, images: int, is_shared: bool = False) -> Program:
        """Place values for a number of images, and write operations down, for one thread or for those that share."""
        streams = {} if is_shared else self.streams(images)
        together = {number: some for one, some in streams.values() for number in one}
        values = dict.fromkeys(value for each in self.operations for value in each.values)
        for value in values:
            value.first, value.last, value.together = len(self.operations), 0, 0
        for number, each in enumerate(self.operations):
            for value in each.values:
                value.first, value.last = min(value.first, number), number
        for one, some in streams.values():
            for number in one:
                for value in self.operations[number].values:
                    value.first, value.last = min(value.first, one[0]), max(value.last, one[-1])
                if number < one[-1]:
                    self.operations[number].target.together = some  # type: ignore[union-attr]
        homes = {value: value for value in values}
        for number, each in enumerate(self.operations):
            if each.other is None or each.target is None or each.kind == SCALE:
                continue
            home = homes[each.other]
            if home.last == number and each.source is not None and homes[each.source] is not home:
                homes[each.target], home.last = home, each.target.last  # the sum is written over what is added
        size = allocate([value for value, home in homes.items() if value is home], images)
        for value, home in homes.items():
            value.start = home.start
        writer = _Writer(images)
        for number, each in enumerate(self.operations):
            writer.add(each, together.get(number, 0))
        number = 0
        while number < len(self.operations):
            one, some = streams.get(number, (range(number, number + 1), 0))
            writer.add_tasks(one, some)
            number = one.stop
        outputs = prod(self.shapes[-1])
        widest = max(
            [*(value.grid.laid(images).line for value in values), *(each.image[2] for each in self.operations)]
        )
        widest = -(-widest // LINE) * LINE
        return Program(writer.packed(), images, size, widest, outputs, writer.work, writer.cut_filters)

    @property
    def largest(self) -> int:
        """Numbers that an image takes in the largest operation."""
        sizes = [sum(value.size(1) for value in each.values) for each in self.operations]
        return max(sizes)


def _value_of(shape: tuple[int, ...]) -> Value:
    channels, height, width = shape
    return Value(channels, height, width)


def _goes_by_channel(first: _Operation, second: _Operation) -> bool:
    """Return whether the second is a depthwise convolution of what another one makes, if it reads that."""
    if first is second or any(one.kind != CONVOLVE or one.other is not None for one in (first, second)):
        return False
    found: bool = first.layer.groups == 1 and first.layer.filters == second.layer.filters == second.layer.groups
    return found


def _reach(layer: Conv2d, strides: tuple[int, int]) -> list[tuple[Array, Array]]:
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


class _Writer:
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
        self.work = self.cut_filters = 0

    def add_tasks(self, operations: range, together: int) -> None:
        """Add tasks: of operations one after the other, or of some channels at a time."""
        channels = self.records[operations[-1]][CHANNELS]
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

    def add(self, each: _Operation, together: int) -> None:
        """Add an operation, of whose filters so many go together; 0 for all."""
        record = [-1] * (WORK + 1)
        record[KIND] = each.kind
        record[SOURCE_HEIGHT], record[SOURCE_WIDTH] = each.image[1:]
        if each.source is None:  # rows, one a time
            _, height, width = each.image
            record[SOURCE_PLANE], record[SOURCE_LINE] = height * width, width
        else:
            record[SOURCE : SOURCE_IMAGE + 1] = self._placed(each.source)
        for value, column in ((each.source, SOURCE_BITS), (each.target, TARGET_BITS)):
            if value is not None and value.together:
                record[column] = value.together - 1
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

    def _add_taps(self, each: _Operation, record: list[int], together: int) -> None:
        layer, value = each.layer, each.source
        assert value is not None
        laid, phases = value.grid.laid(self._images), len(value.phases)
        (line_phase, line), (column_phase, column) = _reach(layer, each.strides)
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
        )
