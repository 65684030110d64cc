"""Rates of the challenge's problems: on the terminal, as JSON, and as a table for a submission."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.quantities import count, significant
from sparsenn.report.records import origin_record
from sparsenn.report.summary import inputs_note
from sparsenn.studies.challenge import ChallengeResult

TABLE_SUFFIXES = (".md", ".tex", ".csv")

_HEADINGS = (
    *("problem", "inputs", "edges", "savings", "cold (s)", "cold TeraEdges/s", "warm (s)", "warm TeraEdges/s"),
    "verified",
)
_CAPTION = (
    "TeraEdges/s: inputs × edges / time, in 1e12 a second, from network and inputs in memory to the categories there. "
    "Cold: the first run, with planning, compiling and preparing weights; warm: the median of later runs. "
    "Savings: dead rows, equal rows and equal neurons are computed once or not at all. "
    "Generating the problem and its truth is not in any time."
)
_UNVERIFIED = (
    "Verified NO: sparsenn challenge run says which categories differ, and how many of them by rounding; where savings "
    "are off, with --no-compaction --no-deduplication --no-merging."
)


def challenge_table(results: Sequence[ChallengeResult]) -> Table:
    """Return the table of some problems, two lines each: with savings and without."""
    title = f"Sparse DNN Graph Challenge on {results[0].device}"
    table = FittedTable(*unbroken(_HEADINGS[0]), *numbers(*_HEADINGS[1:]), title=title, caption=_notes(results))
    for row in _rows(results):
        table.add_row(*map(Text, row))
    return table


def challenge_record(results: Sequence[ChallengeResult]) -> dict[str, Any]:
    """Return the runs of some problems for `to_json`; times are in seconds, rates in edges/s.

    Every problem has the keys dataset, provenance, version, machine, then those of `ChallengeResult`; each of its runs
    those of `ChallengeRuns`, cold_edges_per_second and warm_edges_per_second.
    """
    problems = []
    for result in results:
        runs = [
            asdict(run)
            | {
                "cold_edges_per_second": result.rate(run.cold),
                "warm_edges_per_second": result.rate(run.seconds),
            }
            for run in result.runs
        ]
        sizes = {name: value for name, value in asdict(result).items() if name not in ("name", "provenance", "runs")}
        problems.append(origin_record(result.name, result.provenance) | sizes | {"runs": runs})
    return {"problems": problems}


def challenge_document(results: Sequence[ChallengeResult], suffix: str) -> str:
    """Return the table as text for a submission: Markdown, LaTeX or CSV, by one of `TABLE_SUFFIXES`."""
    rows = _rows(results)
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_HEADINGS, *rows])
        return text.getvalue().replace("×", "x")
    if suffix == ".tex":
        lines = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
        head = [
            rf"% {_notes(results)}",
            rf"\begin{{tabular}}{{l{'r' * (len(_HEADINGS) - 1)}}}",
            r"\hline",
            " & ".join(map(_escaped, _HEADINGS)) + r" \\",
            r"\hline",
        ]
        return "\n".join([*head, *lines, r"\hline", r"\end{tabular}", ""])
    marks = ["---", *["---:"] * (len(_HEADINGS) - 1)]
    lines = [f"| {' | '.join(row)} |" for row in (_HEADINGS, marks, *rows)]
    return "\n".join([*lines, "", _notes(results), ""])


def _rows(results: Sequence[ChallengeResult]) -> list[list[str]]:
    return [
        [
            f"{result.neurons} × {result.layers}",
            count(result.inputs),
            count(result.edges),
            "on" if run.savings else "off",
            significant(run.cold),
            significant(result.rate(run.cold) / 1e12),
            significant(run.seconds),
            significant(result.rate(run.seconds) / 1e12),
            {True: "yes", False: "NO", None: "–"}[run.verified],
        ]
        for result in results
        for run in result.runs
    ]


def _notes(results: Sequence[ChallengeResult]) -> str:
    origin = origin_record("", {})
    notes = list(dict.fromkeys(inputs_note(result.provenance) for result in results))
    parts = [_CAPTION, *[f"Inputs: {note}." for note in notes if note]]
    if any(run.verified is False for result in results for run in result.runs):
        parts.append(_UNVERIFIED)
    return " ".join([*parts, f"{results[0].device}; {origin['machine']}; sparsenn {origin['version']}."])


def _escaped(text: str) -> str:
    return text.replace("×", r"$\times$").replace("–", "--").replace("_", r"\_").replace("%", r"\%")
