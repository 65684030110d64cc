"""Rows of a Dask array: its chunks along the rows are the parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from sparsenn.distributed.cluster.library import dask_delayed
from sparsenn.distributed.cluster.parts import Rows
from sparsenn.distributed.digests import content_digest
from sparsenn.errors import ShapeError, UsageError

__all__ = ["ChunkedRows", "chunks_of"]


@dataclass(frozen=True, eq=False)
class ChunkedRows(Rows):
    """Rows of a Dask array of two dimensions, of which each chunk holds whole rows."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the array; how many rows there are may not be known, NaN."""
        return tuple(self.array.shape)

    @property
    def sparse(self) -> bool:
        """Whether the chunks are sparse."""
        return not isinstance(self.array._meta, np.ndarray)

    @property
    def digest(self) -> str:
        """Of the array's name, which Dask derives from what is computed, and of its chunks."""
        return content_digest(self.array.name, self.array.chunks)

    def edges(self, most: int) -> list[tuple[int, int]]:
        """Return the chunks."""
        ends = np.cumsum([0, *self.array.chunks[0]])
        if math.isnan(ends[-1]):
            raise UsageError("how long the Dask array's chunks are is not known; call its compute_chunk_sizes() first")
        return [(int(first), int(last)) for first, last in pairwise(ends) if first < last]

    def cut(self, size: int) -> Rows:
        """Return the same rows, such that each chunk but the last has so many."""
        *others, last = self.array.chunks[0] or (0,)
        as_asked = last <= size and all(rows == size for rows in others)
        return self if as_asked else ChunkedRows(self.array.rechunk({0: size}))

    def part(self, first: int, last: int) -> Any:
        """Return what computes a chunk."""
        return self._blocks[first]

    def submitter(self, client: Any, compute: Callable[..., Any], first: int, last: int) -> Callable[..., Any]:
        """Return what gives a chunk to a cluster, with all that it is computed from."""
        task = dask_delayed(compute, pure=False)(self.part(first, last))
        return lambda **where: client.compute(task, **where)

    @cached_property
    def _blocks(self) -> dict[int, Any]:
        """What computes each chunk, by its first row."""
        firsts = np.cumsum([0, *self.array.chunks[0]])
        return dict(zip(firsts.tolist(), self.array.to_delayed()[:, 0], strict=False))


def chunks_of(array: Any, width: int) -> ChunkedRows:
    """Return the rows of a Dask array.

    Parameters
    ----------
    array : of shape (rows, width); or images, (images, channels, height, width of an image).
    width : numbers of a row that the network takes.

    Raises
    ------
    ShapeError
        The rows are of another width.
    """
    if array.ndim < 2 or prod(array.shape[1:]) != width:
        raise ShapeError(f"the rows have shape {array.shape}; the network takes {width:,} numbers a row")
    whole = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    return ChunkedRows(whole if array.ndim == 2 else whole.reshape(array.shape[0], width))
