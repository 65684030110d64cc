"""`sparsenn info`: what a dataset or a model consists of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.given import refuse_given_options
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.sources import check_dataset_source
from sparsenn.cli.targets import STDOUT, check_target, write_json
from sparsenn.io.files import is_model, kind_of, read_model

if TYPE_CHECKING:
    from sparsenn.engine import Plan
    from sparsenn.model import Model

__all__ = ["info"]

_OF_DATASETS = ("neurons", "layers", "bias")
"""Parameters that only a dataset has a use for."""

_OF_PLANS = ("device", "precision", "json")
"""Parameters that only --plan has a use for."""

_PLAN = "Plan of a model"

PLANNED_SAMPLES = 10_000
"""That a model is planned for unless asked for otherwise."""

PlanFlag = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="For a model: show each layer's density, outputs left out, kernel and estimated time.",
        rich_help_panel=_PLAN,
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=2**31 - 1,
        help="For a dataset: take the first N samples only. "
        f"For a model: plan for N samples, {PLANNED_SAMPLES:,} by default.",
    ),
]
PlanJson = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|-", help="The plan as JSON; - prints it, and only it, to stdout.", rich_help_panel=_PLAN
    ),
]


def info(
    context: typer.Context,
    dataset: options.Source,
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    samples: Samples = None,
    plan: PlanFlag = False,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    json: PlanJson = None,
    steps: options.Steps = None,
    prune: options.Prune = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Describe a dataset or a model: shapes, edges, weights, structure, activations, provenance.

    \b
    Examples:
      sparsenn info problem.h5
      sparsenn info challenge/ --neurons 1024 --layers 120
      sparsenn info model.h5
      sparsenn info model.h5 --plan --samples 1000 --device cpu
      sparsenn info model.h5 --plan --prune 0.05
      sparsenn info weights.npz --steps 1x28x28,conv,max_pool2,flatten,fc
    """
    options.check_finite("--bias", bias)
    if not plan:
        refuse_given_options(context, _OF_PLANS, "goes with --plan")
    check_dataset_source(dataset)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.datasets import load
        from sparsenn.report import describe_dataset, describe_layers

    if kind_of(dataset) is not None and is_model(dataset):
        refuse_given_options(context, _OF_DATASETS, "goes with a dataset, not with a model")
        if not plan:
            refuse_given_options(context, ("samples",), "goes with a dataset, or with --plan")
        check_target("--json", None if json == STDOUT else json)
        check_apart({"DATASET": dataset}, {"--json": json})
        with reporting(progress):
            model = read_model(Path(dataset), steps)
            if prune is not None:
                model = model.pruned(prune)
            planned = _planned(model, samples or PLANNED_SAMPLES, device, precision) if plan else None
        _tell(dataset, model, planned, json)
        return
    refuse_given_options(context, ("prune", "steps"), "goes with a model, which this is not")
    refuse_given_options(context, ("plan",), "goes with a model, which this is not; see infer --stats")
    with reporting(progress) as report:
        found = load(dataset, neurons=neurons, layers=layers, bias=bias, limit_inputs=samples, progress=report)
    screen = console()
    screen.print(describe_dataset(found))
    screen.print(describe_layers(found.network))


def _planned(model: Model, rows: int, device: str, precision: str) -> Plan:
    from sparsenn.engine import plan_rows

    return plan_rows(model.network, rows, device=device, precision=precision)


def _tell(path: str, model: Model, plan: Plan | None, json: Path | None) -> None:
    """Print what a model is, with its layers as they are or as planned, and write the plan as JSON if asked for."""
    from sparsenn.report import describe_layers, describe_model, plan_record, plan_table, to_json
    from sparsenn.structure import find_structure

    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(describe_model(Path(path).name, model, find_structure(model.network)))
    screen.print(describe_layers(model.network) if plan is None else plan_table(plan))
    if plan is not None and json is not None:
        write_json(json, to_json(plan_record(path, plan)))
