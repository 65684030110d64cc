"""Layers of images as operations on values that lie in grids, for the CPU's kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.cpu.filter_tiles import SHARING
from sparsenn.backends.cpu.grids import LINE, Grid, Value, allocate
from sparsenn.backends.cpu.image_packing import (
    ADD,
    CONVOLVE,
    COPY,
    CUT_TAPS,
    LARGEST,
    MEAN,
    MULTIPLY,
    OUTPUT,
    SCALE,
    SOURCE,
    SOURCE_OWN,
    TARGET,
    TARGET_OWN,
    Operation,
    Packed,
    Writer,
    reach_of,
)
from sparsenn.backends.cpu.processor import CACHE_BYTES
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.layers import Add, AvgPool2d, Concatenate, Conv2d, Flatten, Identity, MaxPool2d, Multiply


@dataclass(frozen=True, eq=False)
class Program:
    """Operations on some images at a time, which lie in one buffer, the *arena*."""

    packed: Packed
    images: int  # at most
    threads: int  # that share each operation
    size: int  # numbers of the arena
    widest: int  # numbers of a line at most, in whole lines of a cache
    outputs: int  # of an image
    work: int  # multiply-adds, or what takes as long, of an image
    cut_filters: int  # the most filters of a convolution whose input channels are cut

    def packed_of(self, thread: int) -> Packed:
        """Return the operations of one of the threads that share them; some planes are each one's own."""
        return self._others[thread - 1] if 0 < thread < self.threads else self.packed

    @cached_property
    def _others(self) -> list[Packed]:
        others = []
        for thread in range(1, self.threads):
            operations = self.packed.operations.copy()
            for place, own in ((SOURCE, SOURCE_OWN), (TARGET, TARGET_OWN)):
                operations[:, place] += thread * operations[:, own]
            others.append(self.packed._replace(operations=operations))
        return others


class Planner:
    """Makes operations of layers, then places values."""

    def __init__(
        self, layers: Sequence[Any], shapes: Sequence[tuple[int, ...]], sources: Sequence[tuple[int, ...]]
    ) -> None:
        self.layers, self.shapes, self.sources = layers, shapes, sources
        self.operations: list[Operation] = []
        self._readers = [sum(number in each for each in sources) for number in range(len(shapes))]
        self._values: dict[int, Value] = {}
        self._images: dict[int, Any] = {0: shapes[0]}
        self._phases: dict[tuple[int, int, int], Value] = {}
        for number, layer in enumerate(layers, start=1):
            self._add(number, layer, sources[number - 1])
        last = self._value(len(layers))
        self.operations.append(Operation(OUTPUT, last, None, image=self._images[len(layers)]))
        self.largest = max(sum(value.size(1) for value in each.values) for each in self.operations)
        """Numbers that an image takes in the largest operation, with planes for all channels."""

    def _value(self, number: int) -> Value:
        """Return a value in the arena, into which rows are copied."""
        if number not in self._values:
            assert number == 0
            self._values[0] = _value_of(self.shapes[0])
            copy = Operation(COPY, None, self._values[0], image=self._images[0])
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
                self.operations.append(Operation(COPY, self._value(source), target, image=image, channel=channel))
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
                Operation(kind, self._value(sources[0]), self._values[number], layer=layer, image=image)
            )

    def _convolve(self, layer: Conv2d, source: int, shape: tuple[int, ...]) -> Value:
        _, strides, _, _ = layer.sliding_window
        down, across = (stride if outputs > 1 else 1 for stride, outputs in zip(strides, shape[1:], strict=True))
        image = self._images[source]
        value = self._value(source) if (down, across) == (1, 1) else self._sorted(source, down, across)
        lines, columns = reach_of(layer, (down, across))
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
        operation = Operation(CONVOLVE, value, target, layer=layer, activation=layer.activation, image=image)
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
            operation = Operation(COPY, before, value, image=image)
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
            self.operations.append(Operation(kind, one, value, two, activation=activation, image=image))
        return value

    def streams(self, images: int) -> dict[int, tuple[range, int]]:
        """Return operations that go together, some channels at a time, and how many, by the first of them.

        A channel that a convolution makes goes through a depthwise one, or a pooling, alone. Where the planes of all
        channels would leave the cache before they are read, they share those of some.
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
            together = SHARING
            while 2 * together * FLOAT_BYTES * planes <= CACHE_BYTES // 4:
                together *= 2
            if FLOAT_BYTES * planes * each.layer.filters > CACHE_BYTES // 2 and together < each.layer.filters:
                found[number] = range(number, number + len(chain)), together
        return found

    def packed(self, images: int, threads: int = 1) -> Program:
        """Place values for a number of images, and write operations down for threads that share each."""
        streams = self.streams(images)
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
            for each in self.operations[one[0] : one[-1]]:
                assert each.target is not None
                each.target.together, each.target.threads = some, threads
        homes = {value: value for value in values}
        for number, each in enumerate(self.operations):
            if each.other is None or each.target is None or each.kind == SCALE:
                continue
            home = homes[each.other]
            if home.last == number and each.source is not None and homes[each.source] is not home:
                homes[each.target], home.last = home, each.target.last  # the sum is written over what is added
        size = allocate([value for value, home in homes.items() if value is home], images)
        size += 2 * LINE  # which vectors that sort phases read beyond the last line
        for value, home in homes.items():
            value.start = home.start
        writer = Writer(images)
        for number, each in enumerate(self.operations):
            writer.add(each, together.get(number, 0))
        number = 0
        while number < len(self.operations):
            one, some = streams.get(number, (range(number, number + 1), 0))
            writer.add_group(one, some)
            number = one.stop
        outputs = prod(self.shapes[-1])
        lines = (value.grid.laid(images).line for value in values)
        widest = parts_of(max(*lines, *(each.image[2] for each in self.operations)), LINE) * LINE
        return Program(writer.packed(), images, threads, size, widest, outputs, writer.work, writer.cut_filters)


def _value_of(shape: tuple[int, ...]) -> Value:
    channels, height, width = shape
    return Value(channels, height, width)


def _goes_by_channel(first: Operation, second: Operation) -> bool:
    """Return whether the second takes each channel of what a convolution makes, if it reads that, alone.

    Poolings do so behind convolutions of few weights: others gain more from their inputs in the first-level cache.
    """
    if first is second or any(one.kind == CONVOLVE and one.other is not None for one in (first, second)):
        return False
    if first.kind != CONVOLVE or first.layer.groups != 1:
        return False
    if second.kind in (LARGEST, MEAN):
        return second.image[0] == first.layer.filters and first.layer.nonzeros <= 2 * CUT_TAPS * first.layer.filters
    return second.kind == CONVOLVE and first.layer.filters == second.layer.filters == second.layer.groups
