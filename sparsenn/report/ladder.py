"""Ladders as tables, pictures and JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.plots import new_figure, save_figure
from sparsenn.report.quantities import count, milliseconds, percentage
from sparsenn.studies.run import LadderResult, RungResult


def ladder_table(result: LadderResult) -> Table:
    """Return the table of a ladder: a line a rung, and no column of which nothing is known; no number is cut."""
    if result.roofs is None:
        return _answers(result)
    per_stage = f"ms per {result.stage}"
    times = per_stage, "ms in all" if result.stages > 1 else "ms", "spread", "in kernel", "speed-up", "% of roofline"
    columns = *unbroken("kernel"), "precision", *numbers(*times, "registers", "shared memory", "largest error")
    importance = {per_stage: 3, "spread": 5, "in kernel": 4, "registers": 1, "shared memory": 2}
    caption = (
        f"Medians and interquartile ranges of {result.runs} runs. Floor: {milliseconds(result.floor_seconds)} ms, for "
        f"{count(result.bytes)} bytes at {result.roofs.copy_bandwidth / 1e9:,.0f} GB/s and "
        f"{count(result.multiply_adds)} float32 multiply-adds at "
        f"{result.roofs.multiply_adds['float32'] / 1e9:,.0f} billion a second, as measured."
    )
    if any((result.floor_share(rung) or 0) > 1 for rung in result.rungs):
        caption += (
            " Above 100 %: caches hold what is read, or the device was busy when it was measured; kernels roofline "
            "--measure measures it anew."
        )
    caption += _caption(result)
    table = FittedTable(*columns, importance=importance, title=_title(result), caption=caption)
    mixed = any(rung.precision != "float32" for rung in result.rungs)
    for rung in result.rungs:
        table.add_row(Text(rung.name), rung.precision if mixed else "–", *_cells(result, rung))
    return table


def _title(result: LadderResult) -> str:
    stages = f"{result.stages} {result.stage}{'s' if result.stages > 1 else ''}"
    rows = f"{count(result.rows)} {result.row}{'s' if result.rows > 1 else ''}"
    return f"{result.operation} on {result.device}: {rows}, {stages}"


def _answers(result: LadderResult) -> Table:
    columns = *unbroken("kernel"), "answer", *numbers("largest error"), "summary"
    caption = f"Answers only; nothing is timed.{_caption(result)}"
    table = FittedTable(*columns, title=_title(result), caption=caption)
    for rung in result.rungs:
        answer = "correct" if rung.correct else "wrong"
        table.add_row(Text(rung.name), answer, f"{rung.error:.2e}", Text(rung.summary))
    return table


def _caption(result: LadderResult) -> str:
    caption = " Errors are relative to the reference's largest output." if result.scaled else ""
    if result.note:
        caption += f" {result.note}"
    by_reason: dict[str, list[str]] = {}
    for name, reason in result.left_out:
        by_reason.setdefault(reason, []).append(name)
    return caption + "".join(f" Left out, because {reason}: {', '.join(names)}." for reason, names in by_reason.items())


def _cells(result: LadderResult, rung: RungResult) -> tuple[str, ...]:
    if rung.seconds is None:
        return ("–", "wrong", *["–"] * 6, f"{rung.error:.2e}")
    speedup, share = result.speedup(rung), result.floor_share(rung)
    return (
        milliseconds(rung.seconds / result.stages) if result.stages > 1 else "–",
        milliseconds(rung.seconds),
        milliseconds(rung.spread),
        milliseconds(rung.kernel_seconds),
        "–" if speedup is None else f"{speedup:,.2f}",
        "–" if share is None else percentage(share, 1),
        "–" if rung.registers is None else count(rung.registers),
        "–" if rung.shared_bytes is None else f"{count(rung.shared_bytes)} B",
        f"{rung.error:.2e}",
    )


def ladder_record(result: LadderResult) -> dict[str, Any]:
    """Return a ladder's result as a dictionary, for `to_json`.

    Every rung has its speed-up and its share of the floor besides what `RungResult` holds.
    """
    record = asdict(result)
    record["ceilings"] = record.pop("roofs")
    for rung, entry in zip(result.rungs, record["rungs"], strict=True):
        entry["speedup"] = result.speedup(rung)
        entry["floor_share"] = result.floor_share(rung)
    return record


def draw_ladder(result: LadderResult, path: Path) -> None:
    """Draw a bar a rung, the time on a logarithmic axis, with the floor."""
    timed = [rung for rung in result.rungs if rung.seconds is not None]
    figure = new_figure(8, 1.5 + 0.4 * len(timed))
    axes = figure.subplots()
    bars = axes.barh([rung.name for rung in timed], [1e3 * (rung.seconds or 0.0) for rung in timed], color="C0")
    axes.bar_label(bars, [milliseconds(rung.seconds) for rung in timed], padding=3)
    axes.axvline(1e3 * result.floor_seconds, color="C3", linestyle="--", label="physical floor")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(xlabel="time (ms)", title=_title(result))
    axes.legend()
    save_figure(figure, path)
