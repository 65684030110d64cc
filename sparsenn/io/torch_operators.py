"""PyTorch's operators, told to a chain of layers with the arguments that PyTorch's functions take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.io.chain import Chain, Sides
from sparsenn.io.foreign_arrays import host_array, host_matrix
from sparsenn.layers import AvgPool2d, MaxPool2d

__all__ = ["TorchChain"]

Size = int | Sequence[int] | None


class TorchChain(Chain):
    """A chain of PyTorch's layers. Sequences are images of one line; sizes come one for each direction, or one for all.

    Methods raise `InputError` as those of `Chain` do; the message begins with `name`.
    """

    def linear(self, name: str, weight: Any, bias: Any = None) -> None:
        """Add a product with weights of shape (outputs, inputs)."""
        self.connect(name, host_matrix(f"weight of {name}", weight).T, _optional(f"bias of {name}", bias))

    def convolution(
        self,
        name: str,
        weight: Any,
        bias: Any = None,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
    ) -> None:
        """Add a convolution of images or sequences."""
        filters = host_array(f"weight of {name}", weight)
        dimensions = filters.ndim - 2
        if dimensions not in (1, 2):
            raise InputError(f"{name}: a convolution in {dimensions} dimensions; known here are 1 and 2")
        filters = filters[:, :, None, :] if dimensions == 1 else filters
        apart = _pair(dilation, 1, dimensions)
        windows = [apart[axis] * (filters.shape[2 + axis] - 1) for axis in (0, 1)]
        if padding == "same":
            sides: Sides = tuple((total // 2, total - total // 2) for total in windows)  # type: ignore[assignment]
        else:
            down, across = _pair(0 if padding == "valid" else padding, 0, dimensions)  # type: ignore[arg-type]
            sides = (down, down), (across, across)
        self.convolve(
            name, filters, _optional(f"bias of {name}", bias), _pair(stride, 1, dimensions), sides, apart, groups
        )

    def batch_norm(self, name: str, weight: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> None:
        """Add a normalisation by running means and variances."""
        if mean is None or variance is None:
            raise InputError(f"{name}: normalises by each batch's own mean and variance; running ones are needed")
        means, spread = (
            host_array(f"{what} of {name}", each).astype(np.float64)
            for what, each in (("running mean", mean), ("running variance", variance))
        )
        scale, shift = (_optional(f"{what} of {name}", each) for what, each in (("weight", weight), ("bias", bias)))
        with np.errstate(all="ignore"):
            factor = (1.0 if scale is None else scale) / np.sqrt(spread + epsilon)
        if not np.isfinite(factor).all():
            raise InputError(f"{name}: a running variance is negative, or not finite")
        self.scale(name, factor, (0.0 if shift is None else shift) - means * factor)

    def max_pool(
        self,
        name: str,
        dimensions: int,
        window: Size,
        stride: Size = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil: bool = False,
    ) -> None:
        """Add the largest of each window."""
        if _pair(dilation, 1, dimensions) != (1, 1):
            raise InputError(f"{name}: a dilation of {dilation}; layers here pool windows without gaps")
        sizes = _pair(window, 1, dimensions)
        layer = MaxPool2d(sizes, _pair(stride, 1, dimensions) if stride else sizes, _pair(padding, 0, dimensions))
        self._check_ceil(name, ceil, layer)
        self.pool(name, layer)

    def average_pool(
        self,
        name: str,
        dimensions: int,
        window: Size,
        stride: Size = None,
        padding: Size = 0,
        ceil: bool = False,
        counts_padding: bool = True,
        divisor: int | None = None,
    ) -> None:
        """Add the mean of each window."""
        sizes, around = _pair(window, 1, dimensions), _pair(padding, 0, dimensions)
        if any(around) and not counts_padding:
            raise InputError(f"{name}: means that leave padding out; layers here count padding as zeros")
        layer = AvgPool2d(sizes, _pair(stride, 1, dimensions) if stride else sizes, around)
        self._check_ceil(name, ceil, layer)
        self.pool(name, layer)
        if divisor is not None:
            self.scale(name, sizes[0] * sizes[1] / divisor, 0.0)

    def adaptive_pool(self, name: str, dimensions: int, kind: type[AvgPool2d] | type[MaxPool2d], size: Any) -> None:
        """Add windows that make images of a size, of which None is one that stays."""
        _, *image = self.image(name)
        given = list(size) if isinstance(size, Sequence) else [size] * dimensions
        wanted = [1] * (2 - len(given)) + given
        sizes = [whole if part is None else part for whole, part in zip(image, wanted, strict=True)]
        if any(part < 1 or whole % part for whole, part in zip(image, sizes, strict=True)):
            raise InputError(f"{name}: makes {sizes} of {image} pixels, which takes windows of several sizes")
        height, width = (whole // part for whole, part in zip(image, sizes, strict=True))
        self.pool(name, kind((height, width)))

    def hard_sigmoid(self, name: str) -> None:
        """Apply x / 6 + 1 / 2, kept between 0 and 1."""
        self.scale(name, 1 / 6, 0.5)
        self.clip(name, 0.0, 1.0)

    def parametric_relu(self, name: str, weight: Any) -> None:
        """Multiply what is below zero by one learned number, or one for each channel."""
        slopes = host_array(f"weight of {name}", weight)
        self.leak(name, slopes[0] if slopes.shape == (1,) else slopes)

    def flatten_from(self, name: str, start: int = 1, end: int = -1) -> None:
        """Make rows."""
        dimensions = 2 if self.shape is None else 1 + len(self.shape)
        if start not in (1, 1 - dimensions) or end not in (-1, dimensions - 1, 2):
            raise InputError(f"{name}: flattens dimensions {start} to {end}; all but the first are joined here")
        self.flatten()

    def softmax_over(self, name: str, dimension: int | None) -> None:
        """Make shares of one, along a row."""
        if dimension not in (1, -1, None):
            raise InputError(f"{name}: a softmax over dimension {dimension}; that over a row's numbers is known here")
        self.softmax(name)

    def _check_ceil(self, name: str, ceil: bool, layer: AvgPool2d | MaxPool2d) -> None:
        """Refuse windows that reach beyond an image."""
        window, stride, padding = layer.steps
        image = self.image(name)[1:]
        rest = [(image[axis] + 2 * padding[axis] - window[axis]) % stride[axis] for axis in (0, 1)]
        if ceil and any(rest):
            raise ShapeError(f"{name}: windows reach beyond the image (ceil_mode); layers here leave the rest out")


def _pair(value: Size, otherwise: int, dimensions: int) -> tuple[int, int]:
    """Return one size down and one across; of sequences that down, along which they have one line, is `otherwise`."""
    sizes = [int(size) for size in value] if isinstance(value, Sequence) else [otherwise if value is None else value]
    across = sizes[-1]
    return (otherwise if dimensions == 1 else sizes[0]), across


def _optional(name: str, value: Any) -> Any:
    """Return an array, or None for None."""
    return None if value is None else host_array(name, value)
