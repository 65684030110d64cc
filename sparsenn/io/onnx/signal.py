"""A tensor that depends on the graph's input: the layers that give it, and how its axes lie in their rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from scipy.sparse import csc_array, hstack, issparse

from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.onnx.pending import Convolution, Pending, Product, Scaling, by_channel
from sparsenn.layers import Activation, Conv2d, Flatten, Identity, Linear, MaxPool2d, SparseLinear
from sparsenn.network import Image, Layer

__all__ = ["Classes", "Signal"]


@dataclass(frozen=True, eq=False)
class Signal:
    """A tensor that depends on the input.

    Parameters
    ----------
    shape : of one row of the tensor: without the axis of rows.
    axis : where the axis of rows is in the tensor; None where the whole tensor is one row.
    rows : how many rows the graph fixes; None where it leaves that open.
    layers : those before it.
    pending : what is done after them, and becomes a layer later.
    lies : the shape of a row as layers have it, what is pending included: (channels, height, width) or (width,); None
        where there is no layer yet that says so.
    image : the image that the network takes; None where it takes rows of features, or where no layer yet says so.
    order : for each number of the tensor's row, first axis slowest, its place in a row as the layers have it; None
        where that is the same.
    integers : whether it holds integers, which only a cast makes numbers to compute with.
    """

    shape: tuple[int, ...]
    axis: int | None
    rows: int | None = None
    layers: tuple[Layer, ...] = ()
    pending: Pending = field(default_factory=Scaling)
    lies: tuple[int, ...] | None = None
    image: Image | None = None
    order: Array | None = None
    integers: bool = False

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Axes of the tensor."""
        return len(self.shape) + (self.axis is not None)

    def full(self, rows: Any) -> tuple[Any, ...]:
        """Return the tensor's shape, with `rows` for the number of rows."""
        return self.shape if self.axis is None else (*self.shape[: self.axis], rows, *self.shape[self.axis :])

    def times(self, numbers: float | Array) -> Signal:
        """Return the product with numbers, of a shape that is broadcast to the row's."""
        signal, factor = self._ready_for(numbers)
        return replace(signal, pending=signal.pending.times(factor))

    def plus(self, numbers: float | Array) -> Signal:
        """Return the sum with numbers, of a shape that is broadcast to the row's."""
        signal, addend = self._ready_for(numbers)
        return replace(signal, pending=signal.pending.plus(addend))

    def product(self, weights: Any, shape: tuple[int, ...]) -> Signal:
        """Return the product of a row with weights, as a tensor whose rows have `shape`.

        Parameters
        ----------
        weights : a matrix of shape (inputs, outputs), dense or one of SciPy's; its inputs are in the tensor's order.
        """
        if self.order is not None:
            weights = (weights.tocsr() if issparse(weights) else weights)[np.argsort(self.order)]
        before = self if isinstance(self.pending, Scaling) else self.flushed()
        made = Product(weights)
        if isinstance(before.pending, Scaling):
            made = made.after(before.pending)
        return replace(before.flat(), shape=shape, pending=made, lies=(weights.shape[1],), order=None)

    def flat(self) -> Signal:
        """Return it with rows of features, not images, after its layers; at most a scaling may be pending."""
        if self.lies is None or len(self.lies) == 1:
            return replace(self, lies=(self.width,))
        return replace(self, layers=(*self.layers, Flatten()), lies=(self.width,))

    def flushed(self, activation: Activation | None = None) -> Signal:
        """Return it with what was pending, and an activation, in its layers."""
        function = Identity() if activation is None else activation
        if not isinstance(self.pending, Scaling):
            return self.then(self.pending.layer(function))
        if self.pending.idle:
            if function == Identity():
                return self
            layers = _activated(self.layers, function)
            if layers is not None:
                return replace(self, layers=layers)
        return self._scaled(self.pending, function)

    def then(self, layer: Layer) -> Signal:
        """Return it with a layer in the place of what was pending."""
        return replace(self, layers=(*self.layers, layer), pending=Scaling())

    def images(self) -> Signal:
        """Return it as images, whose rows are channels, height and width for its layers, too; 1-D ones have height 1.

        Raises
        ------
        InputError
            It is none: its axes are others, or in another order, or it was made of rows of features.
        """
        signal = self
        if signal.axis is None and len(signal.shape) in (3, 4) and signal.shape[0] == 1:
            signal = replace(signal, shape=signal.shape[1:], axis=0)
        if signal.axis != 0 or len(signal.shape) not in (2, 3):
            raise InputError(f"it takes {self}; one of (rows, channels, width) or with a height, too, is needed")
        if signal.order is not None:
            raise InputError(
                "it takes images whose channels are not the first axis of the rows that the network takes; export with "
                "channels first (tf2onnx: --inputs-as-nchw)"
            )
        image = signal.shape if len(signal.shape) == 3 else (signal.shape[0], 1, signal.shape[1])
        if signal.lies not in (None, image):
            raise InputError("it takes images made of rows of features; that needs a layer that unflattens")
        network_image = (image[0], image[1], image[2]) if signal.lies is None else signal.image
        return replace(signal, lies=image, image=network_image)

    def beside(self, others: list[Signal]) -> Signal:
        """Return what is affine in the outputs of the same layers, side by side, as one product.

        Raises
        ------
        InputError
            They come from several layers, or are images.
        """
        products = self._products(others)
        weights = hstack([csc_array(part.weights) for part in products], format="csc")
        bias = np.concatenate([np.broadcast_to(part.bias, (part.weights.shape[1],)) for part in products])
        return self._joined(Product(weights, bias))

    def summed(self, other: Signal) -> Signal:
        """Return the sum of what is affine in the outputs of the same layers, as one product.

        Raises
        ------
        InputError
            They come from several layers, or are images.
        """
        one, two = self._products([other])
        if one.weights.shape != two.weights.shape:
            raise InputError("it adds tensors of two widths")
        return self._joined(Product(csc_array(one.weights) + csc_array(two.weights), one.bias + two.bias))

    def finished(self) -> Signal:
        """Return it with all in its layers, at least one, and its rows in the tensor's order."""
        signal = self.flushed()
        if signal.order is None and signal.layers:
            return signal
        places = np.arange(signal.width) if signal.order is None else signal.order
        ones = csc_array((np.ones(places.size, np.float32), (places, np.arange(places.size))))
        return replace(signal, order=None).product(ones, signal.shape).flushed()

    def _ready_for(self, given: float | Array) -> tuple[Signal, Any]:
        """Return it ready to be scaled by numbers, and these as what is pending takes them."""
        numbers = np.asarray(given, np.float64)
        if numbers.size == 1:
            return self, np.float64(numbers.reshape(-1)[0])
        flat = np.broadcast_to(numbers, self.shape).reshape(-1)
        if self.order is not None:
            placed = np.empty_like(flat)
            placed[self.order] = flat
            flat = placed
        if not isinstance(self.pending, Convolution) or self.lies is None:
            return self, flat
        channels = by_channel(flat, self.lies)
        return (self.flushed(), flat) if channels is None else (self, channels)

    def _scaled(self, scaling: Scaling, activation: Activation) -> Signal:
        """Return it with a scaling as a layer of its own."""
        signal = self
        if self.lies is None and self.axis == 0 and len(self.shape) == 3 and self.order is None:
            signal = self.images()
        if signal.lies is not None and len(signal.lies) == 3:
            convolution = scaling.as_convolution(signal.lies)
            if convolution is not None:
                return signal.then(convolution.layer(activation))
        return self.flat().then(scaling.as_product(self.width).layer(activation))

    def _products(self, others: list[Signal]) -> list[Product]:
        """Return what is pending in each as products of the same rows."""
        products = []
        for signal in (self, *others):
            if signal.layers is not self.layers:
                raise InputError(
                    "it joins what several layers give; a network here is a chain, so residual sums and "
                    "concatenations would need layers that keep what others gave"
                )
            if signal.order is not None or len(signal.lies or (0,)) > 1 or isinstance(signal.pending, Convolution):
                raise InputError("it joins images, or axes in several orders; rows of features are needed")
            pending = signal.pending
            products.append(pending.as_product(signal.width) if isinstance(pending, Scaling) else pending)
        return products

    def _joined(self, product: Product) -> Signal:
        width = product.weights.shape[1]
        return replace(self, shape=(width,), pending=product, lies=(width,), order=None)

    def __str__(self) -> str:
        return f"a tensor of shape ({', '.join(map(str, self.full('rows')))})"


@dataclass(frozen=True)
class Classes:
    """The number of the class of each row, or its label: the largest of a signal's numbers."""

    scores: Signal


def _activated(layers: tuple[Layer, ...], activation: Activation) -> tuple[Layer, ...] | None:
    """Return layers with an activation in the last that has none, before poolings that may as well come after it.

    The largest number of a window stays so under activations that do not fall. None where there is no such layer.
    """
    last = len(layers) - 1
    while last >= 0 and isinstance(layers[last], MaxPool2d | Flatten):
        last -= 1
    layer = layers[last] if last >= 0 else None
    if not isinstance(layer, Conv2d | Linear | SparseLinear) or layer.activation != Identity():
        return None
    return (*layers[:last], replace(layer, activation=activation), *layers[last + 1 :])
