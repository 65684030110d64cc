"""The summary of a finished inference, and its categories against the true ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from rich.table import Table
from rich.text import Text

from sparsenn.engine import Result, Seconds
from sparsenn.formats import Array
from sparsenn.report.quantities import count, duration, percentage, rate
from sparsenn.report.tables import TEXT_WIDTH, fact_table

NAMED = 5
"""How many wrong categories of each kind a sentence names; the rest is counted."""


@dataclass(frozen=True, eq=False)
class Verification:
    """What a set of categories and the true set have in common, and where they differ.

    matching : categories that are in both sets.
    missing : true categories that were not found; sorted int64, counted from 0.
    unexpected : categories found that are not true; sorted int64, counted from 0.
    undecided : how many of the missing and unexpected ones are within float32's rounding of zero, so that the order of
        sums decides whether they are categories (docs/exactness.md); None where that is not known.
    """

    matching: int
    missing: Array
    unexpected: Array
    undecided: int | None = None

    @property
    def passed(self) -> bool:
        """Whether the two sets are equal."""
        return not self.different.size

    @property
    def different(self) -> Array:
        """The missing and the unexpected categories."""
        return np.concatenate([self.missing, self.unexpected])

    def __str__(self) -> str:
        true = self.matching + self.missing.size
        if self.passed:
            return f"PASSED: all {true:,} true categories, and no others"
        return (
            f"FAILED: {self.matching:,} of {true:,} true categories match; {_named(self.missing)} missing, "
            f"{_named(self.unexpected)} unexpected (samples are counted from 1){self._rounding()}"
        )

    def _rounding(self) -> str:
        if self.undecided is None:
            return ""
        number = f"{self.undecided:,}" if self.undecided else "none"
        return f"; {number} of these within float32's rounding of zero, where the order of sums decides"


def compare_categories(found: Array, truth: Array) -> Verification:
    """Compare two vectors of categories as sets; order and repetition do not matter."""
    matching = np.intersect1d(found, truth)
    return Verification(int(matching.size), np.setdiff1d(truth, matching), np.setdiff1d(found, matching))


def _named(categories: Array) -> str:
    if not categories.size:
        return "none"
    first = ", ".join(str(int(category) + 1) for category in categories[:NAMED])
    return f"{categories.size:,} ({first}{', …' if categories.size > NAMED else ''})"


def summary(
    name: str | None, result: Result, verdict: Verification | str | None, provenance: Mapping[str, str] | None = None
) -> Table:
    """Return the summary: problem, plan, notes, time, the challenge's rate, performed edges, categories and verdict."""
    note = inputs_note(provenance or {})
    sizes = f"{count(result.inputs)} samples × {count(result.neurons)} neurons × {count(result.layers)} layers"
    share = f"{percentage(result.performed_edges, result.inputs * result.edges)} of samples × edges"
    style = "" if verdict is None or isinstance(verdict, str) else "bold green" if verdict.passed else "bold red"
    facts: list[tuple[str, str | Text]] = [
        *([] if name is None else [("dataset", name)]),
        ("problem", f"{sizes}, {count(result.edges)} edges"),
        *([("inputs", note)] if note else []),
        ("plan", str(result.plan)),
        *(("note", note) for note in result.notes),
        ("time", parts_of(result.seconds)),
        ("rate", f"{rate(result.edges_per_second)} (samples × edges / all time except reading)"),
        *([("performed", f"{count(result.performed_edges)} edges, {share}")] if result.statistics else []),
        (
            "categories",
            f"{count(result.categories.size)} of {count(result.inputs)} samples; files and JSON count samples from 1",
        ),
        *([] if verdict is None else [("verification", Text(str(verdict), style=style))]),
    ]
    return fact_table(facts, TEXT_WIDTH)


def inputs_note(provenance: Mapping[str, str]) -> str:
    """Return a sentence for inputs that stand in for MNIST's, whose rates are not comparable; empty for all others."""
    source = provenance.get("inputs", "")
    if not source.startswith("procedural digits"):
        return ""
    return f"stand-in digits ({source}), not MNIST: rates and categories are not those of the challenge's inputs"


def parts_of(seconds: Seconds) -> str:
    """Return where the time of a run went."""
    parts = ", ".join(f"{name} {duration(part)}" for name, part in asdict(seconds).items())
    return f"{duration(seconds.total)}: {parts}"
