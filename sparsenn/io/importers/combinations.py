"""Signals of a model that become one: sums, products and concatenations, and several inputs and outputs.

Activations that programs write as several operations, such as x · sigmoid(x), are identified by their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from scipy.sparse import csc_array, hstack

from sparsenn.errors import InputError, prefix_errors
from sparsenn.formats import Array
from sparsenn.io.importers.affine import UNSCALED, Convolution, PositionProduct, Product, Scaling, check_finite
from sparsenn.io.importers.axes import transpose
from sparsenn.io.importers.nodes import Node
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Activation, CombiningLayer, Concatenate, Multiply, Slice
from sparsenn.layers.activation import ACTIVATIONS
from sparsenn.network import Network

POINTS = np.concatenate([np.linspace(-8, 8, 65), [-0.01, 0.01]])
"""Inputs at which operations and activations are compared."""

_LARGEST = 64
"""Index of the largest input; all activations are positive there."""

_NEAR = 1e-6
"""Tolerance for float32 constants of programs; the two kinds of GELU differ by 5e-4."""

_MOST_COPIES = 1 << 18
"""Weights that positions share, counted once for each, up to which they become part of a product of whole rows."""


def activation_of(values: Array) -> tuple[Activation, float] | None:
    """Return the activation that gives, times a factor, these values at `POINTS`; None where there is none.

    Of activations with a parameter, that with its default alone is found.
    """
    for activation in (kind() for kind in ACTIVATIONS if kind.is_curved):
        expected = activation(POINTS)
        factor = round(float(values[_LARGEST] / expected[_LARGEST]) * 8) / 8
        if factor and np.allclose(values, factor * expected, rtol=0, atol=_NEAR * abs(factor)):
            return activation, factor
    return None


def combined(signals: Sequence[Signal], layer: CombiningLayer) -> Signal:
    """Return the signal after a layer that combines several."""
    first = signals[0]
    for signal in signals:
        if signal.axis != first.axis:
            raise InputError(f"it combines {first} and {signal}, whose rows lie along other axes")
    shape = layer.combined_shape([signal.shape for signal in signals])
    signals = _inputs_as_images(signals)
    settled = [signal.flushed() for signal in signals]
    if isinstance(layer, Multiply):
        settled = [signal if signal.shape == shape else signal.images() for signal in settled]
    are_images = [signal.image is not None or len(signal.lies or ()) == 3 for signal in settled]
    if any(are_images) or all(signal.lies is None and signal.is_image for signal in settled):
        settled = [signal.images() if signal.lies is None and signal.is_image else signal for signal in settled]
    if not all(signal.is_image for signal in settled):
        settled = [signal.flat() for signal in settled]
        if all(signal.node is None for signal in settled):
            settled[0] = settled[0].settled()  # by which a network knows the width of its rows
    first = settled[0]
    if len({(signal.image, signal.layout) for signal in settled}) > 1:
        raise InputError("it combines images with rows of features made from the same inputs")
    orders = [np.arange(signal.width) if signal.order is None else signal.order for signal in settled]
    lies = layer.combined_shape([signal.lies for signal in settled if signal.lies])
    if isinstance(layer, Concatenate):
        starts = np.cumsum([0, *(each.size for each in orders[:-1])])
        order = np.concatenate([each + start for each, start in zip(orders, starts, strict=True)])
    else:
        order = max(orders, key=len)
        if not all(np.array_equal(each, order) for each in orders if each.size == order.size):
            raise InputError(f"it combines several of {first}, which hold their numbers in different orders")
    node = Node(layer, tuple(signal.node for signal in settled))
    same = np.array_equal(order, np.arange(order.size))
    return replace(first, shape=shape, lies=lies, node=node, pending=Scaling(), order=None if same else order)


def _inputs_as_images(signals: Sequence[Signal]) -> list[Signal]:
    """Return signals, with rows of a network's input as images where others take them for such."""
    taken = next((signal for signal in signals if signal.image is not None), None)
    if taken is None or taken.image is None:
        return list(signals)
    made = []
    for signal in signals:
        is_input = signal.node is None and signal.lies is None and signal.order is None
        if is_input and signal.layout == taken.layout and signal.width == prod(taken.image):
            signal = replace(signal, lies=taken.image, image=taken.image)
        made.append(signal)
    return made


def multiplied(signals: Sequence[Signal]) -> Signal:
    """Return the product of signals; that of one and its own gate, such as x · sigmoid(x), is an activation.

    Errors are those of `combined`.
    """
    if len(signals) == 2:
        for source, gate in (signals, signals[::-1]):
            values = _values_at_points(gate, source)
            found = None if values is None or gate is source else activation_of(POINTS * values)
            if found is not None:
                activation, factor = found
                return source.activated(activation).times(factor)
    return combined(signals, Multiply())


def _values_at_points(signal: Signal, source: Signal) -> Array | None:
    """Return what a signal is where another is `POINTS`; None where it is not that after activations alone."""
    if all(getattr(signal, name) is getattr(source, name) for name in ("node", "pending", "order")):
        return POINTS if signal.shape == source.shape else None
    if signal.before_activation is None:
        return None
    before, activation = signal.before_activation
    values = _values_at_points(before, source)
    return None if values is None else activation(values)


def concatenated(signals: Sequence[Signal], axis: int | None = None) -> Signal:
    """Return several signals side by side: one product, where all are affine in the same rows, or else a layer.

    `axis`: of the tensors, counted from the first one or from the last; None for features and channels.
    """
    first = signals[0]
    if axis is not None:
        axes = _with_first(first, axis)
        for signal in signals:
            if (signal.rank, signal.axis) != (first.rank, first.axis):
                raise InputError(
                    f"it concatenates {first} and {signal}, whose rows lie along other axes, or which have more"
                )
        if axes != list(range(first.rank)):
            moved = concatenated([transpose(each, axes) for each in signals])
            return transpose(moved, np.argsort(axes).tolist())
    products = products_of(signals)
    if products is None:
        return combined(signals, Concatenate())
    weights = hstack([csc_array(part.weights) for part in products], format="csc")
    bias = np.concatenate([np.broadcast_to(part.bias, (part.weights.shape[1],)) for part in products])
    return with_product(first, Product(weights, bias))


def _with_first(signal: Signal, axis: int) -> list[int]:
    """Return the axes of a tensor with one of them before all others but that of rows, which stays where it is."""
    if not -signal.rank <= axis < signal.rank or axis % signal.rank == signal.axis:
        raise InputError(f"it takes {signal} and others, and concatenates them along axis {axis}, of rows or not there")
    axes = [each for each in range(signal.rank) if each not in (axis % signal.rank, signal.axis)]
    axes.insert(0, axis % signal.rank)
    if signal.axis is not None:
        axes.insert(signal.axis, signal.axis)
    return axes


def products_of(signals: Sequence[Signal]) -> list[Product] | None:
    """Return what is pending in each as products of the same rows; None for those of several layers, and images."""
    first, products = signals[0], []
    for signal in signals:
        flat = len(signal.shape) == 1 and len(signal.lies or (0,)) == 1
        alike = signal.node is first.node and (signal.axis, signal.layout) == (first.axis, first.layout)
        if not (alike and flat) or signal.order is not None:
            return None
        pending = signal.pending
        if isinstance(pending, Convolution) or (isinstance(pending, PositionProduct) and pending.edges > _MOST_COPIES):
            return None
        if isinstance(pending, PositionProduct):
            pending = pending.as_product()
        products.append(pending.as_product(signal.width) if isinstance(pending, Scaling) else pending)
    return products


def with_product(signal: Signal, product: Product) -> Signal:
    """Return a product in the place of what was pending."""
    width = product.weights.shape[1]
    return replace(signal, shape=(width,), pending=product, lies=(width,), order=None)


def product_per_position(signal: Signal, weights: Any) -> Signal:
    """Return the product along the last axis of rows, whose numbers the signal's layers hold in its order.

    `weights`: a matrix of shape (length of the axis, outputs), dense or one of SciPy's.
    """
    check_finite(weights)
    positions, shape = prod(signal.shape[:-1]), (*signal.shape[:-1], weights.shape[1])
    scaling = signal.pending.at_each(positions) if isinstance(signal.pending, Scaling) else None
    if scaling is None:
        whole = PositionProduct(Product(weights), positions)
        if isinstance(signal.pending, Scaling) and whole.edges <= _MOST_COPIES:
            return signal.product(whole.as_product().weights, shape)
        signal, scaling = signal.flushed(), UNSCALED
    return replace(
        signal, shape=shape, pending=PositionProduct(Product(weights).after(scaling), positions), lies=(prod(shape),)
    )


def slices_of_inputs(inputs: Mapping[str, Signal]) -> dict[str, Signal]:
    """Return several inputs as slices of the one row that a network takes; a single one as it is."""
    if len(inputs) == 1:
        return dict(inputs)
    first, slices = 0, {}
    for name, signal in inputs.items():
        layer = Slice(first, first + signal.width)
        slices[name] = replace(signal, node=Node(layer, (None,)), layout=None)
        first += signal.width
    return slices


def network_between(inputs: Mapping[str, Signal], outputs: Mapping[str, Signal]) -> tuple[Network, Scaling]:
    """Return the network of inputs and outputs, with the names of several, and how it scales a single input."""
    several = len(outputs) > 1
    signal = next(iter(outputs.values()))
    if several:
        with prefix_errors("its outputs side by side"):
            signal = concatenated([replace(each, shape=(each.width,), axis=0) for each in outputs.values()])
    if not signal.width:
        raise InputError("its output has no numbers")
    network = signal.settled().network(
        named_inputs={name: each.shape for name, each in inputs.items()} if len(inputs) > 1 else None,
        named_outputs={name: each.shape for name, each in outputs.items()} if several else None,
    )
    return network, signal.entering
