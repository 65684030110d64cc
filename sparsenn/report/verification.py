"""Verification: the categories that were found against the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.formats import Array

NAMED = 5
"""How many wrong categories of each kind a sentence names; the rest is counted."""


@dataclass(frozen=True, eq=False)
class Verification:
    """What a set of categories and the true set have in common, and where they differ.

    matching : categories that are in both sets.
    missing : true categories that were not found; sorted int64, counted from 0.
    unexpected : categories found that are not true; sorted int64, counted from 0.
    """

    matching: int
    missing: Array
    unexpected: Array

    @property
    def passed(self) -> bool:
        """Whether the two sets are equal."""
        return not (self.missing.size or self.unexpected.size)

    def __str__(self) -> str:
        true = self.matching + self.missing.size
        if self.passed:
            return f"PASSED: all {true:,} true categories, and no others"
        return (
            f"FAILED: {self.matching:,} of {true:,} true categories match; "
            f"{_named(self.missing)} missing, {_named(self.unexpected)} unexpected (samples are counted from 1)"
        )


def compare_categories(found: Array, truth: Array) -> Verification:
    """Compare two vectors of categories as sets; order and repetition do not matter."""
    matching = np.intersect1d(found, truth)
    return Verification(int(matching.size), np.setdiff1d(truth, matching), np.setdiff1d(found, matching))


def _named(categories: Array) -> str:
    if not categories.size:
        return "none"
    first = ", ".join(str(int(category) + 1) for category in categories[:NAMED])
    return f"{categories.size:,} ({first}{', …' if categories.size > NAMED else ''})"
