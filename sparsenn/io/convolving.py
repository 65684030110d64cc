"""Convolutions of signals: of images, or, as fully connected layers, of rows of features that are taken for images."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array
from sparsenn.io.affine import Convolution, Scaling, Sides, centred
from sparsenn.io.signal import Signal, check_finite
from sparsenn.layers import Identity
from sparsenn.layers.images import Pair

__all__ = ["convolve", "pad_with_zeros"]

_MOST_WEIGHTS = 1 << 22
"""Most weights of a fully connected layer that stands for a convolution."""


def convolve(
    signal: Signal,
    filters: Array,
    bias: Any = None,
    stride: Pair = (1, 1),
    padding: Sides = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Signal:
    """Return what a convolution makes of a signal.

    Parameters
    ----------
    signal : of images, or of features that its axes make images of: made by a product, or scaled one by one.
    filters : (filters, channels / groups, height, width).

    Raises
    ------
    ShapeError
        The filters do not fit, or the axes are no image's.
    InputError
        It is no image to the layers, and too large for a fully connected layer.
    """
    if filters.ndim != 4 or 0 in filters.shape:
        raise ShapeError(f"the weights have shape {filters.shape}; a convolution's have four dimensions")
    check_finite(filters)
    channels = signal.picture[0]
    if groups < 1 or filters.shape[1] * groups != channels or filters.shape[0] % groups:
        raise ShapeError(f"filters of shape {filters.shape} in {groups} groups do not fit {channels} channels")
    filters, dilation, around = centred(filters, dilation, padding)
    made = Convolution(filters, 0.0, stride, around, dilation, groups)
    image = made.layer(Identity()).output_shape((1, *signal.picture))[1:]
    try:
        images = signal.images()
    except InputError as refusal:
        convolved = _unrolled(signal, made, image, refusal)
    else:
        convolved = _of_images(images, made, image)
    return convolved if bias is None else convolved.plus(convolved.for_channels("bias", bias))


def pad_with_zeros(signal: Signal, padding: Sides) -> Signal:
    """Return images with zeros around them: a convolution of single pixels, each channel by itself."""
    channels = signal.picture[0]
    return convolve(signal.flushed(), np.ones((channels, 1, 1, 1), np.float32), padding=padding, groups=channels)


def _of_images(signal: Signal, made: Convolution, image: tuple[int, ...]) -> Signal:
    """Return what a convolution that gives images of a shape makes of images."""
    if not isinstance(signal.pending, Scaling):
        return replace(signal.flushed(), pending=made).as_image(image)
    scaled = made.after(signal.pending, signal.pixels)
    if scaled is not None:
        return replace(signal, pending=scaled).as_image(image)
    if signal.pending.as_convolution(signal.pixels) is None:
        refusal = InputError("it takes images whose pixels are scaled one by one; no layer of sparsenn does that")
        return _unrolled(signal, made, image, refusal)
    return replace(signal.flushed(), pending=made).as_image(image)


def _unrolled(signal: Signal, made: Convolution, image: tuple[int, ...], refusal: InputError) -> Signal:
    """Return a convolution as a fully connected layer; refuse one of too many weights."""
    if made.weights.size * prod(image[1:]) > _MOST_WEIGHTS:
        raise refusal
    rows = signal if signal.axis == 0 else replace(signal, shape=signal.shape[1:], axis=0)
    shape = image if len(rows.shape) == 3 else (image[0], image[2])
    return rows.product(made.as_product(signal.picture).weights, shape)
