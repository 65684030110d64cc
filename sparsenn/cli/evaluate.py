"""The part of `sparsenn infer` that runs a trained model on rows, and says how well it does where that is known."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenn.cli.console import console, reporting
from sparsenn.cli.targets import STDOUT, ResultTargets, drawing, write_json, write_page
from sparsenn.errors import UsageError
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.formats import Array, Scaling
    from sparsenn.model import Model
    from sparsenn.training import InputRows, ModelResult, TrainingData

__all__ = ["Rows", "evaluate_model", "read_given_rows"]


@dataclass(frozen=True)
class Rows:
    """What a model is run on.

    Parameters
    ----------
    inputs, labels, targets, classes : what `sparsenn.training.read_rows` takes; also classes if the model's are.
    limit : take the first so many rows; all unless given.
    scaling : what is done to the inputs first; None for what the model says.
    scale_bytes : whether the bytes of IDX images are scaled to 0 to 1.
    prune : the share of the model's weights that stays, the largest by magnitude; None for all.
    steps : of weights alone, what is applied and in which order; None for what the file says.
    """

    inputs: Path
    labels: Path | None
    targets: int | None
    classes: bool
    limit: int | None
    scaling: Scaling | None = None
    scale_bytes: bool = True
    prune: float | None = None
    steps: str | None = None


def evaluate_model(path: Path, rows: Rows, how: dict[str, Any], files: ResultTargets, progress: bool | None) -> None:
    """Read a model and rows, run it on them, print how, how well and how fast, and write what is asked for.

    Parameters
    ----------
    path : a model's file.
    rows : what to run it on.
    how : the options of `sparsenn.Session`, or `sparsenn.Sessions`.
    files : where results go, besides the summary.
    progress : whether to report it on stderr; None only on a terminal.

    Raises
    ------
    SparseNNError
        As reading and `sparsenn.training.run_model` do.
    """
    from sparsenn.errors import ShapeError

    with reporting(progress) as report:  # what is imported takes a second, too
        from sparsenn.distributed.devices import session_on
        from sparsenn.engine import ReadingTimer
        from sparsenn.model import PRUNED
        from sparsenn.training import run_model

        timer = ReadingTimer()
        model = _model_for(path, rows)
        try:
            with span(f"read {rows.inputs.name}", "read"):
                data = _data_for(model, rows)
            reading = timer.seconds()
            result = run_model(model, data, progress=report, session=session_on, **how)
        except ShapeError as error:
            raise ShapeError(f"{rows.inputs} does not fit {path}: {error}") from error
    notes = result.notes if rows.prune is None else (model.provenance[PRUNED], *result.notes)
    with span("report", "write"):
        _deliver(path, rows.inputs, model, replace(result, seconds=reading + result.seconds, notes=notes), files)


def _model_for(path: Path, rows: Rows) -> Model:
    """Read a model, scaled and pruned as the rows ask for.

    Raises
    ------
    SparseNNError
        As reading does; or it scales its inputs by itself.
    """
    from sparsenn.io import read_model

    with span(f"read {path.name}", "read"):
        model = _scaled(path, read_model(path, rows.steps), rows.scaling)
    return model if rows.prune is None else model.pruned(rows.prune)


def read_given_rows(model: Model, inputs: Path) -> Array:
    """Read a file's rows as a model's network takes them, float32 of shape (rows, inputs); targets are passed over.

    Raises
    ------
    SparseNNError
        As reading does; or they do not fit the model.
    """
    from sparsenn.formats import CSR
    from sparsenn.training.inference import rows_for

    rows = rows_for(model, _data_for(model, Rows(inputs, None, None, classes=False, limit=None)))
    dense: Array = rows.to_scipy().toarray() if isinstance(rows, CSR) else rows
    return dense


def _scaled(path: Path, model: Model, scaling: Scaling | None) -> Model:
    if scaling is None:
        return model
    if model.scaling is not None:
        raise UsageError(
            f"{path} scales its inputs itself ({model.scaling}), as in training; leave out --scale, --mean and --std"
        )
    return replace(model, scaling=scaling)


def _data_for(model: Model, rows: Rows) -> TrainingData | InputRows:
    """Read the rows that a model is run on.

    Raises
    ------
    SparseNNError
        As reading does.
    """
    from sparsenn.errors import FileFormatError, ShapeError
    from sparsenn.training import read_rows
    from sparsenn.training.inference import rows_for

    network = model.network
    read = partial(
        read_rows,
        rows.inputs,
        network.inputs,
        network.outputs,
        labels=rows.labels,
        targets=rows.targets,
        class_names=model.class_names,
        encoding=model.encoding,
        scale_bytes=rows.scale_bytes,
        network=network,
    )
    try:
        data = read(classes=rows.classes or model.classes)
    except FileFormatError:
        plain = None
        with suppress(FileFormatError, ShapeError):
            plain = read()
        if plain is not None:
            rows_for(model, plain, last=1)  # raises ShapeError: rows of another width explain labels that are none
        raise
    return data if rows.limit is None else data.head(rows.limit)


def _deliver(path: Path, inputs: Path, model: Model, result: ModelResult, files: ResultTargets) -> None:
    """Print the summary and the table by layer, and write what was asked for."""
    from sparsenn.io.tables.predictions import write_predictions
    from sparsenn.model import PRUNED
    from sparsenn.report import draw_layers, layer_table, model_layer_table, model_record, model_summary, to_json

    screen = console(sys.stderr if files.json == STDOUT else sys.stdout)
    screen.print(model_summary(path.name, inputs.name, result))
    screen.print(model_layer_table(model.network, result.statistics))
    if files.stats:
        screen.print(layer_table(result.statistics))
    if files.output is not None:
        pruned = {key: note for key, note in model.provenance.items() if key == PRUNED}
        notes = {"model": path.name, "plan": str(result.plan), **pruned}
        write_predictions(files.output, model, result.outputs, notes=notes)
    if files.json is not None:
        write_json(files.json, to_json(model_record(str(path), str(inputs), result)))
    if files.plot is not None:
        with drawing(files.plot):
            draw_layers(result.statistics, files.plot, path.name)
    if files.report is not None:
        from sparsenn.report.page import model_page

        write_page(files.report, model_page(path.name, inputs.name, result))
