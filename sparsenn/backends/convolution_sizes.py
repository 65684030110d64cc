"""The sizes of convolutions in words, the same on all devices: what tuned numbers are kept by."""

from __future__ import annotations

from collections.abc import Sequence

from sparsenn.backends.sizes import about
from sparsenn.layers.images import Pair

__all__ = ["sizes_in_words"]


def sizes_in_words(images: Sequence[int], filters: Sequence[int], stride: Pair, padding: Pair, dilation: Pair) -> str:
    """Return the sizes of a convolution, and about how many images there are.

    Parameters
    ----------
    images : their number, channels, height and width.
    filters : their number, channels of a group, height and width.
    stride, padding, dilation : pixels down and across.
    """
    count, *image = images
    pairs = {"stride": stride, "padding": padding, "dilation": dilation}
    return ", ".join(
        [
            f"images {about(count)} of {_times(image)}",
            f"filters {_times(filters)}",
            *(f"{name} {_times(pair)}" for name, pair in pairs.items()),
        ]
    )


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
