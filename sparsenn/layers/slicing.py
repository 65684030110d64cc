"""Slice: neighbouring features of a row, or neighbouring channels, lines or columns of an image."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import INDEX32_LIMIT
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.images import Image, ImageLayer, checked_image, integers


@dataclass(frozen=True)
class Slice(Rebuilt, ImageLayer):
    """Y' holds the features of Y from `first` to before `last`, or the channels, lines or columns of its images.

    Branches that each begin with a slice read one of several inputs, which a network takes as one row.

    Parameters
    ----------
    first, last : int
        The first feature, channel, line or column, counted from 0, and the one after the last.
    image : (int, int, int), optional
        Channels, height and width, where the features are the pixels of an image, channel by channel.
    axis : int, default 0
        0 for features or channels, 1 for lines of an image, and 2 for columns.

    Raises
    ------
    UsageError
        `first` and `last` are not integers from 0 on, the second larger, or there is no such axis.
    ShapeError
        The image is not three sizes of at least 1.
    """

    name: ClassVar[str] = "slice"
    first: int
    last: int
    image: Image | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        bounds = integers((self.first, self.last), 0)
        if bounds is None or not bounds[0] < bounds[1] <= INDEX32_LIMIT:
            raise UsageError(
                f"a slice from {self.first!r} to {self.last!r}; it takes integers from 0 to {INDEX32_LIMIT:,}, the "
                "second larger than the first"
            )
        if self.axis not in (0, 1, 2):
            raise UsageError(f"a slice along axis {self.axis!r}; it takes 0, 1 or 2")
        object.__setattr__(self, "first", bounds[0])
        object.__setattr__(self, "last", bounds[1])
        if self.image is not None:
            object.__setattr__(self, "image", checked_image(self.image))

    @property
    def keeps_zero_rows(self) -> bool:
        """Numbers stay what they are."""
        return True

    def columns(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return where the slice lies in each block of a row.

        Parameters
        ----------
        shape : tuple of int
            Of one input: (channels, height, width) or (width,).

        Returns
        -------
        (int, int)
            The first column, and the one after the last.
        """
        size = prod(shape[self.axis + 1 :])
        return self.first * size, self.last * size

    def block(self, shape: tuple[int, ...]) -> int:
        """Return the length of the blocks that make up a row, from each of which the same columns are taken.

        Parameters
        ----------
        shape : tuple of int
            Of one input: (channels, height, width) or (width,).

        Returns
        -------
        int
            All numbers of a row, of a channel or of a line.
        """
        return prod(shape[self.axis :])

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        axis = 1 + self.axis
        if len(input_shape) <= axis or input_shape[axis] < self.last:
            raise ShapeError(f"the slice ends at {self.last} of axis {axis}; its input has shape {input_shape}")
        shape = *input_shape[1:axis], self.last - self.first, *input_shape[axis + 1 :]
        if self.image is None:
            return input_shape[0], *shape
        if prod(self.image) != prod(shape):
            raise ShapeError(f"the slice takes {prod(shape)} numbers, which are no image of shape {self.image}")
        return input_shape[0], *self.image
