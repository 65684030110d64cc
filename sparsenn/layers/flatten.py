"""Flatten: an image becomes a row of features."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sparsenn.errors import ShapeError
from sparsenn.layers.images import ImageLayer


@dataclass(frozen=True)
class Flatten(ImageLayer):
    """Y' holds the numbers of Y: channel by channel, row by row of pixels; a row of features stays as it is."""

    name = "flatten"

    @property
    def keeps_zero_rows(self) -> bool:
        """Numbers stay what they are."""
        return True

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) < 2:
            raise ShapeError(f"the layer takes (images, ...); its input has shape {input_shape}")
        return input_shape[0], prod(input_shape[1:])
