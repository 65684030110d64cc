"""Affine maps that wait to become layers: they take in what is multiplied or added before and after them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.sparse import csc_array, diags_array, eye_array, issparse, kron

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.layers import Activation, Conv2d, PerPosition
from sparsenn.layers.images import Pair
from sparsenn.layers.sparse_or_dense import fully_connected
from sparsenn.network import Layer

Factor: TypeAlias = Any
"""One float64 number, or an array of them, one for each number of a row."""

Sides: TypeAlias = tuple[Pair, Pair]
"""Pixels put around an image: above and below, left and right."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """y = x · scale + shift, number by number; both float64."""

    scale: Factor = 1.0
    shift: Factor = 0.0

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return bool(np.all(self.scale == 1.0)) and not np.any(self.shift)

    def times(self, factor: Factor) -> Scaling:
        """Return this, then a product with numbers."""
        return Scaling(self.scale * factor, self.shift * factor)

    def plus(self, addend: Factor) -> Scaling:
        """Return this, then a sum with numbers."""
        return Scaling(self.scale, self.shift + addend)

    def by_output(self, numbers: Array, shape: tuple[int, ...]) -> Array:
        """Return a row's numbers, to multiply with or to add, as this takes them: as they are."""
        return numbers

    def moved(self, order: Array) -> Scaling:
        """Return it for rows whose numbers come in another order: those at the places `order` of these."""
        return Scaling(*(each if np.ndim(each) == 0 else each[order] for each in (self.scale, self.shift)))

    def pooled(self, image: tuple[int, ...], pooled: tuple[int, ...]) -> Scaling | None:
        """Return it for images of another size; None where pixels of a channel differ."""
        if self.idle:
            return Scaling()
        scale, shift = by_channel(self.scale, image), by_channel(self.shift, image)
        if scale is None or shift is None:
            return None
        return Scaling(np.repeat(scale, prod(pooled[1:])), np.repeat(shift, prod(pooled[1:])))

    def at_each(self, positions: int) -> Scaling | None:
        """Return it for each of as many positions of a row; None where positions differ."""
        scale, shift = _by_position(self.scale, positions), _by_position(self.shift, positions)
        return None if scale is None or shift is None else Scaling(scale, shift)

    def as_product(self, width: int) -> Product:
        """Return it as a product with a diagonal matrix."""
        diagonal = np.broadcast_to(np.asarray(self.scale, np.float64), (width,))
        return Product(csc_array(diags_array(diagonal)), self.shift)

    def as_convolution(self, image: tuple[int, ...]) -> Convolution | None:
        """Return it as a convolution of single pixels, channel by channel; None where pixels of one differ."""
        scale, shift = by_channel(self.scale, image), by_channel(self.shift, image)
        if scale is None or shift is None:
            return None
        return Convolution(scale.reshape(-1, 1, 1, 1), shift, groups=image[0])


UNSCALED = Scaling()  # what changes nothing


@dataclass(frozen=True, eq=False)
class Product:
    """y = x · weights + bias, with weights of shape (inputs, outputs), dense or SciPy's, and a bias or 0."""

    weights: Any
    bias: Factor = 0.0

    def after(self, scaling: Scaling) -> Product:
        """Return a scaling and then this as one."""
        if scaling.idle:
            return self
        inputs = (self.weights.shape[0],)
        bias = self.bias
        if np.any(scaling.shift):
            bias = bias + np.broadcast_to(scaling.shift, inputs) @ self.weights
        scale = np.broadcast_to(scaling.scale, inputs)
        return Product(
            diags_array(scale) @ self.weights if issparse(self.weights) else scale[:, None] * self.weights, bias
        )

    def times(self, factor: Factor) -> Product:
        """Return this, then a product with numbers."""
        if issparse(self.weights):
            width = self.weights.shape[1]
            weights = self.weights @ diags_array(np.broadcast_to(np.asarray(factor, np.float64), (width,)))
        else:
            weights = self.weights * np.asarray(factor, np.float64)
        return Product(weights, self.bias * factor)

    def plus(self, addend: Factor) -> Product:
        """Return this, then a sum with numbers."""
        return replace(self, bias=self.bias + addend)

    def by_output(self, numbers: Array, shape: tuple[int, ...]) -> Array:
        """Return a row's numbers, to multiply with or to add, as this takes them: as they are."""
        return numbers

    def doubled(self, slopes: Factor) -> tuple[Product, Product]:
        """Return this with each output twice, once negated, and what makes rises and `slopes` · falls of the two."""
        width = self.weights.shape[1]
        bias = np.broadcast_to(np.asarray(self.bias, np.float64), (width,))
        twice = Product(self.weights[:, np.repeat(np.arange(width), 2)], np.repeat(bias, 2))
        pairs = np.stack([np.ones(width), np.broadcast_to(-slopes, (width,))], axis=1).ravel()
        taken = csc_array((pairs, np.arange(2 * width), np.arange(0, 2 * width + 1, 2)))
        return twice.times(np.tile([1.0, -1.0], width)), Product(taken)

    def layer(self, activation: Activation, sparse_below: float) -> Layer:
        """Return the layer."""
        return fully_connected(self.weights, _bias(self.bias), activation, sparse_below=sparse_below)


@dataclass(frozen=True, eq=False)
class PositionProduct:
    """A product that is the same at each of a row's positions, one after the other."""

    product: Product
    positions: int

    def times(self, factor: Factor) -> PositionProduct:
        """Return this, then a product with numbers, one for all or one for each output."""
        return replace(self, product=self.product.times(factor))

    def plus(self, addend: Factor) -> PositionProduct:
        """Return this, then a sum with numbers, one for all or one for each output."""
        return replace(self, product=self.product.plus(addend))

    def by_output(self, numbers: Array, shape: tuple[int, ...]) -> Array | None:
        """Return one of a row's numbers for each output of a position; None where positions have several."""
        return _by_position(numbers, self.positions)

    @property
    def edges(self) -> int:
        """Weights of all positions."""
        return self.positions * int(
            self.product.weights.nnz if issparse(self.product.weights) else self.product.weights.size
        )

    def as_product(self) -> Product:
        """Return it as a product with whole rows, with the weights once for each position."""
        weights = csc_array(kron(eye_array(self.positions), csc_array(self.product.weights)))
        bias = np.broadcast_to(self.product.bias, self.product.weights.shape[1:])
        return Product(weights, np.tile(bias, self.positions))

    def layer(self, activation: Activation, sparse_below: float) -> Layer:
        """Return the layer."""
        made = self.product.layer(activation, sparse_below)
        return PerPosition(made, self.positions)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution, as `Conv2d` has it, with a bias for each filter or 0."""

    weights: Array
    bias: Factor = 0.0
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @classmethod
    def of_channels(cls, sources: Array, channels: int) -> Convolution:
        """Return the convolution that takes these of some channels, by one weight of each filter."""
        return cls(np.eye(channels, dtype=np.float32)[sources][:, :, None, None])

    def times(self, factor: Factor) -> Convolution:
        """Return this, then a product with numbers, one for all or one for each filter."""
        weights = self.weights * np.reshape(np.asarray(factor, np.float64), (-1, 1, 1, 1))
        return replace(self, weights=weights, bias=self.bias * factor)

    def plus(self, addend: Factor) -> Convolution:
        """Return this, then a sum with numbers, one for all or one for each filter."""
        return replace(self, bias=self.bias + addend)

    def after(self, scaling: Scaling, image: tuple[int, ...]) -> Convolution | None:
        """Return a scaling and then this as one; None where they are not one convolution: at a padding, or by pixel."""
        if scaling.idle:
            return self
        scale, shift = by_channel(scaling.scale, image), by_channel(scaling.shift, image)
        if scale is None or shift is None or (np.any(shift) and any(self.padding)):
            return None
        filters, channels = self.weights.shape[:2]
        part = np.arange(filters) // (filters // self.groups)
        taken = part[:, None] * channels + np.arange(channels)
        bias = self.bias + np.einsum("fchw,fc->f", self.weights.astype(np.float64), shift[taken])
        return replace(self, weights=self.weights * scale[taken][:, :, None, None], bias=bias)

    def after_channels(self, taken: Convolution) -> Convolution | None:
        """Return what takes some channels, or multiples of them, and then this as one; None where that would cost more.

        That is so of some of many channels but before single pixels, as weights of zero are multiplied, too.
        """
        filters, channels = taken.weights.shape[:2]
        one_each = taken.weights.shape[2:] == (1, 1) and np.all(np.count_nonzero(taken.weights, axis=(1, 2, 3)) == 1)
        costs_more = filters != channels and self.weights.shape[2:] != (1, 1)
        sizes = taken.stride, taken.padding, taken.groups
        if not one_each or sizes != ((1, 1), (0, 0), 1) or np.any(taken.bias) or self.groups != 1 or costs_more:
            return None
        weights = np.einsum("fchw,cs->fshw", self.weights, taken.weights[:, :, 0, 0], optimize=True)
        return replace(self, weights=weights)

    def by_output(self, numbers: Array, shape: tuple[int, ...]) -> Array | None:
        """Return one of a row's numbers for each filter; None where pixels of one have several."""
        return by_channel(numbers, shape)

    def doubled(self, slopes: Factor) -> tuple[Convolution, Convolution]:
        """Return this with each filter twice, once negated, and what makes rises and `slopes` · falls of the two."""
        width = self.weights.shape[0]
        bias = np.broadcast_to(np.asarray(self.bias, np.float64), (width,))
        twice = replace(self, weights=np.repeat(self.weights, 2, axis=0), bias=np.repeat(bias, 2))
        pairs = np.stack([np.ones(width), np.broadcast_to(-slopes, (width,))], axis=1)
        return twice.times(np.tile([1.0, -1.0], width)), Convolution(pairs[:, :, None, None], groups=width)

    def as_product(self, image: tuple[int, ...]) -> Product:
        """Return it as a product of the pixels of an image, channel after channel, with a sparse matrix."""
        (down, across), size = self.padding, prod(image[1:])
        pixels = np.pad(np.arange(size).reshape(image[1:]), ((down, down), (across, across)), constant_values=-1)
        spans = tuple(
            apart * (length - 1) + 1 for apart, length in zip(self.dilation, self.weights.shape[2:], strict=True)
        )
        windows = sliding_window_view(pixels, spans)[
            :: self.stride[0], :: self.stride[1], :: self.dilation[0], :: self.dilation[1]
        ]
        filters, channels = self.weights.shape[:2]
        group = np.arange(filters) // (filters // self.groups)
        first = (group[:, None] * channels + np.arange(channels)) * size  # pixel of the channels that a filter takes
        made = prod(windows.shape[:2])
        shape = (filters, channels, *windows.shape)
        inputs = first[:, :, None, None, None, None] + windows
        outputs = np.arange(filters * made).reshape(filters, 1, *windows.shape[:2], 1, 1)
        numbers = np.broadcast_to(self.weights[:, :, None, None], shape)
        taken = (numbers != 0) & (windows >= 0)
        places = tuple(np.broadcast_to(each, shape)[taken] for each in (inputs, outputs))
        weights = csc_array((numbers[taken], places), shape=(image[0] * size, filters * made))
        return Product(weights, np.repeat(np.broadcast_to(np.asarray(self.bias, np.float64), (filters,)), made))

    def layer(self, activation: Activation, sparse_below: float = 0.0) -> Layer:
        """Return the layer; a convolution is never sparse."""
        return Conv2d(self.weights, _bias(self.bias), activation, self.stride, self.padding, self.dilation, self.groups)


Affine: TypeAlias = Scaling | Product | PositionProduct | Convolution


def by_channel(factor: Factor, image: tuple[int, ...]) -> Array | None:
    """Return one number for each channel of an image; None where a channel's pixels have several."""
    if np.ndim(factor) == 0:
        return np.full(image[0], factor, np.float64)
    pixels: Array = np.reshape(factor, (image[0], prod(image[1:])))
    return pixels[:, 0] if bool((pixels == pixels[:, :1]).all()) else None


def _by_position(factor: Factor, positions: int) -> Array | None:
    """Return one number for each output of a position; None where positions have several."""
    if np.ndim(factor) == 0:
        return np.asarray(factor, np.float64)
    numbers: Array = np.reshape(factor, (positions, -1))
    return numbers[0] if bool((numbers == numbers[:1]).all()) else None


def centred(weights: Array, dilation: Pair, padding: Sides) -> tuple[Array, Pair, Pair]:
    """Return filters, dilation and padding that do the same with as many pixels on both sides.

    Filters grow by zeros on the side that had fewer pixels: there they then begin, or end, as much earlier, or later.
    """
    around = max(padding[0]), max(padding[1])
    for axis, sides in enumerate(padding):
        if sides[0] == sides[1]:
            continue
        apart, size = dilation[axis], weights.shape[2 + axis]
        shape = list(weights.shape)
        shape[2 + axis] = apart * (size - 1) + 1 + abs(sides[0] - sides[1])
        grown = np.zeros(shape, weights.dtype)
        first = around[axis] - sides[0]
        place = [slice(None)] * 4
        place[2 + axis] = slice(first, first + apart * (size - 1) + 1, apart)
        grown[tuple(place)] = weights
        weights = grown
        dilation = (1, dilation[1]) if axis == 0 else (dilation[0], 1)
    return weights, dilation, around


def _bias(bias: Factor) -> Array | None:
    """Return a bias as layers take it: none where it is the number 0."""
    return None if np.ndim(bias) == 0 and bias == 0.0 else np.asarray(bias)


def check_finite(weights: Any) -> None:
    """Refuse weights that are not finite, dense or one of SciPy's."""
    if not np.isfinite(weights.data if issparse(weights) else weights).all():
        raise InputError("the weights hold NaN or infinity")
