"""The part of `sparsenn infer` that runs a trained model on rows and says how well it does."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenn.cli.console import console, reporting
from sparsenn.cli.targets import STDOUT, ResultTargets, is_hdf5, write_json

if TYPE_CHECKING:
    from sparsenn.io import Model
    from sparsenn.training import ModelResult, TrainingData

__all__ = ["Rows", "evaluate_model"]


@dataclass(frozen=True)
class Rows:
    """What a model is run on.

    Parameters
    ----------
    inputs, labels, targets, classes : what `sparsenn.training.read_data` takes; also classes if the model's are.
    limit : take the first so many rows; all unless given.
    """

    inputs: Path
    labels: Path | None
    targets: int
    classes: bool
    limit: int | None


def evaluate_model(path: Path, rows: Rows, how: dict[str, Any], files: ResultTargets, progress: bool | None) -> None:
    """Read a model and rows, run it on them, print how, how well and how fast, and write what is asked for.

    Parameters
    ----------
    path : a model's file.
    rows : what to run it on.
    how : the options of `sparsenn.plan`.
    files : where results go, besides the summary.
    progress : whether to report it on stderr; None only on a terminal.

    Raises
    ------
    SparseNNError
        As reading and `sparsenn.training.run_model` do.
    """
    from sparsenn.errors import ShapeError
    from sparsenn.io import read_model
    from sparsenn.training import run_model

    start = time.perf_counter()
    model = read_model(path)
    try:
        data = _read(model, rows)
        seconds = time.perf_counter() - start
        with reporting(progress) as report:
            result = run_model(model, data, progress=report, **how)
    except ShapeError as error:
        raise ShapeError(f"{rows.inputs} does not fit {path}: {error}") from error
    timed = replace(result.seconds, read=result.seconds.read + seconds)
    _deliver(path, rows.inputs, model, replace(result, seconds=timed), files)


def _read(model: Model, rows: Rows) -> TrainingData:
    from sparsenn.errors import FileFormatError
    from sparsenn.training import read_data
    from sparsenn.training.inference import rows_for

    outputs, wanted = model.network.outputs, rows.classes or model.classes
    read = partial(
        read_data,
        rows.inputs,
        labels=rows.labels,
        targets=rows.targets if model.classes else max(rows.targets, outputs),
    )
    try:
        data = read(classes=wanted, outputs=outputs if wanted else None)
    except FileFormatError:
        with suppress(FileFormatError):
            rows_for(model, read(), last=1)  # raises ShapeError: rows of another width explain labels that are none
        raise
    return data if rows.limit is None else data.head(rows.limit)


def _deliver(path: Path, inputs: Path, model: Model, result: ModelResult, files: ResultTargets) -> None:
    """Print the summary and the table by layer, and write what was asked for."""
    from sparsenn.report import draw_layers, layer_table, model_layer_table, model_record, model_summary, to_json

    screen = console(sys.stderr if files.json == STDOUT else sys.stdout)
    screen.print(model_summary(path.name, inputs.name, result))
    screen.print(model_layer_table(model.network, result.statistics))
    if files.stats:
        screen.print(layer_table(result.statistics))
    if files.output is not None:
        _write_output(files.output, path.name, model, result)
    if files.json is not None:
        write_json(files.json, to_json(model_record(str(path), str(inputs), model.classes, result)))
    if files.plot is not None:
        draw_layers(result.statistics, files.plot, path.name)


def _write_output(path: Path, name: str, model: Model, result: ModelResult) -> None:
    import numpy as np

    from sparsenn.formats import from_dense
    from sparsenn.io import write_result
    from sparsenn.io.model_output import write_outputs, write_predictions

    if is_hdf5(path):
        notes = {"model": name, "plan": str(result.plan)}
        write_result(path, from_dense(result.outputs), np.flatnonzero(result.outputs.any(axis=1)), notes)
    elif model.classes:
        write_predictions(path, result.predicted)
    else:
        write_outputs(path, result.outputs)
