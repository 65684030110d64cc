"""`sparsenn challenge generate`: make a RadiX-Net, inputs and truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import check_files, is_hdf5
from sparsenn.cli.options import ProgressFlag, check_finite, whole_numbers


def generate(
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="An .h5 file, or a folder for the challenge's official layout.")
    ],
    neurons: Annotated[int, typer.Option(metavar="N", min=1, help="Width of every layer, a square.")] = 1024,
    layers: Annotated[int, typer.Option(metavar="L", min=1, help="Number of layers.")] = 120,
    radices: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,…",
            help="Radix of each layer of a cycle; their product times the Kronecker factor is N. By default all are 2.",
        ),
    ] = None,
    kronecker: Annotated[int, typer.Option(metavar="K", min=1, help="Neurons per base node.")] = 16,
    weight: Annotated[float, typer.Option(metavar="W", help="Value of every weight.")] = 0.0625,
    bias: Annotated[
        float | None, typer.Option(metavar="B", help="Bias of every neuron; by default, the challenge's for N.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", min=0, help="Seed of network and digits.")] = 0,
    inputs: Annotated[
        str,
        typer.Option(
            metavar="auto|mnist|digits",
            help="MNIST enlarged as for the challenge, or procedural digits; auto takes MNIST if it is available.",
        ),
    ] = "auto",
    images: Annotated[int, typer.Option(metavar="N", min=1, help="Number of inputs.")] = 60_000,
    mnist: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the MNIST files are.")] = None,
    truth: Annotated[
        bool,
        typer.Option("--truth/--no-truth", help="Compute the true categories, unless that would take many minutes."),
    ] = True,
    progress: ProgressFlag = None,
) -> None:
    """Generate a RadiX-Net with inputs, and the true categories, computed by the float64 reference.

    \b
    Examples:
      sparsenn challenge generate problem.h5
      sparsenn challenge generate small.h5 --neurons 256 --layers 8 --bias -0.3
      sparsenn challenge generate mixed.h5 --neurons 576 --radices 4,3,3 --bias -0.2
      sparsenn challenge generate challenge/ --mnist mnist/
      sparsenn challenge generate long.h5 --layers 1920 --no-truth
    """
    check_files({}, {"DST": target})
    check_finite("--bias", bias)
    fault = f"--radices {radices}: take whole numbers, separated by commas, as in 2,2,4"
    with reporting(progress):  # importing takes a second, too
        from sparsenn import datasets
        from sparsenn.datasets.generate import input_kind
        from sparsenn.io import write_dataset, write_official
        from sparsenn.report import describe_dataset

    if input_kind(neurons, inputs, mnist) == "mnist":
        check_files({"--mnist": datasets.find_training_images(mnist)}, {"DST": target})
    with reporting(progress) as report:
        made = datasets.generate(
            neurons,
            layers,
            inputs=inputs,
            images=images,
            mnist=mnist,
            radices=None if radices is None else whole_numbers(radices, fault, least=0),
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
