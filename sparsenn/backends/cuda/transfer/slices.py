"""Arrays on the host cut into parts that threads copy, and the conversion of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.formats import Array


@dataclass(frozen=True)
class Part:
    """Some numbers of an array on the host that are consecutive in row-major order."""

    numbers: Array
    place: int  # address on the device
    dtype: np.dtype[Any]  # on the device


def cut(array: Array, target: Any, most: int) -> list[Part]:
    """Cut an array on the host into slices of at most so many bytes in the type of a row-major device array."""
    found, place, dtype = [], int(target.data.ptr), target.dtype
    for numbers in _views(array, max(1, most // dtype.itemsize)):
        found.append(Part(numbers, place, dtype))
        place += numbers.size * dtype.itemsize
    return found


def _views(array: Array, most: int) -> Iterator[Array]:
    """Yield views of an array that are consecutive in row-major order, of at most so many numbers each."""
    if not array.size:
        return
    if array.flags.c_contiguous and array.ndim != 1:
        yield from _views(array.reshape(-1), most)
        return
    inner = array.size // array.shape[0]
    if inner > most:
        for part in array:
            yield from _views(part, most)
        return
    step = most // inner
    for start in range(0, array.shape[0], step):
        yield array[start : start + step]


def convert(source: Array, target: Array) -> None:
    """Copy numbers; what is beyond the range of their new type becomes infinite."""
    if source.dtype == target.dtype:
        np.copyto(target, source)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")
