"""What tuning found, as tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.backends.tuning_table import Tuned
from sparsenn.report.fitting import FittedTable
from sparsenn.report.quantities import count, duration
from sparsenn.studies.tuning import Trial, TunedSizes, TuningResult

__all__ = ["tuned_record", "tuned_table", "tuning_record", "tuning_tables"]

UNTUNED = "as it comes"


def tuning_tables(result: TuningResult) -> tuple[Table, ...]:
    """Return a table for each sizes: a line a choice of numbers, the fastest first."""
    return tuple(_trials_table(result, found) for found in result.found)


def _trials_table(result: TuningResult, found: TunedSizes) -> Table:
    title = f"{result.operation} {result.rung} on {result.device}: {found.sizes}"
    caption = (
        f"Medians of {result.runs} runs, all choices one after the other; each was checked against the reference first."
    )
    table = FittedTable(title=title, caption=caption)
    table.add_column("numbers")
    table.add_column("ms", justify="right")
    for heading in ("speed-up", "largest error"):
        table.add_numbers(heading)
    for trial in sorted(found.trials, key=lambda trial: (trial.seconds is None, trial.seconds or 0.0)):
        table.add_row(Text(_words(trial.parameters)), *_cells(trial, found.untuned))
    return table


def _cells(trial: Trial, untuned: Trial) -> tuple[str, str, str]:
    if trial.refused is not None:
        return f"refused: {trial.refused}", "–", "–"
    if trial.seconds is None:
        return "wrong", "–", f"{trial.error:.2e}"
    speedup = f"{untuned.seconds / trial.seconds:,.3g}" if untuned.seconds else "–"
    return f"{1e3 * trial.seconds:,.4g}", speedup, f"{trial.error:.2e}"


def _words(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count(value)}" for name, value in numbers.items()) or UNTUNED


def tuned_table(entries: Sequence[Tuned]) -> Table:
    """Return the table of all stored parameters."""
    table = FittedTable()
    for heading in ("device", "operation", "kernel", "sizes", "numbers"):
        table.add_column(heading)
    for heading in ("time", "speed-up", "runs"):
        table.add_numbers(heading)
    for entry in entries:
        texts = (entry.device, entry.operation, entry.rung, entry.sizes, _words(entry.parameters))
        speedup = f"{entry.untuned_seconds / entry.seconds:,.3g}"
        table.add_row(*map(Text, texts), duration(entry.seconds), speedup, count(entry.runs))
    return table


def tuned_record(entries: Sequence[Tuned]) -> list[dict[str, Any]]:
    """Return the stored parameters as plain values, fit for JSON."""
    return [asdict(entry) for entry in entries]


def tuning_record(result: TuningResult, stored: Sequence[Tuned]) -> dict[str, Any]:
    """Return the choices that were tried and the stored ones as a dictionary of plain values, fit for JSON."""
    record = asdict(result)
    for sizes in record["found"]:
        for trial in sizes["trials"]:
            trial["error"] = trial["error"] if trial["error"] < float("inf") else None
    return record | {"stored": tuned_record(stored)}
