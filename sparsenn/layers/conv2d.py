"""The two-dimensional convolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.activation import ReLU
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.images import ImageLayer, Pair, SlidingWindow, check_images, integers, pair
from sparsenn.layers.linear import float32_bias, float32_parameters
from sparsenn.printable import one_line


@dataclass(frozen=True, eq=False)
class Conv2d(Rebuilt, ImageLayer):
    """Y' = activation(W * Y + b): each output pixel is a sum over a window of the input's pixels and channels.

    As in other libraries this is the cross-correlation: filters are not mirrored. Arrays are the layer's own and
    read-only: copies, unless the arguments are read-only with all memory that they are part of.

    Parameters
    ----------
    weights : array_like, shape (filters, channels / groups, kernel height, kernel width)
        Brought to float32.
    bias : float or array_like of shape (filters,), optional
        One number for all filters, or one for each; brought to float32.
    activation : Activation, default ReLU()
        Applied to each element.
    stride : int or (int, int), default 1
        Pixels from one window to the next: one number, or one down and one across.
    padding : int or (int, int), default 0
        Pixels of zeros put around the image on both sides, likewise.
    dilation : int or (int, int), default 1
        Pixels from one element of a window to the next, likewise.
    groups : int, default 1
        Parts into which channels and filters are cut; each part of the filters sees its part of the channels only.

    Raises
    ------
    ShapeError
        The weights do not have four dimensions of at least 1, the bias does not fit them, or filters are not divisible
        by the groups.
    UsageError
        A stride, a dilation or the groups are not integers of at least 1, or a padding not of at least 0.
    InputError
        A weight or a bias is not a finite float32 number, or the activation is none.
    """

    name = "conv2d"
    weights: Array
    bias: float | Array | None = None
    activation: Activation = field(default_factory=ReLU)
    stride: int | Pair = (1, 1)
    padding: int | Pair = (0, 0)
    dilation: int | Pair = (1, 1)
    groups: int = 1

    __repr__ = one_line

    def __post_init__(self) -> None:
        check_activation(self.activation)
        object.__setattr__(self, "weights", float32_parameters(self.weights, "weights hold"))
        if self.weights.ndim != 4 or 0 in self.weights.shape:
            raise ShapeError(
                f"the weights have shape {self.weights.shape}; a convolution takes "
                "(filters, channels / groups, kernel height, kernel width)"
            )
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, pair(getattr(self, name), name, least))
        groups = integers((self.groups,), 1)
        if groups is None:
            raise UsageError(f"{self.groups} groups are not possible; give an integer of at least 1")
        object.__setattr__(self, "groups", groups[0])
        if self.filters % self.groups:
            raise ShapeError(f"{self.filters} filters cannot be cut into {self.groups} groups")
        object.__setattr__(self, "bias", float32_bias(self.bias, self.filters, "filters"))

    @property
    def filters(self) -> int:
        """Channels of Y'."""
        return int(self.weights.shape[0])

    @property
    def channels(self) -> int:
        """Channels of Y."""
        return int(self.weights.shape[1]) * self.groups

    @property
    def kernel_size(self) -> Pair:
        """Height and width of a filter."""
        return int(self.weights.shape[2]), int(self.weights.shape[3])

    @property
    def edges(self) -> int:
        """Stored weights."""
        return int(self.weights.size)

    @cached_property
    def nonzeros(self) -> int:
        """Weights other than zero."""
        return int(np.count_nonzero(self.weights))

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.edges + (0 if self.bias is None else self.filters)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return int(self.weights.nbytes)

    @property
    def keeps_zero_rows(self) -> bool:
        """Whether an image of zeros gives zeros only: act(b) = 0 for every filter."""
        return not bool(self.activation(self.bias_vector()).any())

    def bias_vector(self) -> Array:
        """Return the bias of each filter.

        Returns
        -------
        array, shape (filters,), float32
            Zeros where there is no bias.
        """
        return np.broadcast_to(np.float32(0.0 if self.bias is None else self.bias), (self.filters,)).astype(np.float32)

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        images, channels, height, width = check_images(input_shape)
        if channels != self.channels:
            raise ShapeError(f"the layer takes {self.channels} channels; its input has shape {input_shape}")
        return images, self.filters, *self.sliding_window.positions((height, width))

    @cached_property
    def sliding_window(self) -> SlidingWindow:
        """Kernel size, stride, padding and dilation, each down and across."""
        return SlidingWindow(
            self.kernel_size,
            pair(self.stride, "stride", 1),
            pair(self.padding, "padding", 0),
            pair(self.dilation, "dilation", 1),
        )
