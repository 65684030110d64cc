"""A trained model run on data: its outputs, where the time went layer by layer, and how well it does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.backends.trainer import Evaluation
from sparsenn.engine import LayerStatistics, Plan, Result, execute, plan
from sparsenn.engine.result import Seconds
from sparsenn.errors import NumericError, ShapeError
from sparsenn.formats import Array, from_dense
from sparsenn.io.model import Model
from sparsenn.memory import check_memory
from sparsenn.progress import Progress, silent
from sparsenn.training.data import TrainingData
from sparsenn.training.evaluation import loss_of
from sparsenn.training.resize import resize_bilinear

__all__ = ["ModelResult", "rows_for", "run_model"]

_NUMBERS = 1 << 25
"""Inputs brought to a model's size at a time: 128 MiB of float32."""

_BYTES_A_NUMBER = 32
"""What a number of a row may take while the row is made ready: itself, and as a non-zero its row, column and copy."""


@dataclass(frozen=True, eq=False)
class ModelResult:
    """What a model gave for some rows, and how.

    Parameters
    ----------
    plan : how all rows were run.
    outputs : (rows, outputs), the network's outputs.
    evaluation : loss and accuracy.
    enlarged : whether the rows' images were smaller than the model's, and were brought to its size.
    statistics : one record a layer, over all rows.
    seconds : where the time went; `read` is that for bringing the rows to the model's size and into the engine's form.
    notes : sentences on what did not go as planned.
    """

    plan: Plan
    outputs: Array
    evaluation: Evaluation
    enlarged: bool
    statistics: tuple[LayerStatistics, ...]
    seconds: Seconds
    notes: tuple[str, ...]

    @cached_property
    def predicted(self) -> Array:
        """The class of each row, int64: the number of its largest output, the first where several are."""
        return np.asarray(self.outputs.argmax(axis=1), np.int64)


def run_model(
    model: Model, data: TrainingData, *, batch_size: int | None = None, progress: Progress = silent, **options: Any
) -> ModelResult:
    """Run a model on the rows of some data, and compare its outputs with the targets.

    Rows that hold smaller images than the model takes are enlarged as the model says, some at a time.

    Parameters
    ----------
    model : what to run. Its loss is that of the raw outputs, or of the probabilities if it ends in a Softmax.
    data : rows, and a target or a class for each.
    batch_size : rows taken through the network together; by default as many as memory allows.
    progress : told how many rows are done.
    options : the other options of `sparsenn.plan`.

    Raises
    ------
    ShapeError
        The rows or the targets do not fit the model.
    NumericError
        An output is not a finite number.
    ResourceError
        Memory does not hold the rows of a batch in the model's size.
    SparseNNError
        As `sparsenn.plan` and `sparsenn.execute` do.
    """
    enlarged = _must_enlarge(model, data)
    if data.targets.shape[1] != model.network.outputs:
        raise ShapeError(f"the targets have {data.targets.shape[1]} columns; the model gives {model.network.outputs}")
    width, together = model.network.inputs, min(data.rows, batch_size or 1)
    check_memory(_BYTES_A_NUMBER * width * together, f"making {together:,} × {width:,} numbers ready")
    found: list[Result] = []
    outputs: list[Array] = []
    step, start = _rows_at_a_time(width, batch_size), time.perf_counter()
    for first in range(0, data.rows, step):
        rows = rows_for(model, data, first, first + step)
        inputs = from_dense(rows)
        prepared = time.perf_counter() - start
        result = execute(plan(model.network, inputs, batch_size=batch_size, **options), inputs)
        found.append(replace(result, seconds=replace(result.seconds, read=prepared)))
        outputs.append(result.outputs.to_scipy().toarray())
        progress("rows", first + len(rows), data.rows)
        start = time.perf_counter()
    given, by_part = np.concatenate(outputs), [result.statistics for result in found]
    return ModelResult(
        plan=_whole_plan(found, data.rows),
        outputs=given,
        evaluation=_evaluated(model, data, given),
        enlarged=enlarged,
        statistics=tuple(map(_added, zip(*by_part, strict=True), model.network.sizes[1:])),
        seconds=Seconds(*(sum(getattr(result.seconds, part.name) for result in found) for part in fields(Seconds))),
        notes=tuple(dict.fromkeys(note for result in found for note in result.notes)),
    )


def rows_for(model: Model, data: TrainingData, first: int = 0, last: int | None = None) -> Array:
    """Return rows `first` to `last` as a model takes them, float32: images enlarged to its size where it says so.

    Raises
    ------
    ShapeError
        The rows do not fit the model.
    """
    rows, image = data.inputs[first:last], model.network.image
    if not _must_enlarge(model, data) or data.image is None or image is None:
        return rows
    return resize_bilinear(rows.reshape(len(rows), *data.image), *image[1:]).reshape(len(rows), -1)


def _must_enlarge(model: Model, data: TrainingData) -> bool:
    """Say whether the rows' images are to be enlarged, or why the rows do not fit."""
    image, width = model.network.image, model.network.inputs
    if image is None or data.image is None:
        if data.inputs.shape[1] == width:
            return False
        takes = f"rows of {width:,}" if image is None else f"rows of {width:,}, images of {_shown(image)}"
        raise ShapeError(f"the rows hold {data.inputs.shape[1]:,} numbers; the model takes {takes}")
    if data.image == image:
        return False
    if model.resize is None:
        raise ShapeError(f"the images are {_shown(data.image)}; the model takes {_shown(image)}, and enlarges none")
    if data.image[0] != image[0] or data.image[1] > image[1] or data.image[2] > image[2]:
        raise ShapeError(
            f"the images are {_shown(data.image)}; the model takes {_shown(image)}, or smaller ones of as many channels"
        )
    return True


def _shown(image: tuple[int, ...]) -> str:
    return f"{image[0]} channel{'s' if image[0] > 1 else ''} of {image[1]} × {image[2]} pixels"


def _rows_at_a_time(width: int, batch_size: int | None) -> int:
    """Return how many rows are made ready together: whole batches where their size is given."""
    most = max(1, _NUMBERS // width)
    if batch_size is None or batch_size < 1:
        return most
    return max(1, most // batch_size) * batch_size


def _whole_plan(found: Sequence[Result], rows: int) -> Plan:
    """Return the plan of all rows, of those of the parts that they were run in."""
    first = found[0].plan
    density = sum(result.plan.density * result.inputs for result in found) / rows
    return replace(first, inputs=rows, density=density, batch_size=min(first.batch_size, first.inputs))


def _added(parts: Sequence[LayerStatistics], outputs: int) -> LayerStatistics:
    """Add up what is known of one layer of so many outputs; what a part does not tell is not known of all rows."""

    def total(name: str) -> int | None:
        known = [getattr(part, name) for part in parts]
        return None if None in known else sum(known)

    active, nonzeros = total("active_rows"), total("nonzeros")
    density = None if active is None or nonzeros is None else nonzeros / (active * outputs) if active else 0.0
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        active_rows=active,
        distinct_rows=total("distinct_rows"),
        nonzeros=nonzeros,
        density=density,
        performed_edges=sum(part.performed_edges for part in parts),
        seconds=sum(part.seconds for part in parts),
    )


def _evaluated(model: Model, data: TrainingData, outputs: Array) -> Evaluation:
    finite = np.isfinite(outputs).all(axis=1)
    if not finite.all():
        raise NumericError(
            f"the outputs of row {int(finite.argmin()) + 1} are not finite numbers: some product is too large for the "
            "arithmetic; take precision float32, or inputs like those that the model was trained on"
        )
    value = loss_of(model.network, model.loss, outputs, data.targets)
    right = (outputs.argmax(axis=1) == data.targets.argmax(axis=1)).mean()
    return Evaluation(data.rows, model.loss, value, float(right) if data.classes else None)
