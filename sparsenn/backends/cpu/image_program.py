"""Layers of images as the CPU's kernel takes them: operations on values that lie in grids, and lists of taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import activation_code
from sparsenn.backends.cpu.filter_tiles import SHARING
from sparsenn.backends.cpu.grids import LINE, Grid, Value, allocate
from sparsenn.backends.cpu.image_taps import WINDOW, Taps, channels_of_cut, shared_taps
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
    WINDOW_LINES, WINDOW_COLUMNS, DOWN, ACROSS, ABOVE, BESIDE, COUNTS_PADDING, FIRST_PAIR, LAST_PAIR, CUTS, WINDOWS,
    WORK,
) = range(35)  # fmt: skip
"""Columns of `Packed.operations`; places are those of a value's first pixel, -1 for none, and for rows as a source.
Of a convolution, `CUTS` are how many times the blocks follow each other, each time with the taps of some channels, and
filters paired anew among those of a window; `WINDOWS` is the block with which the first window begins."""


class Packed(NamedTuple):
    """Operations in arrays that compiled functions take as one argument."""

    operations: Array  # (operations, 35) int64, columns as named above
    clips: Array  # (operations,) float32, the parameters of activations, infinity where there is none
    blocks: Array  # (blocks, 7) int64: 2 or 4 filters; the first and second; spans as the functions of tiles take them
    shifts: Array  # (taps of pairs,) int32, the distance from an output's lane to the pixel that a tap meets
    weights: Array  # (taps of pairs,) float32
    shared_shifts: Array  # int32, of filters that walk together
    shared_weights: Array  # float32, for each tap of such filters their weights
    biases: Array  # float32, what sums begin with
    masks: Array  # int32, of each size of values with margins
    pairs: Array  # (pairs, 2) int64: of phases the remainders of line and column; of pools the bounds of `_bounds`


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

    def packed(self, images: int) -> Program:
        """Place values for a number of images, and write operations down."""
        values = dict.fromkeys(value for each in self.operations for value in each.values)
        for number, each in reversed((*enumerate(self.operations),)):
            for value in each.values:
                value.first, value.last = number, max(value.last, number)
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
        for each in self.operations:
            writer.add(each)
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
        self.work = self.cut_filters = 0

    def add(self, each: _Operation) -> None:
        record = [-1] * (WORK + 1)
        record[KIND] = each.kind
        record[SOURCE_HEIGHT], record[SOURCE_WIDTH] = each.image[1:]
        if each.source is None:  # rows, one a time
            _, height, width = each.image
            record[SOURCE_PLANE], record[SOURCE_LINE] = height * width, width
        else:
            record[SOURCE : SOURCE_IMAGE + 1] = self._placed(each.source)
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
            self._add_taps(each, record)
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

    def _add_taps(self, each: _Operation, record: list[int]) -> None:
        layer, value = each.layer, each.source
        assert value is not None
        laid, phases = value.grid.laid(self._images), len(value.phases)
        (line_phase, line), (column_phase, column) = _reach(layer, each.strides)
        number = np.array([[value.phases.index((int(y), int(x))) for x in column_phase] for y in line_phase])
        channel = np.arange(layer.weights.shape[1])[:, None, None]
        shifts = (channel * phases + number) * laid.plane + line[:, None] * laid.line + column
        shifts = shifts.reshape(-1)
        per_group = layer.filters // layer.groups
        shared, alone, products = list[tuple[int, Array, Array]](), list[tuple[int, Array, Array]](), 0
        for block in shared_taps(layer.weights.reshape(layer.filters, -1), per_group):
            products += block[2].size
            (shared if len(block[2]) > 1 else alone).append(block)
        size = layer.weights.shape[1]
        if layer.groups == 1:
            lanes = (line.min() - line.max()) * -laid.line, laid.body
            size = channels_of_cut(size, products / layer.filters, phases, *lanes)
        cuts = np.arange(0, layer.weights.shape[1], size) * prod(layer.weights.shape[2:])
        record[FIRST_BLOCK], record[CUTS] = len(self.blocks), cuts.size
        record[WINDOWS] = len(shared)
        windows = [alone[first : first + WINDOW] for first in range(0, len(alone), WINDOW)]
        for begin, end in zip(cuts, [*cuts[1:], layer.weights[0].size], strict=True):

            def taps_of(block: tuple[int, Array, Array], begin: int = begin, end: int = end) -> tuple[Array, Array]:
                filters, numbers, weights = block
                first, last = np.searchsorted(numbers, [begin, end])
                plane = filters // per_group * layer.weights.shape[1] * phases
                return shifts[numbers[first:last]] + plane * laid.plane, weights[:, first:last]

            for block in shared:
                span = self.shared.add(*taps_of(block))
                self.blocks.append((SHARING, block[0], 0, *span, SHARING * span[0], 0))
            for window in windows:
                ordered = sorted(((block[0], *taps_of(block)) for block in window), key=lambda each: each[1].size)
                if len(ordered) % 2:
                    ordered.append(ordered[-1])  # with itself
                for one, two in zip(ordered[::2], ordered[1::2], strict=True):
                    self.blocks.append((2, one[0], two[0], *self.taps.add(*one[1:]), *self.taps.add(*two[1:])))
        record[LAST_BLOCK] = record[FIRST_BLOCK] + (len(self.blocks) - record[FIRST_BLOCK]) // cuts.size
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
        )
