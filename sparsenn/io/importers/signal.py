"""What goes through another program's model: the layers that give it, and how its numbers lie in their rows.

Other programs' scalings, biases and activations are layers of their own; here they become part of the layer before or
after them, where that computes the same to rounding, and a layer otherwise. Every importer makes networks this way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from scipy.sparse import csc_array, eye_array, issparse

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array, InputLayout
from sparsenn.formats.named_shapes import NamedShapes
from sparsenn.io.importers.affine import (
    Affine,
    Convolution,
    PositionProduct,
    Product,
    Scaling,
    by_channel,
    check_finite,
)
from sparsenn.io.importers.nodes import Node, Source, activated, network_nodes
from sparsenn.layers import (
    Activation,
    AvgPool2d,
    Flatten,
    Identity,
    MaxPool2d,
    Pool2d,
    ReLU,
    Slice,
    Softmax,
    SoftmaxLayer,
)
from sparsenn.layers.activation import LeakyReLU
from sparsenn.layers.sparse_or_dense import SPARSE_BELOW
from sparsenn.network import Image, Layer, Network

_UNKNOWN = (0,)
"""The shape of rows before any layer fixes their width."""

FAR = 1024.0
"""How far from zero, in units of its scale, an input may be centred without a layer that moves it there."""


@dataclass(frozen=True, eq=False)
class Signal:
    """A tensor that depends on the network's input. What is done to it gives another one.

    Methods raise `ShapeError` where what they are given does not fit, and `InputError` where it cannot be computed.

    shape : of one row of the tensor: without the axis of rows.
    axis : where the axis of rows is in the tensor; None where the whole tensor is one row.
    rows : how many rows the model fixes; None where it leaves that open.
    node : the last layer before it; None for the network's input, a `Slice` for one of several.
    pending : what is done after them, and becomes a layer later.
    entering : the scaling of the network's input before all else: it says what numbers the input holds.
    lies : the shape of a row as layers have it, what is pending included: (channels, height, width) or (width,); None
        where there is no layer yet that says so.
    image : the image that the network takes; None where it takes rows of features, or where no layer yet says so.
    order : for each number of the tensor's row, first axis slowest, its place in a row as the layers have it; None
        where that is the same.
    integers : whether it holds integers, which only a cast makes numbers to compute with.
    sparse_below : as of `fully_connected`.
    most_weights : of a fully connected layer that stands for a convolution, where numbers lie in another order than an
        image's, or may be no image: with more, they are moved first.
    hint : what messages say of the shape that is needed.
    layout : how the model holds one input, where that is not a row.
    """

    shape: tuple[int, ...]
    axis: int | None = 0
    rows: int | None = None
    node: Source = None
    pending: Affine = field(default_factory=Scaling)
    entering: Scaling = field(default_factory=Scaling)
    lies: tuple[int, ...] | None = None
    image: Image | None = None
    order: Array | None = None
    integers: bool = False
    sparse_below: float = SPARSE_BELOW
    most_weights: int = 1 << 22
    hint: str = "one of (rows, channels, width) or with a height, too, is needed"
    layout: InputLayout | None = None
    before_activation: tuple[Signal, Activation] | None = field(init=False, default=None)  # of what `activated` makes

    @property
    def width(self) -> int:
        """Numbers of a row; 0 while unknown."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Axes of the tensor."""
        return len(self.shape) + (self.axis is not None)

    @property
    def idle(self) -> bool:
        """Whether nothing is pending that changes it."""
        return isinstance(self.pending, Scaling) and self.pending.idle

    @property
    def is_image(self) -> bool:
        """Whether its rows are channels, height and width, or may be taken for such, for its layers, too."""
        if self.axis != 0 or len(self.shape) not in (2, 3):
            return False
        return self.order is None and self.lies in (None, self.picture)

    def full(self, rows: Any) -> tuple[Any, ...]:
        """Return the tensor's shape, with `rows` for the number of rows."""
        return self.shape if self.axis is None else (*self.shape[: self.axis], rows, *self.shape[self.axis :])

    # ---- Affine maps ------------------------------------------------------------------------------------------------

    def times(self, numbers: float | Array) -> Signal:
        """Return the product with numbers, of a shape that is broadcast to the row's."""
        signal, factor = self._ready_for(numbers)
        return self if np.all(factor == 1) else signal._with_pending(signal.pending.times(factor))

    def plus(self, numbers: float | Array) -> Signal:
        """Return the sum with numbers, of a shape that is broadcast to the row's."""
        signal, addend = self._ready_for(numbers)
        return signal._with_pending(signal.pending.plus(addend)) if np.any(addend) else self

    def _with_pending(self, pending: Affine) -> Signal:
        entering = pending if self.node is None and isinstance(pending, Scaling) else self.entering
        return replace(self, pending=pending, entering=entering)

    def scaled(self, factor: Any, shift: Any) -> Signal:
        """Return the product with a factor plus a shift: one for all, or one for each channel or number of a row."""
        width = next((np.size(each) for each in (factor, shift) if np.ndim(each) == 1), None)
        signal = self if width is None else self._of_width(width)
        return signal.times(signal.for_channels("factor", factor)).plus(signal.for_channels("shift", shift))

    def product(self, weights: Any, shape: tuple[int, ...]) -> Signal:
        """Return the product of a row with weights, as a tensor whose rows have `shape`.

        `weights`: a matrix of shape (inputs, outputs), dense or one of SciPy's; its inputs are in the tensor's order.
        """
        check_finite(weights)
        if self.order is not None:
            np.put(places := np.empty(self.order.size, np.int64), self.order, np.arange(self.order.size))
            weights = (weights.tocsr() if issparse(weights) else weights)[places]
        before = self.centred() if isinstance(self.pending, Scaling) else self.flushed()
        assert isinstance(before.pending, Scaling), "layers leave no other"
        made = Product(weights).after(before.pending)
        return replace(before.flat(), shape=shape, pending=made, lies=(weights.shape[1],), order=None)

    def centred(self) -> Signal:
        """Return an input that is far from zero with a layer that moves it there, so that no large shift is rounded."""
        scaling = self.pending
        if not isinstance(scaling, Scaling) or self.node is not None or self.order is not None or len(self.shape) != 1:
            return self
        if np.max(np.abs(scaling.shift)) <= FAR or not np.all(scaling.scale):
            return self
        centre = np.float64(np.float32(-scaling.shift / scaling.scale))
        moved = replace(self, pending=Scaling(1.0, np.broadcast_to(-centre, self.shape))).flushed()
        return replace(moved, pending=Scaling(scaling.scale, scaling.shift + centre * scaling.scale))

    def connected(self, weights: Any, bias: Any = None) -> Signal:
        """Return what a fully connected layer makes of rows of features."""
        if len(weights.shape) != 2 or 0 in weights.shape:
            raise ShapeError(f"the weights have shape {tuple(weights.shape)}; (inputs, outputs) are needed")
        inputs, outputs = weights.shape
        signal = self._of_width(inputs)
        if signal.shape != (inputs,):
            flat = f"; a flattening between them makes {self.width}" if len(self.shape) > 1 else ""
            raise ShapeError(f"takes rows of {inputs}, but is given {' × '.join(map(str, self.shape))}{flat}")
        made = signal.product(csc_array(weights) if issparse(weights) else weights, (outputs,))
        return made if bias is None else made.plus(made.for_channels("bias", bias))

    # ---- What is not affine -----------------------------------------------------------------------------------------

    def activated(self, activation: Activation) -> Signal:
        """Apply an activation of this package."""
        if activation == Identity():
            return self
        made = self.flushed(activation)
        object.__setattr__(made, "before_activation", (self, activation))
        return made

    def clipped(self, least: float | None, most: float | None) -> Signal:
        """Return it with numbers below `least` taken for that, and those above `most` for that; None is no bound."""
        if least is None:
            return self if most is None else self.times(-1.0).plus(most).flushed(ReLU()).times(-1.0).plus(most)
        if most is not None and not least < most:
            raise InputError(f"numbers cannot be clipped between {least:g} and {most:g}")
        return self.plus(-least).flushed(ReLU(None if most is None else most - least)).plus(least)

    def leaked(self, slope: Any) -> Signal:
        """Return it with what is below zero multiplied, by one number or one for each channel.

        An activation has one slope; several slopes are two layers.
        """
        if np.size(slope) == 1:
            (alpha,) = np.ravel(slope)
            return self.activated(LeakyReLU(float(alpha)) if alpha else ReLU())
        signal = self._of_width(np.size(slope))
        signal = signal.flushed() if isinstance(signal.pending, PositionProduct) else signal
        signal, slopes = signal._ready_for(signal.for_channels("slope", slope))
        by_number = slopes.ndim and len(signal.lies or ()) == 3 and isinstance(signal.pending, Scaling)
        if by_number and by_channel(slopes, signal.pixels) is None:
            signal = signal.flat()
        signal = signal._affine()
        if isinstance(signal.pending, Convolution) and slopes.size > signal.pixels[0]:
            slopes = by_channel(slopes, signal.pixels)
        assert not isinstance(signal.pending, Scaling | PositionProduct), "it is another affine map"
        twice, taken = signal.pending.doubled(slopes)
        return replace(signal.then(twice.layer(ReLU(), self.sparse_below)), pending=taken)

    def pooled(self, layer: Pool2d) -> Signal:
        """Return what a layer that pools makes of images. Scalings come after it where that is the same."""
        signal = self.images()
        image = layer.output_shape((1, *signal.pixels))[1:]
        later = None
        if isinstance(signal.pending, Scaling):
            later = signal.pending.pooled(signal.pixels, image)
            means = isinstance(layer, AvgPool2d) and not (layer.counts_padding and layer.is_padded)
            if not (signal.idle or means or (isinstance(layer, MaxPool2d) and np.all(signal.pending.scale > 0))):
                later = None
        signal = (signal.flushed() if later is None else signal).images().then(layer)
        return replace(signal, pending=Scaling() if later is None else later).as_image(image)

    def flattened(self, channels_last: bool = False) -> Signal:
        """Return rows of images, which another program may hold with the channels last."""
        if self.shape == _UNKNOWN and self.layout is None:
            return replace(self, layout=InputLayout(flattens=True))
        if len(self.shape) == 1:
            return self
        if not channels_last:
            return replace(self, shape=(self.width,))
        order = np.arange(self.width).reshape(self.shape[0], -1).T.ravel()
        if (order == np.arange(order.size)).all():
            return replace(self, shape=(self.width,))
        is_input = self.node is None and self.lies is None and self.order is None
        if is_input and isinstance(self.pending, Scaling):  # rows as a caller has them
            return replace(self, shape=(self.width,), pending=self.pending.moved(order), layout=_in_order(self.layout))
        order = order if self.order is None else self.order[order]
        moved = None if (order == np.arange(order.size)).all() else order
        return replace(self, shape=(self.width,), order=moved)

    def softmax(self, layer: SoftmaxLayer | None = None) -> Signal:
        """Return shares of one of a row's numbers; or what `LogSoftmax` makes of them, if that is the layer."""
        if len(self.shape) > 1:
            raise ShapeError(f"takes the softmax of images of shape {self.shape}; only that of rows is supported")
        return self.settled().then(layer or Softmax())

    def become(self, shape: tuple[int, ...]) -> Signal:
        """Return rows taken for images of a shape, before any layer; after layers, for images of one pixel."""
        if (self.lies and prod(shape[1:]) > 1) or self.width not in (0, prod(shape)):
            raise ShapeError(f"makes {shape} of {self.shape} between layers; only inputs can become larger images")
        return replace(self, shape=shape, layout=self.layout if self.lies else _in_order(self.layout))

    # ---- Layers -----------------------------------------------------------------------------------------------------

    def flat(self) -> Signal:
        """Return it with rows of features, not images, after its layers; at most a scaling may be pending."""
        if self.lies is None or len(self.lies) == 1:
            return replace(self, lies=(self.width,))
        return replace(self, node=Node(Flatten(), (self.node,)), lies=(self.width,))

    def flushed(self, activation: Activation | None = None) -> Signal:
        """Return it with what was pending, and an activation, in its layers."""
        if activation is None or activation == Identity():
            return self if self.idle else self._flushed
        node = activated(self.node, activation) if self.idle else None
        return self._with_layer(activation) if node is None else replace(self, node=node)

    @cached_property
    def _flushed(self) -> Signal:
        """This signal with the pending affine map made a layer; cached so that branches share it."""
        return self._with_layer(Identity())

    def _with_layer(self, activation: Activation) -> Signal:
        signal = self._affine()
        assert not isinstance(signal.pending, Scaling), "it is affine"
        return signal.then(signal.pending.layer(activation, self.sparse_below))

    def then(self, layer: Layer) -> Signal:
        """Return it with a layer in the place of what was pending."""
        return replace(self, node=Node(layer, (self.node,)), pending=Scaling())

    def settled(self) -> Signal:
        """Return it with nothing pending and at least one layer, which may be one that changes nothing."""
        signal = self.flushed()
        return signal if signal.node else signal._with_layer(Identity())

    @property
    def channels(self) -> Array | None:
        """For each channel of images the one that layers have in its place; None where pixels are in another order."""
        channels, *pixels = self.picture
        size = prod(pixels)
        if self.order is None:
            return np.arange(channels)
        first = self.order[::size]
        is_whole = np.array_equal(self.order, (first[:, None] + np.arange(size)).ravel()) and not np.any(first % size)
        return first // size if is_whole else None

    @property
    def picture(self) -> Image:
        """Channels, height and width that its axes say, if its numbers are images; 1-D ones have height 1."""
        if self.shape == _UNKNOWN:
            raise ShapeError(f"takes images, but their shape is not given: {self.hint}")
        shape = self.shape if self.axis == 0 else self.shape[1:]
        if not (self.axis == 0 or (self.axis is None and self.shape[:1] == (1,))) or len(shape) not in (2, 3):
            raise ShapeError(f"takes images, but is given {self}: {self.hint}")
        return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, shape[1])

    @property
    def pixels(self) -> Image:
        """Channels, height and width of images as layers have them."""
        assert self.lies is not None
        channels, height, width = self.lies
        return channels, height, width

    @property
    def is_scattered(self) -> bool:
        """Whether its layers hold rows of features, or another image, or pixels in another order."""
        if self.lies is None:
            return self.order is not None
        return self.lies != self.picture or self.channels is None

    def images(self) -> Signal:
        """Return it as images, whose rows are channels, height and width for its layers, too; 1-D ones have height 1.

        Numbers in another order than that are moved, whole channels by a convolution of single pixels.
        """
        image = self.picture
        signal = self if self.axis == 0 else replace(self, shape=self.shape[1:], axis=0)
        is_computed = signal.node is not None and not isinstance(signal.node.layer, Slice)  # which cuts several inputs
        if signal.is_scattered or (signal.lies is None and is_computed):
            signal = replace(signal.in_order().settled().flat().then(Slice(0, signal.width, image)), lies=image)
        if signal.order is not None:
            channels = signal.channels
            assert channels is not None, "it is not scattered"
            moved = Convolution.of_channels(channels, channels.size)
            signal = replace(signal.flushed(), order=None, pending=moved)
        if signal.lies is None and signal.node is not None and isinstance(signal.node.layer, Slice):
            return replace(signal, node=Node(replace(signal.node.layer, image=image), signal.node.sources), lies=image)
        network_image = image if signal.lies is None else signal.image
        if (signal.lies, signal.image) == (image, network_image):
            return signal
        return replace(signal, lies=image, image=network_image)

    def in_order(self) -> Signal:
        """Return it with rows that its layers hold in the tensor's order, too."""
        if self.order is None:
            return self
        return self.product(eye_array(self.width, dtype=np.float32), self.shape).flushed()

    def network(self, named_inputs: NamedShapes | None = None, named_outputs: NamedShapes | None = None) -> Network:
        """Return the network of all layers, which gives rows in the tensor's order."""
        if self.node is None and self.idle and self.order is None:
            raise InputError("the model holds no layer that computes anything")
        signal = self.settled().in_order()
        if len(signal.shape) == 1:
            signal = signal.flat()
        nodes = network_nodes(signal.node)
        return Network(nodes, signal.image, False, signal.layout, named_inputs, named_outputs)

    def _affine(self) -> Signal:
        signal = self
        if not isinstance(signal.pending, Scaling):
            return signal
        if not signal.width:
            raise ShapeError(f"the number of inputs is not given: {self.hint}")
        if signal.lies is None and signal.axis == 0 and len(signal.shape) in (2, 3) and signal.order is None:
            signal = signal.images()
        assert isinstance(signal.pending, Scaling), "it is the same"
        if signal.lies is not None and len(signal.lies) == 3:
            convolution = signal.pending.as_convolution(signal.lies)
            if convolution is not None:
                return replace(signal, pending=convolution)
        return replace(signal.flat(), pending=signal.pending.as_product(self.width))

    def _of_width(self, width: int) -> Signal:
        return replace(self, shape=(width,)) if self.shape == _UNKNOWN else self

    def for_channels(self, what: str, values: Any) -> Any:
        """Return one number, or those for each channel in a shape that is broadcast to the row's."""
        numbers = np.asarray(values, np.float64)
        if numbers.ndim == 0:
            return numbers
        if numbers.shape != self.shape[:1]:
            raise ShapeError(f"the {what} has shape {numbers.shape}; {self.shape[0]} numbers are needed")
        return numbers.reshape(-1, *[1] * (len(self.shape) - 1))

    def _ready_for(self, values: float | Array) -> tuple[Signal, Any]:
        """Return the signal, and constants that are broadcast to the shape of the pending map."""
        numbers = np.asarray(values, np.float64)
        if not np.isfinite(numbers).all():
            raise InputError("it computes with a constant that holds NaN or infinity")
        if numbers.size == 1:
            return self, np.float64(numbers.reshape(-1)[0])
        flat = np.broadcast_to(numbers, self.shape).reshape(-1)
        if self.order is not None:
            placed = np.empty_like(flat)
            placed[self.order] = flat
            flat = placed
        alike = flat if self.lies is None else self.pending.by_output(flat, self.lies)
        return (self.flushed(), flat) if alike is None else (self, alike)

    def as_image(self, image: tuple[int, ...]) -> Signal:
        """Return it with rows that are now images of this shape, with one axis less where they had no height."""
        return replace(self, shape=image if len(self.shape) == 3 else (image[0], image[2]), lies=image)

    def __str__(self) -> str:
        return f"a tensor of shape ({', '.join(map(str, self.full('rows')))})"


def inputs(shape: tuple[int, ...] | None, hint: str, sparse_below: float = SPARSE_BELOW) -> Signal:
    """Return what a network takes.

    shape : of one input: (channels, height, width) of an image, (channels, length) of a sequence, which counts as an
        image of one line, or (numbers,) of a row; None where the first layer fixes it.
    hint : how a caller says the shape, for messages.
    sparse_below : as of `fully_connected`.
    """
    if shape is not None and (not 1 <= len(shape) <= 3 or min(shape) < 1):
        raise ShapeError(f"one input has the shape {shape}; take (numbers,) or (channels, height, width)")
    layout = InputLayout(tuple(shape)) if shape is not None and len(shape) > 1 else None
    return Signal(_UNKNOWN if shape is None else tuple(shape), sparse_below=sparse_below, hint=hint, layout=layout)


def _in_order(layout: InputLayout | None) -> InputLayout | None:
    return None if layout is None else replace(layout, channels_last=False)
