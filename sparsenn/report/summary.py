"""The summary of a finished inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from sparsenn.engine import Result, Seconds
from sparsenn.report.quantities import count, duration, percentage, rate
from sparsenn.report.tables import TEXT_WIDTH, fact_table
from sparsenn.report.verification import Verification


def summary(
    name: str | None, result: Result, verdict: Verification | str | None, provenance: Mapping[str, str] | None = None
) -> Table:
    """Return the summary: problem, plan, notes, time, the challenge's rate, performed edges, categories and verdict."""
    note = inputs_note(provenance or {})
    facts: list[tuple[str, str | Text]] = [
        *([] if name is None else [("dataset", name)]),
        ("problem", _problem(result)),
        *([("inputs", note)] if note else []),
        ("plan", str(result.plan)),
        *(("note", note) for note in result.notes),
        ("time", parts_of(result.seconds)),
        ("rate", f"{rate(result.edges_per_second)} (samples × edges / all time except reading)"),
        *([("performed", _performed(result))] if result.statistics else []),
        (
            "categories",
            f"{count(result.categories.size)} of {count(result.inputs)} samples; files and JSON count samples from 1",
        ),
        *([] if verdict is None else [("verification", _verdict(verdict))]),
    ]
    return fact_table(facts, TEXT_WIDTH)


def inputs_note(provenance: Mapping[str, str]) -> str:
    """Return a sentence for inputs that stand in for MNIST's, whose rates are not comparable; empty for all others."""
    source = provenance.get("inputs", "")
    if not source.startswith("procedural digits"):
        return ""
    return f"stand-in digits ({source}), not MNIST: rates and categories are not those of the challenge's inputs"


def _problem(result: Result) -> Text:
    return Text(
        f"{count(result.inputs)} samples × {count(result.neurons)} neurons × {count(result.layers)} layers, "
        f"{count(result.edges)} edges"
    )


def parts_of(seconds: Seconds) -> str:
    """Return where the time of a run went."""
    parts = ", ".join(f"{name} {duration(part)}" for name, part in asdict(seconds).items())
    return f"{duration(seconds.total)}: {parts}"


def _performed(result: Result) -> Text:
    share = percentage(result.performed_edges, result.inputs * result.edges)
    return Text(f"{count(result.performed_edges)} edges, {share} of samples × edges")


def _verdict(verdict: Verification | str) -> Text:
    if isinstance(verdict, str):
        return Text(verdict)
    return Text(str(verdict), style="bold green" if verdict.passed else "bold red")
