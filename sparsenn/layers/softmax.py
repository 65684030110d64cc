"""Softmax: numbers become shares of one; or their logarithms."""

from __future__ import annotations

from dataclasses import dataclass

from sparsenn.errors import ShapeError
from sparsenn.layers.images import ImageLayer


class SoftmaxLayer(ImageLayer):
    """What `Softmax` and `LogSoftmax` have in common."""

    @property
    def keeps_zero_rows(self) -> bool:
        """Zeros become equal shares of one, or their logarithms, which are not zero."""
        return False

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) < 2:
            raise ShapeError(f"the layer takes (rows, ...); its input has shape {input_shape}")
        return input_shape


@dataclass(frozen=True)
class Softmax(SoftmaxLayer):
    """Y' = exp(Y) / sum of exp(Y), over all numbers of a row or an image, computed without overflow."""

    name = "softmax"


@dataclass(frozen=True)
class LogSoftmax(SoftmaxLayer):
    """Y' = Y - log(sum of exp(Y)), over all numbers of a row or an image, computed without overflow."""

    name = "log_softmax"
