"""The sizes of convolutions in words, the same on all devices: what tuned numbers are kept by."""

from __future__ import annotations

from collections.abc import Sequence

from sparsenn.backends.sizes import about

__all__ = ["sizes_in_words"]


def sizes_in_words(images: Sequence[int], filters: Sequence[int], steps: Sequence[Sequence[int]]) -> str:
    """Return the sizes of a convolution, and about how many images there are.

    Parameters
    ----------
    images : their number, channels, height and width.
    filters : their number, channels of a group, height and width.
    steps : stride, padding and dilation, down and across each.
    """
    count, *image = images
    told = (f"{name} {_times(step)}" for name, step in zip(("stride", "padding", "dilation"), steps, strict=True))
    return ", ".join([f"images {about(count)} of {_times(image)}", f"filters {_times(filters)}", *told])


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
