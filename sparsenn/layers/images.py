"""What layers of images share: what an engine asks of them, and sliding windows."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import INDEX32_LIMIT
from sparsenn.layers.layer import BaseLayer

Pair: TypeAlias = tuple[int, int]  # a size down and one across
Image: TypeAlias = tuple[int, int, int]  # channels, height and width


class SlidingWindow(NamedTuple):
    """A window that slides over the pixels of an image, every number down and across.

    Parameters
    ----------
    size : pixels of the window, without dilation.
    stride : pixels from one position of the window to the next.
    padding : pixels put around the image on both sides.
    dilation : pixels from one element of the window to the next.
    """

    size: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def positions(self, image: Pair, after: Pair | None = None) -> Pair:
        """Return the number of positions of the window on an image, down and across.

        Parameters
        ----------
        image : height and width, without padding.
        after : pixels put below and to the right of the image; the padding, which is then above and to the left alone,
            unless given.
        """
        spans = [dilation * (size - 1) + 1 for size, dilation in zip(self.size, self.dilation, strict=True)]
        sides = zip(image, self.padding, self.padding if after is None else after, strict=True)
        padded = [sum(each) for each in sides]
        if spans[0] > padded[0] or spans[1] > padded[1]:
            raise ShapeError(
                f"a window of {spans[0]} x {spans[1]} pixels is larger than an image of {padded[0]} x {padded[1]}, "
                "padding included"
            )
        if prod(padded) > INDEX32_LIMIT:
            raise ShapeError(f"{padded[0]} x {padded[1]} pixels, padding included, are more than an image may have")
        down, across = ((size - span) // by + 1 for size, span, by in zip(padded, spans, self.stride, strict=True))
        return down, across


class ImageLayer(BaseLayer):
    """A layer that takes images, or rows that come from them, in the order (images, channels, height, width).

    Attributes
    ----------
    name : what the layer is called in plans and statistics.
    """

    name: ClassVar[str]

    @property
    def family(self) -> type[ImageLayer]:
        """The kind of layers that consecutive ones have to share to be run together."""
        return ImageLayer


def integers(value: Any, least: int) -> tuple[int, ...] | None:
    """Return an integer, or those of a tuple, a list or an array, of whichever types, as Python's own.

    None where one is no integer (truth values are none), or below `least`.
    """
    several = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
    numbers = tuple(value) if several else (value,)
    try:
        found = tuple(map(index, numbers))
    except TypeError:
        return None
    if any(isinstance(number, bool | np.bool_) for number in numbers) or any(number < least for number in found):
        return None
    return found


def checked_image(image: Image) -> Image:
    """Return the shape of an image as a tuple of three sizes."""
    sizes = integers(image, 1)
    if sizes is None or len(sizes) != 3:
        raise ShapeError(f"the image {image} is not (channels, height, width), three integers of at least 1")
    return sizes[0], sizes[1], sizes[2]


def pair(value: int | Pair, name: str, least: int) -> Pair:
    """Return one number for both directions, or a number for each, as two of Python's integers."""
    found = integers(value, least)
    if found is None or len(found) != (2 if np.ndim(value) else 1):
        raise UsageError(f"a {name} of {value} is not one or two integers of at least {least}")
    if max(found) > INDEX32_LIMIT:
        raise UsageError(f"a {name} of {value} is more than {INDEX32_LIMIT:,}, the most")
    return found[0], found[-1]


def check_images(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return a shape that is one of images: (images, channels, height, width)."""
    if len(shape) != 4:
        raise ShapeError(f"the layer takes (images, channels, height, width); its input has shape {shape}")
    return shape
