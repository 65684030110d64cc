"""A trained model run on data: its outputs, where the time went layer by layer, and how well it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.trainer import Evaluation
from sparsenn.engine import Session
from sparsenn.engine.inputs import as_matrix, takes_shape
from sparsenn.errors import NumericError, ShapeError
from sparsenn.formats import CSR, Array
from sparsenn.model import Model
from sparsenn.printable import one_line
from sparsenn.runtime.progress import ProgressOption, shown_progress
from sparsenn.training.data import InputRows, TrainingData
from sparsenn.training.evaluation import loss_of
from sparsenn.training.resize import resize_bilinear
from sparsenn.training.run_rows import RowsResult, Runner, run_rows


@dataclass(frozen=True, eq=False)
class ModelResult(RowsResult):
    """What a model gave for some rows, how, and how good that is.

    Parameters
    ----------
    plan : Plan
        How all rows were run.
    outputs : ndarray
        The network's outputs, of shape (rows, outputs).
    statistics : tuple of LayerStatistics
        One record a layer, over all rows.
    seconds : Seconds
        Where the time went; `read` is that for making the rows ready.
    notes : tuple of str
        Sentences on what did not go as planned.
    evaluation : Evaluation or None
        Loss and accuracy; None where the data have no targets.
    enlarged : bool
        Whether the rows' images were smaller than the model's, and were brought to its size.
    model : Model
        What was run.
    """

    evaluation: Evaluation | None
    enlarged: bool
    model: Model

    __repr__ = one_line


def run_model(
    model: Model,
    data: TrainingData | InputRows,
    *,
    progress: ProgressOption = None,
    session: Callable[..., Runner] = Session,
    **options: Any,
) -> ModelResult:
    """Run a model on the rows of some data, and compare its outputs with the targets where there are some.

    Rows that hold smaller images than the model takes are enlarged as the model says, some at a time.

    Parameters
    ----------
    model : Model
        What to run. Its loss is that of the raw outputs, or of the probabilities if it ends in a Softmax.
    data : TrainingData or InputRows
        Rows, and a target or a class for each where they are known.
    progress : callable or bool, optional
        As `Session.run` takes it; called with the rows done.
    session : callable, default Session
        Makes what runs the rows, of the network and the options.
    **options : Options
        As `sparsenn.Session` takes them.

    Returns
    -------
    ModelResult
        Outputs, counts by layer, seconds, and how well the outputs fit the targets.

    Raises
    ------
    ShapeError
        The rows or the targets do not fit the model.
    NumericError
        An output is not a finite number.
    ResourceError
        Memory does not hold the rows of a batch in the model's size.
    SparseNNError
        As `sparsenn.Session` and its `run` do.
    """
    enlarged = _must_enlarge(model, data)
    if isinstance(data, TrainingData) and data.targets.shape[1] != model.network.outputs:
        raise ShapeError(f"the targets have {data.targets.shape[1]} columns; the model gives {model.network.outputs}")
    with shown_progress(progress) as report:
        found = run_rows(
            session(model.network, **options),
            data.rows,
            lambda first, last: rows_for(model, data, first, last),
            progress=report,
        )
    evaluation = _judged(model, data, found.outputs)
    notes = found.notes if data.note is None else (data.note, *found.notes)
    return ModelResult(found.plan, found.outputs, found.statistics, found.seconds, notes, evaluation, enlarged, model)


def _judged(model: Model, data: TrainingData | InputRows, outputs: Array) -> Evaluation | None:
    """Return how well a model's outputs, which have to be finite, fit the targets; None where there are none."""
    check_finite_outputs(outputs)
    if not isinstance(data, TrainingData):
        return None
    value = loss_of(model.network, model.evaluation_loss, outputs, data.targets)
    right = (outputs.argmax(axis=1) == data.targets.argmax(axis=1)).mean()
    return Evaluation(data.rows, model.evaluation_loss, value, float(right) if data.classes else None)


def rows_for(model: Model, data: TrainingData | InputRows, first: int = 0, last: int | None = None) -> Array | CSR:
    """Return rows as a model takes them: scaled and, images, enlarged to its size where it says so.

    They are float32, from `first`, counted from 0, to before `last`; CSR where the data are and zeros stay zeros.
    """
    rows: Array | CSR = data.part(first, data.rows if last is None else last)
    image, must_enlarge, of_rows = model.network.image, _must_enlarge(model, data), data.image
    if of_rows is not None and isinstance(rows, np.ndarray) and takes_shape(model.network, (len(rows), *of_rows)):
        rows, of_rows = as_matrix(model.network, rows.reshape(len(rows), *of_rows)), image or of_rows
    if model.scaling is not None:
        rows = model.scaling.apply(rows, of_rows)
    if not must_enlarge or data.image is None or image is None or isinstance(rows, CSR):
        return rows
    return resize_bilinear(rows.reshape(len(rows), *data.image), *image[1:]).reshape(len(rows), -1)


def _must_enlarge(model: Model, data: TrainingData | InputRows) -> bool:
    """Say whether the rows' images are to be enlarged, or why the rows do not fit."""
    image, width = model.network.image, model.network.inputs
    if image is None or data.image is None:
        if data.inputs.shape[1] == width:
            return False
        takes = f"rows of {width:,}" if image is None else f"rows of {width:,}, images of {_shown(image)}"
        raise ShapeError(f"the rows hold {data.inputs.shape[1]:,} numbers; the model takes {takes}")
    if data.image == image or takes_shape(model.network, (data.rows, *data.image)):
        return False
    if model.resize is None:
        raise ShapeError(
            f"the images are {_shown(data.image)}; the model takes {_shown(image)}, and does not enlarge images"
        )
    if data.image[0] != image[0] or data.image[1] > image[1] or data.image[2] > image[2]:
        raise ShapeError(
            f"the images are {_shown(data.image)}; the model takes {_shown(image)}, or smaller ones with "
            f"as many channels"
        )
    return True


def _shown(image: tuple[int, ...]) -> str:
    return f"{image[0]} channel{'s' if image[0] > 1 else ''} of {image[1]} × {image[2]} pixels"


def check_finite_outputs(outputs: Array, first: int = 0) -> None:
    """Refuse outputs that are not finite numbers.

    outputs : (rows, outputs).
    first : number of the first row, counted from 0.
    """
    finite = np.isfinite(outputs).all(axis=1)
    if not finite.all():
        raise NumericError(
            f"the outputs of row {first + int(finite.argmin()) + 1:,} are not finite numbers: a weight is none, or a "
            f"product is too large for the precision; use precision float32, or inputs like those of the training"
        )
