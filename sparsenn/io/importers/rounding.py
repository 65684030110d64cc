"""Imported networks that float32 does not suffice for: the rounding is measured on a few rows, and reported."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from sparsenn.backends.launching import combine_rows
from sparsenn.backends.oracle.images import forward_images
from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.io.importers.affine import UNSCALED, Scaling
from sparsenn.layers import (
    CombiningLayer,
    Conv2d,
    ForeignLayer,
    FullyConnected,
    Identity,
    ImageLayer,
    PerPosition,
    SparseLinear,
)
from sparsenn.network import Network

MOST = 1e-3
"""Of the largest output: what float32 may round without a warning."""

_QUANTISING = {"DynamicQuantizeLinear", "QuantizeLinear"}  # operators of ONNX that round to steps
ROWS = 8  # that are computed

MOST_WORK = 1 << 25
"""Multiply-adds, of all rows, that are spent on a network: at most some tenths of a second. Larger ones take fewer
rows, and those of which a single row takes more are not looked at."""

UNIT = 2.0**-24  # the unit roundoff of float32


class RoundingWarning(UserWarning):
    """Float32 rounds a network's outputs by more than `MOST`."""


def check_rounding(network: Network, entering: Scaling = UNSCALED) -> Network:
    """Return a network that was imported; where float32 rounds its outputs by more than `MOST`, one that needs float64.

    Warns
    -----
    RoundingWarning
        Float32 does; the message says that float64 is the default then. Networks that quantise what goes through them
        are not checked: a step there is larger than what float32 rounds, in float64, too.
    """
    if any(isinstance(layer, ForeignLayer) and _QUANTISING & {*layer.operators} for layer in network):
        return network
    try:
        found = rounding_of(network, entering)
    except (MemoryError, InputError):
        return network  # there is memory for the layers; and random numbers may be none that ONNX Runtime takes
    if found is not None and found > MOST:
        share = "all" if found >= 1 else f"{found:.1g}"
        warnings.warn(
            f"float32 rounds away {share} of this network's outputs, as rows of random numbers show; it is computed "
            'in float64 unless precision="float32" (--precision float32) asks for less',
            RoundingWarning,
            stacklevel=3,
        )
        return replace(network, needs_float64=True)
    return network


def rounding_of(network: Network, entering: Scaling = UNSCALED) -> float | None:
    """Return the largest error of float32 on a few rows, as a share of the largest output; None where it is not known.

    Rows of uniform random numbers, always the same, half of them in -1 to 1 and half in 0 to 1, go through the layers
    in float32 and in float64. A bound by analysis, a product over all layers of γₙ = n·u / (1 - n·u) times the absolute
    weights, holds for any inputs and any order of sums, but for some ten layers it exceeds any output, though the real
    error of a trained network is near 1e-6: signs of roundings cancel. What is measured neither cries wolf nor is it a
    bound: other inputs, in particular larger ones, may lose more.

    Fully connected layers are computed in float32 as such. Of a convolution that would take longer; to its exact sums
    of n products random numbers are added that are as large as independent roundings make the error, u·√n times the
    sum of absolute products. (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019.)

    network : one whose row takes no more than `MOST_WORK` multiply-adds; others are not looked at.
    entering : what its first layers do to its input before all else, such as a scaler's mean and deviation: the random
        numbers are what this gives, and the rows float64 numbers, which float32 rounds, too.
    """
    foreign = sum(layer.weight_bytes for layer in network if isinstance(layer, ForeignLayer)) // 4
    work = max(1, network.multiply_adds + foreign)  # at least a multiply-add for each of a foreign layer's weights
    rows = min(ROWS, MOST_WORK // work)
    if not rows:
        return None
    rng = np.random.default_rng(0)
    exact = rng.uniform(-1.0, 1.0, (rows, network.inputs)).astype(np.float32).astype(np.float64)
    np.abs(exact[::2], out=exact[::2])
    if np.all(entering.scale) and all(
        np.size(each) in (1, network.inputs) for each in (entering.scale, entering.shift)
    ):
        exact = (exact - entering.shift) / entering.scale
    rounded = exact.astype(np.float32)
    with np.errstate(all="ignore"):
        values = {0: (exact, rounded)}
        for number, node in enumerate(network.nodes, start=1):
            layer, sources = node.layer, [values[source] for source in node.sources]
            if isinstance(layer, CombiningLayer):
                exact, rounded = (combine_rows(layer, matrices) for matrices in zip(*sources, strict=True))
            else:
                exact, rounded = (_forward(layer, each, network.shapes[node.sources[0]], rng) for each in sources[0])
            values[number] = exact, rounded
            values = {value: values[value] for value in network.live[number]}
        if not np.isfinite(exact).all() or not exact.size:
            return None
        error, largest = np.abs(rounded - exact).max(), np.abs(exact).max()
    if not error:
        return 0.0
    return float(error / largest) if largest and np.isfinite(error) else float("inf")


def _forward(layer: Any, features: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Compute a layer in the type of its features, (rows, inputs); `shape` is that of one input."""
    count, kind = len(features), features.dtype
    match layer:
        case FullyConnected():
            weights: Any = layer.weights.to_scipy() if isinstance(layer, SparseLinear) else layer.weights  # type: ignore[attr-defined]
            sums = features @ weights.astype(kind, copy=False)
            return layer.activation(sums + np.asarray(0.0 if layer.bias is None else layer.bias, kind))
        case PerPosition():
            positions = features.reshape(-1, layer.layer.inputs)
            return _forward(layer.layer, positions, positions.shape[1:], rng).reshape(count, layer.outputs)
        case Conv2d():
            images = features.reshape(count, *shape)
            plain = replace(layer, activation=Identity())
            sums = forward_images(plain, images)
            if kind == np.float32:
                absolute = replace(plain, weights=np.abs(layer.weights), bias=np.abs(layer.bias_vector()))
                sizes = forward_images(absolute, np.abs(images))
                terms = layer.weights[0].size
                sums += rng.standard_normal(sums.shape) * sizes * (UNIT * np.sqrt(terms))
            return layer.activation(sums.astype(kind)).reshape(count, -1)
        case ImageLayer():
            return forward_images(layer, features.reshape(count, *shape)).reshape(count, -1).astype(kind)
    raise TypeError(f"there is no rounding check for the layer {type(layer).__name__}")
