"""A model's run on data as text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from sparsenn.engine import LayerStatistics, Result
from sparsenn.network import Network
from sparsenn.printable import printable
from sparsenn.report.architecture import layer_title, shape_text
from sparsenn.report.fitting import FittedTable, numbers, unbroken
from sparsenn.report.quantities import UNCOUNTED, count, duration, milliseconds, rows_text
from sparsenn.report.summary import parts_of
from sparsenn.report.tables import TEXT_WIDTH, fact_table
from sparsenn.report.training import evaluation_text

_CLASSES = 10  # classes whose rows the summary counts


def model_summary(model: str, data: str, run: Any) -> Table:
    """Return what was run, how, how well it did and how long it took, as a table of two columns."""
    network, seconds, rows = run.plan.network, run.seconds, run.plan.inputs
    enlarged = "" if network.image is None or not run.enlarged else f", enlarged to {shape_text(network.image)}"
    facts = [
        *_given(model, network, "sample", f"{data}, {rows_text(rows)}{enlarged}"),
        *([] if run.model.scaling is None else [("scaling", str(run.model.scaling))]),
        ("plan", str(run.plan)),
        *(("note", note) for note in run.notes),
        ("result", "no targets to compare with" if run.evaluation is None else evaluation_text(run.evaluation)),
        *([("classes", _classes(run))] if run.model.classes else []),
        ("time", parts_of(seconds)),
        ("compute", f"{duration(seconds.compute)}, {_rate(rows, seconds.compute)}"),
    ]
    return fact_table(facts, TEXT_WIDTH)


def model_layer_table(network: Network, statistics: tuple[LayerStatistics, ...]) -> Table:
    """Return the table by layer: what it is, the kernel that ran it, the shape of its outputs, and milliseconds."""
    table = FittedTable(
        *numbers("layer"), "what", *unbroken("kernel"), *numbers("outputs", "time (ms)"), title="layers"
    )
    for layer, shape, found in zip(network, network.shapes[1:], statistics, strict=True):
        cells = (layer_title(layer), found.kernel, shape_text(shape), milliseconds(found.seconds))
        table.add_row(str(found.layer), *map(Text, cells))
    return table


def model_record(model: str, data: str, run: Any) -> dict[str, Any]:
    """Return a model's run as a dictionary, for `to_json`.

    The keys are model, inputs, rows, scaling (as text, or None), image (the model's, or None), enlarged, loss, value,
    accuracy, device, plan, notes, seconds (read, plan, prepare, transfer, compile, compute, total), multiply_adds (of
    one input), per_layer (the engine's statistics, what the layer is multiplied in, what it is and the shape of its
    outputs), class_names (None where they are called 0, 1, …) and predicted (the class of each row, counted from 0;
    None for a model without classes), in this order. Loss, value and accuracy are None where the data
    have no targets.
    """
    network, evaluation = run.plan.network, run.evaluation
    layers = zip(network, network.shapes[1:], run.plan.precisions, run.statistics, strict=True)
    return {
        "model": model,
        "inputs": data,
        "rows": run.plan.inputs,
        "scaling": None if run.model.scaling is None else str(run.model.scaling),
        "image": network.image,
        "enlarged": run.enlarged,
        "loss": evaluation and evaluation.loss,
        "value": evaluation and evaluation.value,
        "accuracy": evaluation and evaluation.accuracy,
        "device": run.plan.device,
        "plan": run.plan.to_dict(),
        "notes": run.notes,
        "seconds": {**asdict(run.seconds), "total": run.seconds.total},
        "multiply_adds": network.multiply_adds,
        "per_layer": [
            {**asdict(found), "precision": precision, "what": layer_title(layer), "outputs": shape}
            for layer, shape, precision, found in layers
        ],
        "class_names": run.model.class_names,
        "predicted": run.predicted.tolist() if run.model.classes else None,
    }


def table_summary(model: str, network: Network, data: str, rows: int, notes: Sequence[str], seconds: float) -> Table:
    """Return a table's predictions in words, as a table of two columns."""
    facts = [
        *_given(model, network, "row", f"{data}, {rows_text(rows)}"),
        *(("note", note) for note in notes),
        ("time", f"{duration(seconds)}, {_rate(rows, seconds)}"),
    ]
    return fact_table(facts, TEXT_WIDTH)


def prediction_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return some rows of predictions as a table."""
    table = FittedTable(*unbroken(*map(printable, columns)))
    for row in rows:
        cells = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values())
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def stream_summary(model: str, data: str, result: Result) -> Table:
    """Return a model's run over the rows of a file that was read in chunks, as a table of two columns."""
    facts = [
        *_given(model, result.plan.network, "row", f"{data}, {rows_text(result.inputs)}"),
        ("plan", str(result.plan)),
        *(("note", note) for note in result.notes),
        ("time", parts_of(result.seconds)),
    ]
    return fact_table(facts, TEXT_WIDTH)


def stream_record(model: str, data: str, result: Result) -> dict[str, Any]:
    """Return such a run as a dictionary, for `to_json`.

    The keys are model, inputs, rows, device, plan, notes, seconds and per_layer, as in `model_record`.
    """
    return {
        "model": model,
        "inputs": data,
        "rows": result.inputs,
        "device": result.plan.device,
        "plan": result.plan.to_dict(),
        "notes": result.notes,
        "seconds": {**asdict(result.seconds), "total": result.seconds.total},
        "per_layer": [asdict(layer) for layer in result.statistics],
    }


def _given(model: str, network: Network, row: str, data: str) -> list[tuple[str, str]]:
    shapes = " → ".join(map(shape_text, network.shapes))
    per_row = f"{count(network.multiply_adds)} multiply-adds per {row}{UNCOUNTED * network.has_foreign_layers}"
    return [("model", model), ("network", f"{shapes}; {per_row}"), ("data", data)]


def _classes(run: Any) -> str:
    counts = np.bincount(run.predicted)
    most = np.argsort(-counts, kind="stable")[: min(_CLASSES, np.count_nonzero(counts))]
    names = run.model.class_names
    classes = ", ".join(f"{names[number] if names else number}: {rows_text(int(counts[number]))}" for number in most)
    more = "" if np.count_nonzero(counts) <= _CLASSES else ", …"
    return f"{classes}{more}" + ("" if names else " (classes count from 0)")


def _rate(rows: int, seconds: float) -> str:
    return f"{count(round(rows / seconds))} rows/s" if seconds else "too short to measure"
