"""Rooflines as tables, pictures and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.plots import new_figure, save_figure
from sparsenn.report.quantities import count, milliseconds, significant
from sparsenn.report.tables import fact_table
from sparsenn.studies.measure import MeasuredRoofs, Roofs
from sparsenn.studies.roofline import MEMORY, SHARED, Prediction, RooflineResult
from sparsenn.studies.run import RungResult

SPAN = 4.0
"""The factor by which roofs extend beyond the outermost point and the outermost ridge."""

# Factors on the logarithmic axes.
LABEL_DISTANCE = 1.12  # from a point to its name
LABEL_LENGTH = 3.0  # from the beginning of a name to its end
LABEL_HEIGHT = 1.16  # from one name to the next


def _bandwidths(roofs: Roofs) -> dict[str, float]:
    known = {MEMORY: roofs.copy_bandwidth, roofs.cache: roofs.cache_bandwidth, SHARED: roofs.shared_bandwidth}
    return {name: bandwidth for name, bandwidth in known.items() if bandwidth is not None}


def roofs_table(measured: MeasuredRoofs) -> Table:
    """Return the table of a device's ceilings."""
    roofs = measured.roofs
    memories = ((f"{name} bandwidth", f"{rate / 1e9:,.0f} GB/s") for name, rate in _bandwidths(roofs).items())
    rates = ((f"{name} rate", f"{2 * rate / 1e12:,.3g} TFLOP/s") for name, rate in roofs.multiply_adds.items())
    origin = "measured now" if measured.measured else "measured before, on this device"
    return fact_table(
        [
            ("device", f"{measured.identity.device} ({measured.identity.driver})"),
            *memories,
            (f"{roofs.cache} cache", f"{count(roofs.cache_bytes)} bytes"),
            *rates,
            ("ceilings", origin),
        ]
    )


def roofs_record(measured: MeasuredRoofs) -> dict[str, Any]:
    """Return a device's ceilings as plain values: rates in bytes and in multiply-adds a second."""
    return asdict(measured.identity) | asdict(measured.roofs) | {"measured_now": measured.measured}


def roofline_table(result: RooflineResult) -> Table:
    """Return the table of a ladder's predictions beside its measured times: a line a rung."""
    ladder = result.ladder
    rows = f"{count(ladder.rows)} {ladder.row}{'' if ladder.rows == 1 else 's'}"
    title = f"{ladder.operation} on {ladder.device}: {rows}"
    importance = {"bytes": 1, "operations": 2, "operations/byte": 3, "GFLOP/s": 4}
    sizes = "bytes", "operations", "operations/byte", "predicted ms", "measured ms", "measured / predicted", "GFLOP/s"
    columns = *unbroken("kernel", "model"), *numbers(*sizes), "bound by"
    table = FittedTable(*columns, importance=importance, title=title, caption=_caption(result))
    for rung, prediction in zip(ladder.rungs, result.predictions, strict=True):
        table.add_row(Text(rung.name), *_cells(result, rung, prediction))
    return table


def _caption(result: RooflineResult) -> str:
    caption = (
        f"Medians of {result.ladder.runs} runs. A prediction is the longest of the times that memory, "
        f"caches and arithmetic would each take at their measured ceilings."
    )
    if any(prediction.model == "compulsory" for prediction in result.predictions):
        caption += (
            " Compulsory: there is no model of what the kernel moves; the bytes are those that any kernel must move,"
            " each once from memory. What a cache still holds from the previous run comes faster."
        )
    if any(prediction.source not in (MEMORY, "") for prediction in result.predictions):
        caption += (
            f" Other models count the bytes that blocks read and write, from {result.roofs.cache} if that holds them."
        )
    if result.beyond:
        caption += (
            f" Faster than the ceilings of arithmetic allow: {', '.join(result.beyond)}. The ceilings were measured "
            "too low, as happens on a busy machine; run --measure."
        )
    return caption


def _cells(result: RooflineResult, rung: RungResult, prediction: Prediction) -> tuple[str, ...]:
    rate = result.rate(rung)
    return (
        prediction.model,
        count(prediction.bytes),
        count(prediction.operations),
        significant(prediction.intensity),
        milliseconds(prediction.seconds),
        milliseconds(rung.seconds) if rung.correct else "wrong",
        "–" if not rung.seconds or not prediction.seconds else significant(rung.seconds / prediction.seconds),
        "–" if not rate else significant(rate / 1e9),
        prediction.bound,
    )


def roofline_record(result: RooflineResult) -> dict[str, Any]:
    """Return a roofline's result as a dictionary, for `to_json`."""
    ladder = result.ladder
    rungs = [
        {
            "name": rung.name,
            "precision": rung.precision,
            "correct": rung.correct,
            **asdict(prediction),
            "intensity": prediction.intensity,
            "predicted_seconds": prediction.seconds,
            "measured_seconds": rung.seconds,
            "spread": rung.spread,
            "operations_per_second": result.rate(rung),
        }
        for rung, prediction in zip(ladder.rungs, result.predictions, strict=True)
    ]
    for entry in rungs:
        del entry["seconds"]
    return {
        "operation": ladder.operation,
        "device": ladder.device,
        "stages": ladder.stages,
        "rows": ladder.rows,
        "runs": ladder.runs,
        "bytes": ladder.bytes,
        "multiply_adds": ladder.multiply_adds,
        "rungs": rungs,
        "left_out": dict(ladder.left_out),
    }


def draw_roofline(results: Sequence[RooflineResult], roofs: Roofs, title: str, path: Path) -> None:
    """Draw a roof a memory and a precision, and a labelled point a rung, both axes logarithmic.

    Rungs that were not timed have no point, nor have those that do no arithmetic.
    """
    figure = new_figure(10, 7)
    axes = figure.subplots()
    points = {result.ladder.operation: _points(result) for result in results}
    every = [point for found in points.values() for point in found]
    highest = 2 * max(roofs.multiply_adds.values())
    places = [*(highest / bandwidth for bandwidth in _bandwidths(roofs).values()), *(point[1] for point in every)]
    left, right = min(places) / SPAN, max(places) * SPAN
    _draw_roofs(axes, roofs, left, right)
    for number, (operation, found) in enumerate(points.items()):
        if found:
            axes.plot(*zip(*(point[1:] for point in found), strict=True), "o", color=f"C{number}", label=operation)
    for (name, intensity, rate), height in zip(every, _label_heights(every), strict=True):
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "grey"}
        beside = intensity * LABEL_DISTANCE, height
        axes.annotate(name, (intensity, rate), beside, arrowprops=line, fontsize=8, verticalalignment="center")
    axes.set(xscale="log", yscale="log", xlim=(left, right), title=title)
    axes.set(xlabel="operations per byte", ylabel="operations per second")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    save_figure(figure, path)


def _label_heights(points: Sequence[tuple[str, float, float]]) -> list[float]:
    """Return where the names of points go, on the axis of rates: beside the points, but not one upon the other."""
    heights = [rate for _, _, rate in points]
    placed: list[tuple[float, float]] = []  # intensity and height
    for number in sorted(range(len(points)), key=lambda number: points[number][2]):
        _, intensity, height = points[number]
        for other, taken in placed:
            near = max(intensity, other) < LABEL_LENGTH * min(intensity, other)
            if near and height < taken * LABEL_HEIGHT:
                height = max(height, taken * LABEL_HEIGHT)
        placed = sorted([*placed, (intensity, height)], key=lambda place: place[1])
        heights[number] = height
    return heights


def _points(result: RooflineResult) -> list[tuple[str, float, float]]:
    found = []
    for rung, prediction in zip(result.ladder.rungs, result.predictions, strict=True):
        rate = result.rate(rung)
        if rate and prediction.intensity:
            found.append((rung.name, prediction.intensity, rate))
    return found


def _draw_roofs(axes: Any, roofs: Roofs, left: float, right: float) -> None:
    highest = 2 * max(roofs.multiply_adds.values())
    for style, (name, bandwidth) in zip(("-", "--", ":"), _bandwidths(roofs).items(), strict=False):
        end = min(right, highest / bandwidth)
        if end > left:
            axes.plot([left, end], [left * bandwidth, end * bandwidth], style, color="black")
        axes.plot([], [], style, color="black", label=f"{name}, {bandwidth / 1e9:,.0f} GB/s")
    for style, (name, multiply_adds) in zip(("-", "--", ":"), roofs.multiply_adds.items(), strict=False):
        axes.axhline(2 * multiply_adds, color="grey", linestyle=style)
        axes.plot([], [], style, color="grey", label=f"{name}, {2 * multiply_adds / 1e12:,.3g} TFLOP/s")
