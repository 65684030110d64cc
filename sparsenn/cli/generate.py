"""`sparsenn generate`: make a RadiX-Net, inputs and truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli.console import console, reporting
from sparsenn.cli.options import ProgressFlag, check_finite, whole_numbers
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.targets import check_dataset_target, is_hdf5

__all__ = ["generate"]

_NETWORK = "Network"
_INPUTS = "Inputs"


def generate(
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="An .h5 file, or a folder for the challenge's official layout.")
    ],
    neurons: Annotated[
        int, typer.Option(metavar="N", min=1, help="Width of every layer, a square.", rich_help_panel=_NETWORK)
    ] = 1024,
    layers: Annotated[int, typer.Option(metavar="L", min=1, help="Number of layers.", rich_help_panel=_NETWORK)] = 120,
    radices: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,…",
            help="Radix of each layer of a cycle; their product times the Kronecker factor is N. By default all are 2.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    kronecker: Annotated[
        int, typer.Option(metavar="K", min=1, help="Neurons per base node.", rich_help_panel=_NETWORK)
    ] = 16,
    weight: Annotated[
        float, typer.Option(metavar="W", help="Value of every weight.", rich_help_panel=_NETWORK)
    ] = 0.0625,
    bias: Annotated[
        float | None,
        typer.Option(
            metavar="B", help="Bias of every neuron; by default, the challenge's for N.", rich_help_panel=_NETWORK
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="SEED", min=0, help="Seed of network and digits.", rich_help_panel=_NETWORK)
    ] = 0,
    input_kind: Annotated[
        str,
        typer.Option(
            metavar="auto|mnist|digits",
            help="MNIST enlarged as for the challenge, or procedural digits; auto takes MNIST if it is available.",
            rich_help_panel=_INPUTS,
        ),
    ] = "auto",
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of samples.", rich_help_panel=_INPUTS)
    ] = 60_000,
    mnist: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the MNIST files are.", rich_help_panel=_INPUTS)
    ] = None,
    truth: Annotated[
        bool,
        typer.Option("--truth/--no-truth", help="Compute the true categories, unless that would take many minutes."),
    ] = True,
    progress: ProgressFlag = None,
) -> None:
    """Generate a RadiX-Net with inputs, and the true categories, computed by the float64 reference.

    \b
    Examples:
      sparsenn generate problem.h5
      sparsenn generate small.h5 --neurons 256 --layers 8 --bias -0.3
      sparsenn generate mixed.h5 --neurons 576 --radices 4,3,3 --bias -0.2
      sparsenn generate challenge/ --mnist mnist/
      sparsenn generate long.h5 --layers 1920 --no-truth
    """
    check_dataset_target("DST", target)
    check_finite("--bias", bias)
    with reporting(progress):  # importing takes a second, too
        from sparsenn import datasets
        from sparsenn.datasets.generate import input_kind as kind_of_inputs
        from sparsenn.io import write_dataset, write_official
        from sparsenn.report import describe_dataset

    if kind_of_inputs(neurons, input_kind, mnist) == "mnist":
        check_apart({"--mnist": datasets.find_training_images(mnist)}, {"DST": target})
    with reporting(progress) as report:
        made = datasets.generate(
            neurons,
            layers,
            inputs=input_kind,
            images=samples,
            mnist=mnist,
            radices=None if radices is None else _radices(radices),
            kronecker=kronecker,
            seed=seed,
            weight=weight,
            bias=bias,
            truth=truth,
            progress=report,
        )
        if is_hdf5(target):
            write_dataset(made, target)
        else:
            write_official(made, target, progress=report)
    console().print(describe_dataset(made))


def _radices(text: str) -> tuple[int, ...]:
    return whole_numbers(text, f"--radices {text}: take whole numbers, separated by commas, as in 2,2,4", least=0)
