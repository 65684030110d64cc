"""`sparsenn info`: what a dataset or a model consists of."""

from __future__ import annotations

from pathlib import Path

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.sources import check_dataset_source
from sparsenn.errors import UsageError
from sparsenn.io.model_files import is_model, kind_of, read_model

__all__ = ["info"]


def info(
    context: typer.Context,
    dataset: options.Source,
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    limit_inputs: options.LimitInputs = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Describe a dataset, or a model of rows or of images: shapes, edges, weights, activations and provenance.

    \b
    Examples:
      sparsenn info problem.h5
      sparsenn info challenge/ --neurons 1024 --layers 120
      sparsenn info model.h5
    """
    options.check_finite("--bias", bias)
    check_dataset_source(dataset)
    from sparsenn.datasets import load
    from sparsenn.report import describe_dataset, describe_layers, describe_model

    screen = console()
    if kind_of(dataset) is not None and is_model(dataset):
        for name in ("neurons", "layers", "bias", "limit_inputs"):
            if context.params[name] is not None:
                raise UsageError(f"--{name.replace('_', '-')} goes with a dataset, not with a model; leave it out")
        model = read_model(Path(dataset))
        screen.print(describe_model(Path(dataset).name, model))
        screen.print(describe_layers(model.network))
        return
    with reporting(progress) as report:
        found = load(dataset, neurons=neurons, layers=layers, bias=bias, limit_inputs=limit_inputs, progress=report)
    screen.print(describe_dataset(found))
    screen.print(describe_layers(found.network))
