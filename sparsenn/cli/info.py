"""`sparsenn info`: what a dataset or a model consists of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import STDOUT, check_files, write_document
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of, read_model

if TYPE_CHECKING:
    from sparsenn.engine import Plan
    from sparsenn.model import Model


PLANNED_ROWS = 10_000  # rows that a model is planned for by default


def info(
    source: Annotated[
        str, typer.Argument(metavar="MODEL|DATASET", help="A model, as for predict, or a dataset, as for infer.")
    ],
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    steps: options.Steps = None,
    shape: options.Shape = None,
    prune: options.Prune = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show each layer's density, outputs left out, kernel and estimated time.")
    ] = False,
    rows: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=2**31 - 1, help=f"Rows; by default {PLANNED_ROWS:,}.")
    ] = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    json: options.Json = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Describe a model or a dataset: shapes, weights, structure, activations, provenance.

    \b
    Examples:
      sparsenn info model.h5
      sparsenn info model.h5 --plan --rows 1000 --device cpu
      sparsenn info model.h5 --plan --prune 0.05
      sparsenn info weights.npz --steps 1x28x28,conv,max_pool2,flatten,fc
      sparsenn info challenge/ --neurons 1024 --layers 120
    """
    if not plan and (rows or json or device != "auto" or precision != "auto"):
        raise UsageError("--rows, --device, --precision and --json go with --plan; add it, or leave them out")
    check_files({"MODEL": source}, {"--json": json})
    with reporting(progress):  # importing takes a second, too
        from sparsenn.datasets import load
        from sparsenn.engine import plan_rows
        from sparsenn.report import describe_dataset, describe_layers

    if kind_of(source) is not None and is_model(source):
        if neurons or layers:
            raise UsageError("--neurons and --layers go with a dataset, not with a model; leave them out")
        with reporting(progress):
            model = read_model(Path(source), steps, shape=options.sample_shape(shape))
            if prune is not None:
                model = model.pruned(prune)
            count = rows or PLANNED_ROWS
            planned = plan_rows(model.network, count, device=device, precision=precision) if plan else None
        _print(source, model, planned, json)
        return
    if plan or steps or shape or prune:
        raise UsageError("--plan, --steps, --shape and --prune go with a model, which this is not; see infer --stats")
    with reporting(progress) as report:
        found = load(source, neurons=neurons, layers=layers, progress=report)
    screen = console()
    screen.print(describe_dataset(found))
    screen.print(describe_layers(found.network))


def _print(path: str, model: Model, plan: Plan | None, json: Path | None) -> None:
    from sparsenn.report import describe_layers, describe_model, plan_record, plan_table, to_json
    from sparsenn.structure import find_structure

    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(describe_model(Path(path).name, model, find_structure(model.network)))
    screen.print(describe_layers(model.network) if plan is None else plan_table(plan))
    if plan is not None and json is not None:
        write_document(json, to_json(plan_record(path, plan)))
