"""`sparsenn info`: what a dataset consists of."""

from __future__ import annotations

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting

__all__ = ["info"]


def info(
    dataset: options.Source,
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    limit_inputs: options.LimitInputs = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Describe a dataset: shapes, edges, density, degrees, weights, biases, activations, truth and provenance.

    \b
    Examples:
      sparsenn info problem.h5
      sparsenn info challenge/ --neurons 1024 --layers 120
    """
    from sparsenn.datasets import load
    from sparsenn.report import describe_dataset, describe_layers

    options.check_finite("--bias", bias)
    with reporting(progress) as report:
        found = load(dataset, neurons=neurons, layers=layers, bias=bias, limit_inputs=limit_inputs, progress=report)
    screen = console()
    screen.print(describe_dataset(found))
    screen.print(describe_layers(found))
