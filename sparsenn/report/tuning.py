"""Kernels that were measured ahead of time, as a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.table import Column, Table
from rich.text import Text

from sparsenn.engine import Plan
from sparsenn.engine.steps import bucket_of_choice, records_of
from sparsenn.printable import printable
from sparsenn.report.fitting import FittedTable, numbers
from sparsenn.report.quantities import count, duration


class Tuning(NamedTuple):
    """A plan, and what choosing its kernels took.

    plan : of some rows.
    seconds : of measuring, with compiling; a moment where the choice was stored already.
    """

    plan: Plan
    seconds: float

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Measured choices of consecutive layers, counted from 1; none for one candidate, or weights that stream."""
        place = bucket_of_choice(self.plan.inputs), self.plan.rows.form
        records = records_of(self.plan.compiled.choices.get(place, {}))
        for record in records:
            record["first"] += 1
            del record["steps"]
        return records


def tuning_table(name: str, tunings: Sequence[Tuning]) -> Table:
    """Return the table of measured choices; layers of one number of rows that were measured together share a line."""
    plan = tunings[0].plan
    caption = (
        "Times are of each stretch of layers. Measuring includes compiling; stored choices are not measured again."
    )
    if not all(tuning.choices for tuning in tunings):
        caption += " Where no second kernel is shown, there is no other candidate, or weights exceed the memory."
    kernel, second = Column("kernel", overflow="fold"), Column("second", overflow="fold")
    importance = {"times as long": 3, "runs agreed": 2, "measuring": 1}
    columns = *numbers("rows"), "layers", kernel, *numbers("time"), second, *numbers(*importance)
    title = printable(f"{name} on {plan.device}, {plan.options.precision}")
    table = FittedTable(*columns, importance=importance, title=title, caption=caption)
    for tuning in tunings:
        first, *others = _lines(tuning)
        table.add_row(count(tuning.plan.inputs), *map(Text, first), duration(tuning.seconds))
        for cells in others:
            table.add_row("", *map(Text, cells), "")
    return table


def _lines(tuning: Tuning) -> Iterator[tuple[str, ...]]:
    """Yield layers, kernels, time, second candidate, its time as a multiple, and runs that agreed."""
    layers: dict[tuple[str, ...], list[str]] = {}
    for chosen in tuning.choices:
        label, seconds = next(iter(chosen["others"].items()), ("–", None))
        multiple = "–" if seconds is None else f"{seconds / chosen['seconds']:.2f}"
        agreed = f"{chosen['wins']} of {chosen['runs']}" if chosen["runs"] else "–"
        words = chosen["kernel"], duration(chosen["seconds"]), label, multiple, agreed
        layers.setdefault(words, []).append(_span(chosen["first"], chosen["last"]))
    for cells, spans in layers.items():
        yield ", ".join(spans), *cells
    if not layers:
        plan = tuning.plan
        kernels = " and ".join(dict.fromkeys(kernel.name for kernel in plan.kernels))
        yield _span(1, len(plan.network)), kernels, "–", "–", "–", "–"


def _span(first: int, last: int) -> str:
    return f"{first}–{last}" if first < last else f"{last}"


def tuning_record(model: str, folder: str, tunings: Sequence[Tuning]) -> dict[str, Any]:
    """Return measured choices for JSON, by number of rows; times are in seconds."""
    plan = tunings[0].plan
    return {
        "model": model,
        "device": plan.device,
        "precision": plan.options.precision,
        "folder": folder,
        "rows": [
            {
                "rows": plan.inputs,
                "form": plan.rows.form,
                "measuring_seconds": tuning.seconds,
                "kernels": plan.to_dict()["kernels"],
                "choices": tuning.choices,
            }
            for tuning in tunings
            for plan in [tuning.plan]
        ],
    }
