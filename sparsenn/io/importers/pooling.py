"""Poolings of signals, with the windows and the padding that other programs give them."""

from __future__ import annotations

from sparsenn.errors import InputError
from sparsenn.io.importers.affine import Sides
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import AvgPool2d, MaxPool2d
from sparsenn.layers.images import Pair


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
