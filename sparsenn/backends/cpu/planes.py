"""Convolutions and poolings as the CPU's kernel takes them: lists of taps, and where the pixels they meet lie.

Some images, a *panel*, go through the layers together. Their pixels lie innermost: the numbers that a pixel of a
channel has in the images of a panel follow each other. Pixels are padded, and with a stride sorted into one *plane* for
each remainder of their row and column by the stride. So the pixels that an element of a window meets at neighbouring
outputs are neighbours, and an output plane is a sum, or the largest, of shifted planes: of one for each *tap*, which is
a weight of a filter that is not zero, or an element of a pool's window.

Four filters that have most taps in common are a *block*: a pixel that is loaded serves all four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsenn.backends.cpu.activation import IDENTITY, activation_code
from sparsenn.backends.cpu.tiles import WIDE_TILE
from sparsenn.formats import Array
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, ImageLayer, MaxPool2d

__all__ = ["FIRST_BLOCK", "LAST_BLOCK", "Packed", "Program", "program_of", "shared_taps"]

SUM, LARGEST, MEAN = range(3)  # what is made of the pixels that a window meets

(
    KIND, CHANNELS, HEIGHT, WIDTH, PLANE, COLUMNS, DOWN, ACROSS, ABOVE, BESIDE, FILTERS, OUTPUT_HEIGHT, OUTPUT_WIDTH,
    PADDED, ACTIVATION, FIRST_BIAS, FIRST_BLOCK, LAST_BLOCK, PIXELS, FIRST_DIVISOR,
) = range(20)  # fmt: skip
"""Columns of `Packed.layers`."""

TOGETHER = 4  # filters of a block

SHARED = 0.5
"""Filters become a block where that many of a block's weights, as a share, are not zero: a multiply-add of four
filters takes about half the time of one alone."""


class Packed(NamedTuple):
    """L layers in arrays that compiled functions take as one argument.

    layers : (L, 20) int64, columns as named above.
    blocks : (blocks, 5) int64: the first filter, how many filters, the first and last tap, the first weight.
    shifts : (taps,) int64: where, counted in pixels, output (0, 0) of a block meets each tap.
    weights : float32: of each block, for each tap, its filters' weights.
    biases : (all filters,) float32, what outputs begin with, one layer's after the other's.
    divisors : float64: of each mean that leaves out padding, for each place of a plane, by what its sum is divided.
    """

    layers: Array
    blocks: Array
    shifts: Array
    weights: Array
    biases: Array
    divisors: Array
    clips: Array  # (L,) float32, infinity where there is none


@dataclass(frozen=True, eq=False)
class Program:
    """Layers that panels go through."""

    packed: Packed
    largest: int  # pixels that the planes of one layer take at most, or its outputs
    work: tuple[int, ...]  # multiply-adds, or comparisons, of each layer for an image
    outputs: int  # of an image


class _Block(NamedTuple):
    first: int
    taps: Array  # (taps,) int64, numbers of the weights within a filter
    weights: Array  # (filters, taps) float32


def shared_taps(weights: Array, per_group: int) -> Iterator[_Block]:
    """Cut filters, (filters, weights of a filter) float32, into blocks, each of filters of one group."""
    for group in range(0, weights.shape[0], per_group):
        for first in range(group, group + per_group, TOGETHER):
            some = weights[first : min(first + TOGETHER, group + per_group)]
            taps = np.flatnonzero(some.any(axis=0))
            if some.shape[0] == TOGETHER and np.count_nonzero(some) >= SHARED * TOGETHER * taps.size:
                yield _Block(first, taps, some[:, taps])
                continue
            for number, alone in enumerate(some, start=first):
                taps = np.flatnonzero(alone)
                yield _Block(number, taps, alone[None, taps])


def program_of(layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> Program:
    """Make layers ready for panels; `shapes` are those of one input before each layer, and after the last."""
    records, blocks, work = [], _Blocks(), []
    clips: list[float] = []
    divisors = [np.zeros(0)]
    for layer, before, after in zip(layers, shapes, shapes[1:], strict=False):
        if isinstance(layer, Flatten):
            continue
        record = _planes(layer, before, after)
        first, first_bias = len(blocks.records), blocks.filters
        code, clip = activation_code(layer.activation) if isinstance(layer, Conv2d) else (IDENTITY, np.inf)
        work.append(blocks.add(layer, record) * prod(after[1:]))
        records.append(
            [
                *record,
                code,
                first_bias,
                first,
                len(blocks.records),
                prod(record[i] for i in (CHANNELS, PLANE, DOWN, ACROSS)),
                sum(each.size for each in divisors) if _leaves_padding_out(layer) else -1,
            ]
        )
        if _leaves_padding_out(layer):
            divisors.append(_divisors(layer, record))
        clips.append(clip)
    packed = Packed(
        np.array(records, np.int64).reshape(-1, FIRST_DIVISOR + 1),
        np.array(blocks.records, np.int64).reshape(-1, 5),
        np.concatenate([np.zeros(0, np.int64), *blocks.shifts]),
        np.concatenate([np.zeros(0, np.float32), *blocks.weights]),
        np.concatenate([np.zeros(0, np.float32), *blocks.biases]),
        np.concatenate(divisors),
        np.array(clips, np.float32),
    )
    outputs = prod(shapes[-1])
    return Program(packed, max([*packed.layers[:, PIXELS].tolist(), outputs]), tuple(work), outputs)


def _planes(layer: Any, before: Sequence[int], after: Sequence[int]) -> list[int]:
    _, strides, (above, beside), _ = layer.sliding_window
    down, across = (stride if outputs > 1 else 1 for stride, outputs in zip(strides, after[1:], strict=True))
    kind = SUM if isinstance(layer, Conv2d) else LARGEST if isinstance(layer, MaxPool2d) else MEAN
    assert kind != MEAN or isinstance(layer, AvgPool2d)
    below, right = (above, beside) if isinstance(layer, Conv2d) else layer.after
    lines, columns = -(-(before[1] + above + below) // down), -(-(before[2] + beside + right) // across)
    plane = lines * columns | 1  # odd, so that a cache holds the same place of several planes in different sets
    padded = int(max(above, beside, below, right) > 0)
    return [kind, *before, plane, columns, down, across, above, beside, *after, padded]


def _leaves_padding_out(layer: Any) -> bool:
    return isinstance(layer, AvgPool2d) and layer.is_padded and not layer.counts_padding


def _divisors(layer: Any, record: Sequence[int]) -> Array:
    """Return how many pixels of an image each window of a plane of outputs holds; 1 where a plane has none."""
    (rows, columns), strides, paddings, _ = layer.sliding_window
    counts = [
        np.minimum(first + span, size) - np.maximum(first, 0)
        for size, span, first in (
            (record[HEIGHT], rows, np.arange(record[OUTPUT_HEIGHT]) * strides[0] - paddings[0]),
            (record[WIDTH], columns, np.arange(record[OUTPUT_WIDTH]) * strides[1] - paddings[1]),
        )
    ]
    divisors = np.ones((record[OUTPUT_HEIGHT], record[COLUMNS]))
    divisors[:, : record[OUTPUT_WIDTH]] = np.outer(*counts)
    return np.concatenate([divisors.ravel(), np.ones(WIDE_TILE)])


def _shifts(layer: Any, record: Sequence[int]) -> Array:
    """Return where output (0, 0) meets each element of a window of all its channels, counted from the first pixel."""
    window, _, _, apart = layer.sliding_window
    channels = layer.weights.shape[1] if isinstance(layer, Conv2d) else 1
    channel, row, column = np.indices((channels, *window))
    line, remainder_down = np.divmod(row * apart[0], record[DOWN])
    place, remainder_across = np.divmod(column * apart[1], record[ACROSS])
    plane = (channel * record[DOWN] + remainder_down) * record[ACROSS] + remainder_across
    shifts: Array = (plane * record[PLANE] + line * record[COLUMNS] + place).reshape(-1).astype(np.int64)
    return shifts


class _Blocks:
    def __init__(self) -> None:
        self.records: list[tuple[int, int, int, int, int]] = []
        self.shifts: list[Array] = []
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        self._taps = self._weights = self.filters = 0

    def add(self, layer: Any, record: Sequence[int]) -> int:
        """Add those of a layer; return the multiply-adds, or comparisons, of a pixel of all its outputs."""
        shifts, channel = _shifts(layer, record), prod(record[i] for i in (PLANE, DOWN, ACROSS))
        taps = 0
        if isinstance(layer, Conv2d):
            weights, per_group = layer.weights.reshape(layer.filters, -1), layer.filters // layer.groups
            for block in shared_taps(weights, per_group):
                group = block.first // per_group
                base = group * layer.weights.shape[1] * channel
                taps += self._add(block.first, base + shifts[block.taps], block.weights)
            self.biases.append(layer.bias_vector() + np.float32(0))
        else:
            no_weights = np.ones((1, 0), np.float32)
            for number in range(record[CHANNELS]):
                taps += self._add(number, number * channel + shifts, no_weights)
            self.biases.append(np.full(record[CHANNELS], -np.inf if record[KIND] == LARGEST else 0, np.float32))
        self.filters += record[FILTERS]
        return taps

    def _add(self, first: int, shifts: Array, weights: Array) -> int:
        self.records.append((first, len(weights), self._taps, self._taps + shifts.size, self._weights))
        self.shifts.append(shifts)
        self.weights.append(weights.T.reshape(-1))
        self._taps += shifts.size
        self._weights += weights.size
        return int(len(weights) * shifts.size)
