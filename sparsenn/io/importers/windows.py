"""Convolutions and poolings of signals: of images, or of rows of features that are taken for images.

Rows of features are convolved by fully connected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array
from sparsenn.io.importers.affine import Convolution, Scaling, Sides, centred, check_finite
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import AvgPool2d, Identity, MaxPool2d
from sparsenn.layers.images import Pair


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

    signal : of images, or of features that its axes make images of: made by a product, or scaled one by one.
    filters : (filters, channels / groups, height, width).
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
    pixels = signal.pending if isinstance(signal.pending, Scaling) else Scaling()
    is_plain = not signal.is_scattered and pixels.as_convolution(signal.picture) is not None
    is_point = signal.picture == (signal.width, 1, 1)
    if is_plain or is_point or made.weights.size * prod(image[1:]) > signal.most_weights:
        convolved = _of_images(signal.images(), made, image)
    else:
        rows = signal if signal.axis == 0 else replace(signal, shape=signal.shape[1:], axis=0)
        shape = image if len(rows.shape) == 3 else (image[0], image[2])
        convolved = rows.product(made.as_product(signal.picture).weights, shape)
    return convolved if bias is None else convolved.plus(convolved.for_channels("bias", bias))


def same_sides(image: Sequence[int], spans: Sequence[int], stride: Sequence[int]) -> Sides:
    """Return the padding on each side, less before, with which a window begins at each multiple of the stride."""
    totals = [
        max((-(-size // step) - 1) * step + span - size, 0)
        for size, span, step in zip(image, spans, stride, strict=True)
    ]
    above, left = (total // 2 for total in totals)
    return (above, totals[0] - above), (left, totals[1] - left)


def pad_with_zeros(signal: Signal, padding: Sides) -> Signal:
    """Return images with zeros around them: a convolution of single pixels, each channel by itself."""
    channels = signal.picture[0]
    return convolve(signal.flushed(), np.ones((channels, 1, 1, 1), np.float32), padding=padding, groups=channels)


def _of_images(signal: Signal, made: Convolution, image: tuple[int, ...]) -> Signal:
    if isinstance(signal.pending, Convolution):
        composed = made.after_channels(signal.pending)
        if composed is not None:
            return replace(signal, pending=composed).as_image(image)
    if isinstance(signal.pending, Scaling):
        scaled = made.after(signal.pending, signal.pixels)
        if scaled is not None:
            return replace(signal, pending=scaled).as_image(image)
    return replace(signal.flushed().images(), pending=made).as_image(image)


def pool(
    signal: Signal,
    kind: type[AvgPool2d] | type[MaxPool2d],
    window: Pair,
    stride: Pair,
    sides: Sides,
    ceil: bool = False,
    counts_padding: bool = True,
) -> Signal:
    """Return what a pooling makes of images.

    sides : pixels put above and below, left and right.
    ceil : whether a last window may end beyond the padding after an image, where it begins before that padding.
    counts_padding : whether means count padding, but never what lies beyond it.
    """
    before, after = [], []
    for size, span, step, (first, last) in zip(signal.images().pixels[1:], window, stride, sides, strict=True):
        count, rest = divmod(size + first + last - span, step)
        is_longer = ceil and rest and (count + 1) * step < size + first  # no window begins in the padding after it
        before.append(first)
        after.append(last + step - rest if is_longer else last)
    is_beyond = after != [last for _, last in sides]
    around = (before[0], before[1]), (after[0], after[1])
    if kind is MaxPool2d:
        return signal.pooled(MaxPool2d(window, stride, *around))
    if is_beyond and counts_padding and any(map(any, sides)):
        raise InputError(
            "its last window ends beyond the padding, which is counted in a mean (ceil_mode); no layer of sparsenn does"
        )
    return signal.pooled(AvgPool2d(window, stride, *around, counts_padding and not is_beyond))
