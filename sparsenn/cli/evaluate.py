"""The part of `sparsenn infer` that runs a trained model on rows and says how well it does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sparsenn.cli.console import console
from sparsenn.cli.targets import STDOUT, check_target, write_json

__all__ = ["evaluate_model"]


def evaluate_model(
    model: Path,
    inputs: Path,
    labels: Path | None,
    targets: int,
    classes: bool,
    json: Path | None,
    device: str = "auto",
    kernel: str = "auto",
    precision: str = "float32",
) -> None:
    """Read a model and rows, evaluate, and print loss and accuracy.

    Parameters
    ----------
    model : file that `sparsenn train` wrote.
    inputs, labels, targets, classes : what `sparsenn.training.read_data` takes; also classes if the model's are.
    json : file for the result as JSON.
    device, kernel, precision : where and how to compute.

    Raises
    ------
    SparseNNError
        As reading and `sparsenn.training.evaluate` do.
    """
    from sparsenn.errors import ShapeError
    from sparsenn.io import read_model
    from sparsenn.report import evaluation_summary, evaluation_text, to_json
    from sparsenn.training import evaluate, read_data

    check_target("--json", None if json == STDOUT else json)
    found = read_model(model)
    outputs, wanted = found.network.outputs, classes or found.classes
    columns = targets if found.classes else max(targets, outputs)
    data = read_data(inputs, labels=labels, targets=columns, classes=wanted, outputs=outputs if wanted else None)
    shape = data.inputs.shape[1], data.targets.shape[1]
    if shape != (found.network.inputs, outputs):
        raise ShapeError(f"{inputs}: {shape} inputs and outputs; {model} takes {(found.network.inputs, outputs)}")
    start = time.perf_counter()
    how = {"device": device, "kernel": kernel, "precision": precision}
    result = evaluate(found.network, data.inputs, data.targets, found.loss, classes=data.classes, **how)
    seconds = time.perf_counter() - start
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(evaluation_summary(model.name, inputs.name, found.network, evaluation_text(result), seconds))
    if json is not None:
        record = {"model": str(model), "inputs": str(inputs), "rows": result.rows, "loss": result.loss}
        write_json(json, to_json(record | {"value": result.value, "accuracy": result.accuracy, "seconds": seconds}))
