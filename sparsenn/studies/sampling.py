"""Which rows of a large result are compared with the reference, and how far float32 sums may be off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.formats import Array
from sparsenn.studies.ladder import Settled, Work

ALLOWED = {"tf32": 5e-3, "float16": 1e-2}
"""How far results may be from the reference's, in parts of its largest, where factors are rounded to 10 bits."""


def sampled_rows(rows: int, wanted: int) -> Array:
    """Return rows to compare, increasing int64: all, or as many as wanted with the first and the last among them."""
    if rows <= wanted:
        return np.arange(rows)
    inner = np.random.default_rng(0).choice(rows - 2, wanted - 2, replace=False) + 1
    return np.concatenate([[0], np.sort(inner), [rows - 1]])


def allowed_distance(terms: int, largest: float) -> float:
    """Return how far a float32 sum of products may be from the exact one.

    A term passes through at most `terms` + 1 roundings, in whatever order they are added, each by 2^-24 of what is
    rounded. Errors of random numbers go up and down, and so add up like their root; four times that leaves room for
    more than one rounding a term. `largest` is what the absolute values of a sum's terms can add up to.
    """
    return float(4 * np.sqrt(terms + 2) * 2.0**-24 * largest)


def largest_distance(
    backend: Backend, found: Any, rows: Array, shape: tuple[int, ...], expected: Callable[[Array], Array]
) -> float:
    """Return the largest difference between some rows of a result and what is expected of them.

    backend : whose device the result is on.
    found : an array, rows first.
    rows : those to look at, increasing; neighbours are fetched together.
    shape : that the result must have; its distance is infinite otherwise, or where it is not a number.
    expected : returns what the rows at given places of `rows` should be, float64.
    """
    if getattr(found, "shape", None) != shape:
        return np.inf
    largest = 0.0
    for places in _neighbours(rows):
        first, last = int(rows[places[0]]), int(rows[places[-1]]) + 1
        there = found[first:last]
        difference = np.abs((there if isinstance(there, np.ndarray) else backend.fetch(there)) - expected(places))
        distance = float(difference.max(initial=0.0))
        largest = max(largest, distance if np.isfinite(distance) else np.inf)
    return largest


def _neighbours(rows: Array) -> Iterator[Array]:
    """Yield the places of rows that follow each other."""
    return iter(part for part in np.split(np.arange(rows.size), np.flatnonzero(np.diff(rows) != 1) + 1) if part.size)


class SampledStage:
    """One launch, of whose result some rows are compared with what is expected of them.

    given : the launch's arguments. rows, shape : as `largest_distance` takes them. expected : those rows, float64.
    allowed : how far float32 results may be from them.
    """

    def __init__(
        self,
        backend: Backend,
        given: tuple[Any, ...],
        rows: Array,
        shape: tuple[int, ...],
        expected: Array,
        allowed: float,
        work: Work,
    ) -> None:
        self._backend, self._given, self._rows, self._shape, self._expected = backend, given, rows, shape, expected
        self._scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        self._allowed, self.work = allowed / self._scale, work

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return the launch's arguments, on the device."""
        return self._given

    def settle(self, output: Any) -> Settled:
        """Compare the chosen rows; nothing is carried on, and NaN is infinitely far away."""
        distance = largest_distance(self._backend, output, self._rows, self._shape, self._expected.__getitem__)
        error = distance / self._scale
        return Settled(None, error, error <= self._allowed, ALLOWED)
