"""A network made of another program's layers, told one after the other.

Their scalings, activations and reshapings are layers of their own; here they join the layer before or after them, where
that computes the same to rounding, and become a layer otherwise. So nothing that was told is ever left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csc_array, diags_array, issparse

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import (
    Activation,
    AvgPool2d,
    Conv2d,
    Flatten,
    Identity,
    ImageLayer,
    MaxPool2d,
    Pool2d,
    ReLU,
    Softmax,
)
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW, fully_connected
from sparsenn.network import Image, Layer, Network

__all__ = ["Chain", "Sides"]

Sides: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Pixels put around an image: above and below, left and right."""


@dataclass
class _Affine:
    """A layer with weights that is not finished: scalings and an activation may still join it.

    Attributes
    ----------
    name : what messages call it.
    weights : (inputs, outputs), an array or SciPy's CSC; of a convolution (filters, channels / groups, height, width).
    bias : (outputs,).
    activation : applied to each output.
    windows : what else `Conv2d` takes; None for a fully connected layer.
    """

    name: str
    weights: Any
    bias: Array
    activation: Activation
    windows: dict[str, Any] | None = None

    def scale(self, factor: Array, shift: Array) -> None:
        """Have each output multiplied and added to."""
        if (factor != 1).any():
            axes = factor if self.windows is None else factor[:, None, None, None]
            self.weights = self.weights @ diags_array(factor) if issparse(self.weights) else self.weights * axes
        self.bias = self.bias * factor + shift

    def double(self) -> None:
        """Give each output a second time, negated, just after it."""
        signs = np.tile([1.0, -1.0], self.bias.size)
        twice = np.repeat(np.arange(self.bias.size), 2)
        self.weights = self.weights[twice] if self.windows is not None else self.weights[:, twice]
        self.bias = self.bias[twice]
        self.scale(signs, np.zeros_like(signs))

    def layer(self, sparse_below: float) -> Layer:
        """Return the layer as it now is."""
        bias = self.bias if self.bias.any() else None
        try:
            if self.windows is None:
                return fully_connected(self.weights, bias, self.activation, sparse_below=sparse_below)
            return Conv2d(self.weights, bias, self.activation, **self.windows)
        except (InputError, UsageError) as error:
            raise InputError(f"{self.name}: {error}") from error


class Chain:
    """Layers told so far; each method adds what another program does next to the numbers.

    Every method takes the name that messages call the layer by, and raises `ShapeError` where what it is given does not
    fit, and `InputError` where that cannot be computed.

    Parameters
    ----------
    shape : of one input: (channels, height, width) of an image, (channels, length) of a sequence, which counts as an
        image of one line, or (numbers,) of a row; None where the first layer tells it.
    hint : how a caller says the shape, for messages.
    sparse_below : as of `fully_connected`.
    """

    def __init__(self, shape: tuple[int, ...] | None, hint: str, sparse_below: float = SPARSE_BELOW) -> None:
        if shape is not None and (not 1 <= len(shape) <= 3 or min(shape) < 1):
            raise ShapeError(f"one input has the shape {shape}; take (numbers,) or (channels, height, width)")
        self.shape = (shape[0], 1, shape[1]) if shape is not None and len(shape) == 2 else shape
        self._image = self.shape
        self._hint = hint
        self._sparse_below = sparse_below
        self._told: list[_Affine | ImageLayer] = []
        self._pending: tuple[Array, Array] | None = None  # a factor and a shift for each channel, or each number
        self._order: Array | None = None  # which of their numbers each of ours is, where theirs are in another order

    def connect(self, name: str, weights: Any, bias: Any = None) -> None:
        """Add a fully connected layer.

        Parameters
        ----------
        weights : (inputs, outputs), an array or a SciPy sparse matrix.
        bias : None or (outputs,).
        """
        if len(weights.shape) != 2:
            raise ShapeError(f"{name}: the weights have shape {tuple(weights.shape)}; two dimensions are needed")
        inputs, outputs = weights.shape
        self.expect(name, inputs)
        weights = csc_array(weights) if issparse(weights) else weights
        if self._order is not None:
            weights, self._order = weights[self._order], None
        bias = _vector(name, bias, outputs, "bias", 0.0)
        if self._pending is not None:
            factor, shift = self._pending
            bias = bias + shift @ weights
            weights = diags_array(factor).tocsc() @ weights if issparse(weights) else weights * factor[:, None]
            self._pending = None
        self._told.append(_Affine(name, weights, bias, Identity()))
        self.shape = (outputs,)

    def convolve(
        self,
        name: str,
        weights: Array,
        bias: Any = None,
        stride: tuple[int, int] = (1, 1),
        padding: Sides = ((0, 0), (0, 0)),
        dilation: tuple[int, int] = (1, 1),
        groups: int = 1,
    ) -> None:
        """Add a convolution with filters of shape (filters, channels / groups, height, width)."""
        if weights.ndim != 4 or 0 in weights.shape:
            raise ShapeError(f"{name}: the weights have shape {weights.shape}; a convolution's have four dimensions")
        channels = self.image(name)[0]
        if weights.shape[1] * groups != channels or weights.shape[0] % groups:
            raise ShapeError(
                f"{name}: filters of shape {weights.shape} in {groups} groups do not fit {channels} channels"
            )
        weights, dilation, around = _centred(weights, dilation, padding)
        bias = _vector(name, bias, weights.shape[0], "bias", 0.0)
        if self._pending is not None and self._pending[1].any() and any(around):
            self._settle(name)  # what is put around the image is not shifted
        if self._pending is not None:
            factor, shift = (
                np.repeat(each.reshape(groups, -1), weights.shape[0] // groups, axis=0) for each in self._pending
            )
            bias = bias + (weights.sum(axis=(2, 3), dtype=np.float64) * shift).sum(axis=1)
            weights = weights * factor[:, :, None, None]
            self._pending = None
        windows = {"stride": stride, "padding": around, "dilation": dilation, "groups": groups}
        affine = _Affine(name, weights, bias, Identity(), windows)
        self._told.append(affine)
        self._follow(name, affine.layer(self._sparse_below))

    def scale(self, name: str, factor: Any, shift: Any) -> None:
        """Multiply and add: one number for all, or one for each channel of an image or number of a row."""
        width = self._channels(name, factor, shift)
        factor = _vector(name, factor, width, "factor", 1.0)
        shift = _vector(name, shift, width, "shift", 0.0)
        if self._order is not None:
            factor, shift = factor[self._order], shift[self._order]
        last = self._told[-1] if self._told else None
        if self._pending is not None:
            before = self._pending
            self._pending = before[0] * factor, before[1] * factor + shift
        elif isinstance(last, _Affine) and last.activation == Identity():
            last.scale(factor, shift)
        else:
            self._pending = factor, shift

    def activate(self, name: str, activation: Activation) -> None:
        """Apply one of this package's activations, none of which ever falls."""
        if activation != Identity():
            self._told[self._joined(name)].activation = activation  # type: ignore[union-attr]

    def clip(self, name: str, least: float | None, most: float | None) -> None:
        """Take numbers below `least` for that, and numbers above `most` for that; None is no bound."""
        if least is None and most is None:
            return
        if least is None:
            self.scale(name, -1.0, most)
            self.activate(name, ReLU())
            self.scale(name, -1.0, most)
            return
        if most is not None and most <= least:
            raise InputError(f"{name}: numbers cannot be kept between {least:g} and {most:g}")
        try:
            activation = ReLU(None if most is None else most - least)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        if least:
            self.scale(name, 1.0, -least)
        self.activate(name, activation)
        if least:
            self.scale(name, 1.0, least)

    def leak(self, name: str, slope: Any) -> None:
        """Multiply what is below zero: by one number, or by one for each channel. That takes each output twice."""
        one = np.ndim(slope) == 0  # for all, so that it does not matter how they are arranged
        rises = bool((np.asarray(slope) >= 0).all())
        place = self._joined(name, (*((Flatten,) if one else ()), *((MaxPool2d,) if rises else ())))
        affine = self._told[place]
        assert isinstance(affine, _Affine), "an activation can join it"
        outputs = affine.bias.size
        slopes = _vector(name, slope, outputs, "slope", 0.0)
        if not one and self._order is not None:
            slopes = slopes[self._order]
        affine.double()
        affine.activation = ReLU()
        pairs = np.stack([np.ones(outputs), -slopes], axis=1)
        if affine.windows is None:
            weights: Any = csc_array((pairs.ravel(), np.arange(2 * outputs), np.arange(0, 2 * outputs + 1, 2)))
            joined = _Affine(name, weights, np.zeros(outputs), Identity())
        else:
            joined = _Affine(name, pairs[:, :, None, None], np.zeros(outputs), Identity(), {"groups": outputs})
        self._told.insert(place + 1, joined)

    def pool(self, name: str, layer: Pool2d) -> None:
        """Add a layer that pools."""
        self.image(name)
        if self._pending is not None:
            average = isinstance(layer, AvgPool2d) and not any(layer.steps[2])
            if not average and not (isinstance(layer, MaxPool2d) and (self._pending[0] > 0).all()):
                self._settle(name)
        self._told.append(layer)
        self._follow(name, layer)

    def flatten(self, channels_last: bool = False) -> None:
        """Make rows of images, which another program may hold with the channels last."""
        if self.shape is None or len(self.shape) == 1:
            return
        channels, height, width = self.shape
        pixels = height * width
        untouched = not self._told
        if self._pending is not None:
            spread = np.tile if untouched and channels_last else np.repeat
            self._pending = spread(self._pending[0], pixels), spread(self._pending[1], pixels)
        if untouched:  # rows as they are given
            self._image = None
        else:
            self._told.append(Flatten())
            if channels_last and channels > 1 and pixels > 1:
                self._order = np.arange(pixels * channels).reshape(pixels, channels).T.ravel()
        self.shape = (channels * pixels,)

    def softmax(self, name: str) -> None:
        """Make shares of one of a row's numbers."""
        if self.shape is not None and len(self.shape) == 3:
            raise ShapeError(
                f"{name}: takes the softmax of images of shape {self.shape}; only that of rows is known here"
            )
        self._settle(name)
        self._told.append(Softmax())

    def become(self, name: str, shape: tuple[int, ...]) -> None:
        """Take rows for images of a shape, before any layer."""
        if self._told or self._pending is not None or (self.shape is not None and prod(self.shape) != prod(shape)):
            raise ShapeError(
                f"{name}: makes {shape} of {self.shape} between layers; only inputs can be taken for images"
            )
        self.shape = self._image = shape

    def expect(self, name: str, inputs: int) -> None:
        """Refuse rows that are not of so many numbers, and images."""
        if self.shape is not None and self.shape != (inputs,):
            flat = f"; a flattening between them makes {prod(self.shape)}" if len(self.shape) == 3 else ""
            raise ShapeError(f"{name}: takes rows of {inputs}, but is given {' × '.join(map(str, self.shape))}{flat}")

    def image(self, name: str) -> Image:
        """Return the shape of the images that there now are."""
        if self.shape is None:
            raise ShapeError(f"{name}: takes images, and nothing says of which shape: {self._hint}")
        if len(self.shape) != 3:
            raise ShapeError(f"{name}: takes images, but is given rows of {self.shape[0]}: {self._hint}")
        return self.shape

    def network(self) -> Network:
        """Return the network of all layers."""
        self._settle("the end of the model")
        if self._order is not None:
            order, self._order = self._order, None
            self._told.append(_Affine("the order of outputs", _permutation(order), np.zeros(order.size), Identity()))
        if not self._told:
            raise InputError("the model holds no layer that computes anything")
        layers = [each.layer(self._sparse_below) if isinstance(each, _Affine) else each for each in self._told]
        image = self._image if self._image is not None and len(self._image) == 3 else None
        return Network(tuple(layers), image)

    def _joined(self, name: str, past: tuple[type, ...] = (Flatten, MaxPool2d)) -> int:
        """Return the place of the layer that an activation joins; one is made where there is none.

        What rises with its argument, such as every activation here, may as well come before the largest of a window is
        taken: `past` are the layers that it may come before.
        """
        if self._pending is None:
            for place in range(len(self._told) - 1, -1, -1):
                before = self._told[place]
                if isinstance(before, _Affine) and before.activation == Identity():
                    return place
                if not isinstance(before, past):
                    break
            width = self._channels(name)
            self._pending = np.ones(width), np.zeros(width)
        self._settle(name)
        return len(self._told) - 1

    def _settle(self, name: str) -> None:
        """Make a layer of the scaling that waits for one."""
        if self._pending is None:
            return
        (factor, shift), self._pending = self._pending, None
        if self.shape is not None and len(self.shape) == 3:
            made = _Affine(name, factor[:, None, None, None], shift, Identity(), {"groups": factor.size})
        else:
            made = _Affine(name, diags_array(factor).tocsc(), shift, Identity())
        self._told.append(made)

    def _channels(self, name: str, *given: Any) -> int:
        """Return how many channels images have, or numbers rows."""
        if self.shape is None:
            widths = [np.size(each) for each in given if np.ndim(each) == 1]
            if not widths:
                raise ShapeError(f"{name}: nothing says how many numbers a row has: {self._hint}")
            self.shape = (widths[0],)
        return self.shape[0]

    def _follow(self, name: str, layer: Layer) -> None:
        """Have the shape become what a layer makes of it."""
        try:
            self.shape = layer.output_shape((1, *self.image(name)))[1:]
        except ShapeError as error:
            raise ShapeError(f"{name}: {error}") from error


def _vector(name: str, given: Any, width: int, what: str, otherwise: float) -> Array:
    """Return one number for each channel or output, as float64, or as float32 where they come so."""
    array = np.asarray(otherwise if given is None else given)
    if array.dtype != np.float32:
        array = array.astype(np.float64)
    if array.ndim and array.shape != (width,):
        raise ShapeError(f"{name}: the {what} has shape {array.shape}; {width} numbers are needed")
    return np.broadcast_to(array, (width,))


def _centred(
    weights: Array, dilation: tuple[int, int], padding: Sides
) -> tuple[Array, tuple[int, int], tuple[int, int]]:
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


def _permutation(order: Array) -> Any:
    """Return the matrix that puts our numbers into their order."""
    return csc_array((np.ones(order.size), (np.arange(order.size), order)), shape=(order.size, order.size))
