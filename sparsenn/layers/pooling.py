"""Pooling: each window of an image's pixels becomes one, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sparsenn.errors import UsageError
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.images import ImageLayer, Pair, SlidingWindow, check_images, pair


@dataclass(frozen=True)
class Pool2d(Rebuilt, ImageLayer):
    """Base of both kinds of pooling; every window holds a pixel of the image."""

    window: int | Pair
    stride: int | Pair | None = None
    padding: int | Pair = (0, 0)
    padding_after: int | Pair | None = None

    def __post_init__(self) -> None:
        window = pair(self.window, "window", 1)
        padding = pair(self.padding, "padding", 0)
        after = padding if self.padding_after is None else pair(self.padding_after, "padding", 0)
        for each in (padding, after):
            if each[0] >= window[0] or each[1] >= window[1]:
                raise UsageError(
                    f"a padding of {each[0]} x {each[1]} pixels is not less than a window of {window[0]} x {window[1]}"
                )
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "stride", window if self.stride is None else pair(self.stride, "stride", 1))
        object.__setattr__(self, "padding", padding)
        object.__setattr__(self, "padding_after", after)

    @cached_property
    def sliding_window(self) -> SlidingWindow:
        """Window, stride and padding, each down and across."""
        window = pair(self.window, "window", 1)
        stride = window if self.stride is None else pair(self.stride, "stride", 1)
        return SlidingWindow(window, stride, pair(self.padding, "padding", 0))

    @cached_property
    def after(self) -> Pair:
        """Pixels put below the image, and to the right of it."""
        return pair(self.padding if self.padding_after is None else self.padding_after, "padding", 0)

    @property
    def is_padded(self) -> bool:
        """Whether any pixel is put around the image."""
        return any(self.sliding_window.padding) or any(self.after)

    @property
    def keeps_zero_rows(self) -> bool:
        """Zeros give zeros: every window holds a pixel of the image."""
        return True

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        images, channels, height, width = check_images(input_shape)
        return images, channels, *self.sliding_window.positions((height, width), self.after)


@dataclass(frozen=True)
class MaxPool2d(Pool2d):
    """The largest number of each window; padding counts as minus infinity, and a NaN makes its windows NaN.

    Parameters
    ----------
    window : int or (int, int)
        Pixels whose largest is taken: one number, or one down and one across.
    stride : int or (int, int), optional
        Pixels from one window to the next, likewise; the window itself unless given.
    padding : int or (int, int), default 0
        Pixels put around the image on both sides, likewise; fewer than the window's.
    padding_after : int or (int, int), optional
        Pixels put below and to the right of the image, likewise; as many as `padding` unless given.

    Raises
    ------
    UsageError
        A window or a stride is below 1, or a padding is below 0 or not less than the window.
    """

    name = "max_pool2d"


@dataclass(frozen=True)
class AvgPool2d(Pool2d):
    """The mean of each window: the sum over the window divided by its pixels, of which padding counts as zeros.

    Parameters
    ----------
    window : int or (int, int)
        Pixels whose mean is taken: one number, or one down and one across.
    stride : int or (int, int), optional
        Pixels from one window to the next, likewise; the window itself unless given.
    padding : int or (int, int), default 0
        Pixels put around the image on both sides, likewise; fewer than the window's.
    padding_after : int or (int, int), optional
        Pixels put below and to the right of the image, likewise; as many as `padding` unless given.
    counts_padding : bool, default True
        Whether a sum is divided by all pixels of its window; else by those of the image alone.

    Raises
    ------
    UsageError
        A window or a stride is below 1, or a padding is below 0 or not less than the window.
    """

    name = "avg_pool2d"
    counts_padding: bool = True
