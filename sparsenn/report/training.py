"""Trainings and evaluations as text, pictures and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from sparsenn.backends.trainer import Evaluation, TrainingResult
from sparsenn.formats import TableEncoding
from sparsenn.model import Model
from sparsenn.printable import printable
from sparsenn.report.fitting import FittedTable, numbers
from sparsenn.report.plots import new_figure, save_figure
from sparsenn.report.quantities import count, duration, percentage, rows_text
from sparsenn.report.tables import TEXT_WIDTH, fact_table

_NAMES = 12  # columns and classes that are named

_LINES = 10
"""Epochs that the table of losses shows, the first and the last among them."""


def training_summary(name: str, result: TrainingResult, model: Model | None = None, notes: Sequence[str] = ()) -> Table:
    """Return what was trained, how, and how well, as a table of two columns."""
    network = result.network
    done = f"{count(result.epochs)} of {count(result.rows)} rows"
    if result.first_epoch:
        done += f", {count(result.first_epoch)} of them before this run"
    facts = [
        ("data", name),
        *(("note", note) for note in notes),
        *([] if model is None else model_facts(model)),
        ("network", f"{' → '.join(map(count, network.sizes))}; {count(network.edges)} weights"),
        ("computed by", _computed_by(result)),
        ("epochs", done),
        ("time", _time(result)),
        (
            f"loss ({result.loss})" + ("" if result.target_scaling is None else ", targets scaled"),
            f"{result.losses[0]:.6g} → {result.losses[-1]:.6g}",
        ),
    ]
    if result.evaluation is not None:
        facts.append(("training rows", evaluation_text(result.evaluation)))
    if result.validation:
        facts.append(("validation", evaluation_text(result.validation[-1][1])))
    if result.baseline is not None:
        facts.append(
            ("baseline", f"{evaluation_text(result.baseline)}: always predicting the mean of the training targets")
        )
    return fact_table(facts, TEXT_WIDTH)


def model_facts(model: Model) -> list[tuple[str, str]]:
    """Return what a model takes and gives, in words: columns of a table, classes, scaling."""
    facts = [] if model.encoding is None else _table_facts(model.encoding)
    if model.classes:
        facts.append(("classes", _classes(model)))
    return facts if model.scaling is None else [*facts, ("scaling", str(model.scaling))]


def _table_facts(encoding: TableEncoding) -> list[tuple[str, str]]:
    columns = [
        f"{column.name} ({count(column.width)} categories)" if column.categories is not None else column.name
        for column in encoding.columns
    ]
    counted = "" if encoding.named else " (counted from 1)"
    facts = [("columns", _first(columns) + counted), ("target", _first(encoding.targets) + counted)]
    filled = any(column.fill is not None for column in encoding.columns)
    return [*facts, ("missing", "filled in: the column's mean, or its most frequent text")] if filled else facts


def _classes(model: Model) -> str:
    if model.class_names is None:
        return f"{count(model.network.outputs)}, counted from 0"
    return f"{count(len(model.class_names))}: {_first(model.class_names)}"


def _first(names: Sequence[str]) -> str:
    more = f" and {count(len(names) - _NAMES)} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def evaluation_text(evaluation: Evaluation) -> str:
    """Return an evaluation in one line: loss, accuracy of classes, rows."""
    accuracy = "" if evaluation.accuracy is None else f", accuracy {100 * evaluation.accuracy:.2f} %"
    return f"{evaluation.loss} {evaluation.value:.6g}{accuracy}, over {rows_text(evaluation.rows)}"


def loss_table(result: TrainingResult) -> Table:
    """Return the table of losses by epoch: some epochs, evenly spread."""
    found = dict(result.validation)
    accuracies = any(evaluation.accuracy is not None for evaluation in found.values())
    headings = "epoch", "loss", *(["validation"] if found else []), *(["accuracy"] if accuracies else [])
    table = FittedTable(*numbers(*headings), title="by epoch")
    last = result.epochs
    steps = max(1, min(_LINES, last) - 1)
    for number in sorted({1 + round(step * (last - 1) / steps) for step in range(steps + 1)}):
        cells = [count(number), f"{result.losses[number - 1]:.6g}"]
        evaluation = found.get(number)
        if found:
            cells.append("–" if evaluation is None else f"{evaluation.value:.6g}")
        if accuracies:
            accuracy = None if evaluation is None else evaluation.accuracy
            cells.append("–" if accuracy is None else percentage(accuracy, 1.0))
        table.add_row(*cells)
    return table


def _time(result: TrainingResult) -> str:
    speed, compiled = result.rows_per_second, result.compile_seconds
    rate = "" if speed is None else f"; {speed:,.0f} rows/s"
    return duration(result.seconds) + rate + (f"; compile {duration(compiled)}" if compiled else "")


def training_record(result: TrainingResult) -> dict[str, Any]:
    """Return a training as a dictionary, for `to_json`.

    The keys are options, device, kernel, precision, classes, epochs, first_epoch, seconds, compile_seconds,
    rows_per_second, losses (one an epoch), validation (a list of epoch, rows, loss, value, accuracy), scaling (as text,
    or None), evaluation (on the rows trained with, or None) and baseline (each with rows, loss, value, accuracy), in
    this order.
    """
    return {
        "options": dict(result.options),
        "device": result.device,
        "kernel": result.kernel,
        "precision": result.precision,
        "classes": result.classes,
        "epochs": result.epochs,
        "first_epoch": result.first_epoch,
        "seconds": result.seconds,
        "compile_seconds": result.compile_seconds,
        "rows_per_second": result.rows_per_second,
        "losses": list(result.losses),
        "validation": [{"epoch": epoch} | asdict(evaluation) for epoch, evaluation in result.validation],
        "scaling": None if result.scaling is None else str(result.scaling),
        "evaluation": result.evaluation and asdict(result.evaluation),
        "baseline": result.baseline and asdict(result.baseline),
    }


def draw_losses(result: TrainingResult, path: Path, title: str = "") -> None:
    """Draw the losses by epoch on a logarithmic axis, and the accuracy below where there are classes."""
    points = [(epoch, found.value, found.accuracy) for epoch, found in result.validation]
    accuracies = [(epoch, accuracy) for epoch, _, accuracy in points if accuracy is not None]
    figure = new_figure(8, 7 if accuracies else 4.5)
    from matplotlib.ticker import MaxNLocator

    figure.suptitle(printable(title), parse_math=False)
    panels = figure.subplots(2 if accuracies else 1, 1, sharex=True, squeeze=False)[:, 0]
    panels[0].plot(range(1, result.epochs + 1), result.losses, ".-", label="training")
    if points:
        panels[0].plot([epoch for epoch, _, _ in points], [value for _, value, _ in points], ".-", label="validation")
    if min(*result.losses, *(value for _, value, _ in points), 1.0) > 0:
        panels[0].set_yscale("log")
    panels[0].set_ylabel(result.loss)
    panels[0].legend()
    if accuracies:
        panels[1].plot(*zip(*accuracies, strict=True), ".-", color="C2")
        panels[1].set_ylabel("validation accuracy")
    panels[-1].set_xlabel("epoch")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels:
        axes.grid(alpha=0.3)
    save_figure(figure, path)


def _computed_by(result: TrainingResult) -> str:
    precision = [] if result.precision in result.device else [result.precision]
    return ", ".join([result.kernel, *precision, f"on {result.device}"])
