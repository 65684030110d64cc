"""The cells that the planner's choice is recorded for: networks with numbers of rows, drawn at random."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from cases import sparse_layer
from peers import PRECISIONS

from sparsenn import Conv2d, Network, ReLU

__all__ = ["CPU_CELLS", "GPU_CELLS", "Chain", "Convolutions", "draw", "network_of"]

SEED = 57
"""Of the draw, and of the weights of each network."""

WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
CHANNELS = (16, 32, 64, 128, 256, 512)
IMAGES = (7, 14, 28, 56)
PERCENTS = (1, 5, 20, 50)
ROWS = (1, 16, 128, 1024, 8192)

MOST_ROW_WORK = 5e7
"""Multiply-adds of a row."""


class Chain(NamedTuple):
    """Sparse fully connected layers.

    Parameters
    ----------
    widths : inputs of the first layer, then outputs of each.
    percent : stored weights of each layer.
    """

    widths: tuple[int, ...]
    percent: int
    rows: int
    precision: str = "float32"

    @property
    def work(self) -> int:
        """Multiply-adds of a row, all weights stored."""
        return sum(a * b for a, b in pairwise(self.widths))

    @property
    def numbers(self) -> int:
        """Numbers of a row in the widest layer."""
        return max(self.widths)

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.widths))
        return f"{sizes}, {self.percent} %, {self.rows:,} rows, {self.precision}"


class Convolutions(NamedTuple):
    """Convolutions one after the other, padded so that only strides make images smaller.

    Parameters
    ----------
    image : height and width of an image.
    channels : of an image, then filters of each layer.
    sides : height and width of each layer's filters.
    strides : of each layer.
    percent : weights that are not zero; 100 for dense filters.
    """

    image: int
    channels: tuple[int, ...]
    sides: tuple[int, ...]
    strides: tuple[int, ...]
    percent: int
    rows: int
    precision: str = "float32"

    @property
    def images(self) -> tuple[int, ...]:
        """Height and width before each layer, and after the last."""
        sizes = [self.image]
        for stride in self.strides:
            sizes.append(-(-sizes[-1] // stride))
        return tuple(sizes)

    @property
    def work(self) -> int:
        """Multiply-adds of an image, zeros among them."""
        layers = zip(pairwise(self.channels), self.sides, self.images[1:], strict=True)
        return sum(a * b * (side * size) ** 2 for (a, b), side, size in layers)

    @property
    def numbers(self) -> int:
        """Numbers of an image in the largest layer."""
        return max(channels * size**2 for channels, size in zip(self.channels, self.images, strict=True))

    def __str__(self) -> str:
        layers = [
            f"{filters} {side}x{side}{f'/{stride}' if stride > 1 else ''}"
            for filters, side, stride in zip(self.channels[1:], self.sides, self.strides, strict=True)
        ]
        sizes = "-".join([f"{self.channels[0]}x{self.image}x{self.image}", *layers])
        return f"{sizes}, {self.percent} %, {self.rows:,} rows, {self.precision}"


def draw(on_gpu: bool) -> tuple[Chain | Convolutions, ...]:
    """Draw different cells: two chains, then convolutions, and so on; in all precisions on a GPU, else in float32."""
    count, most_work, most_numbers = (90, 5e11, 1e8) if on_gpu else (60, 5e9, 2e7)
    generator = random.Random(SEED)
    cells: list[Chain | Convolutions] = []
    while len(cells) < count:
        cell = _convolutions(generator) if len(cells) % 3 == 2 else _chain(generator)
        if on_gpu:
            cell = cell._replace(precision=generator.choice(PRECISIONS))
        fits = cell.work * cell.rows <= most_work and cell.numbers * cell.rows <= most_numbers
        if fits and cell.work <= MOST_ROW_WORK and cell not in cells:
            cells.append(cell)
    return tuple(cells)


def _chain(generator: random.Random) -> Chain:
    depth = generator.choice((2, 3, 4))
    widths = generator.choices(WIDTHS, k=depth + 1 if generator.random() < 0.5 else 1)
    widths = widths if len(widths) > 1 else widths * (depth + 1)
    return Chain(tuple(widths), generator.choice(PERCENTS), generator.choice(ROWS))


def _convolutions(generator: random.Random) -> Convolutions:
    depth = generator.choice((1, 2, 3))
    return Convolutions(
        generator.choice(IMAGES),
        tuple(generator.choices(CHANNELS, k=depth + 1)),
        tuple(generator.choices((1, 3), k=depth)),
        tuple(generator.choices((1, 2), k=depth)),
        generator.choice((*PERCENTS[1:], 100)),
        generator.choice(ROWS),
    )


def network_of(cell: Chain | Convolutions) -> Network:
    """Return the network of a cell, ReLU after each layer."""
    generator = np.random.default_rng(SEED)
    if isinstance(cell, Chain):
        return Network(tuple(sparse_layer(generator, *pair, cell.percent / 100) for pair in pairwise(cell.widths)))
    layers = []
    for (channels, filters), side, stride in zip(pairwise(cell.channels), cell.sides, cell.strides, strict=True):
        shape = filters, channels, side, side
        weights = generator.standard_normal(shape, dtype=np.float32) * (generator.random(shape) * 100 < cell.percent)
        weights *= np.float32((200 / (cell.percent * channels * side**2)) ** 0.5)
        layers.append(Conv2d(weights, generator.standard_normal(filters) / 10, ReLU(), stride, side // 2))
    return Network(tuple(layers), image=(cell.channels[0], cell.image, cell.image))


GPU_CELLS, CPU_CELLS = draw(on_gpu=True), draw(on_gpu=False)
"""A test compares them with the recorded ones: a release of Python may change its generator."""
