"""`sparsenn convert`: a model from one format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import check_files
from sparsenn.errors import UsageError
from sparsenn.io.files import WRITTEN_SUFFIXES


def convert(
    model: options.Model,
    target: Annotated[Path, typer.Argument(metavar="DST", help="An .h5 or .onnx file, also .onnx.gz.")],
    steps: options.Steps = None,
    shape: options.Shape = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="For ONNX: write sparse initialisers, which few other programs read.")
    ] = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Convert a model of any kind that predict reads into HDF5 or ONNX.

    \b
    Examples:
      sparsenn convert network.onnx model.h5
      sparsenn convert model.keras model.onnx
      sparsenn convert detector.onnx model.h5 --shape 3x640x640
      sparsenn convert weights.npz model.h5 --steps 1x28x28,conv,relu,max_pool2,flatten,fc
    """
    check_files({"MODEL": model}, {"DST": target}, WRITTEN_SUFFIXES)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.cli.predict import check_model

        check_model(model, "datasets and matrices are converted by sparsenn challenge convert")
        from sparsenn.io import read_model, write_model
        from sparsenn.io.importers.onnx import to_onnx
        from sparsenn.report import describe_model
    into_onnx = target.name.lower().endswith((".onnx", ".onnx.gz"))
    if sparse and not into_onnx:
        raise UsageError("--sparse goes with ONNX; HDF5 stores sparse weights as such; leave it out")
    sizes = options.sample_shape(shape)
    with reporting(progress):
        found = read_model(model, steps, shape=sizes)
        if into_onnx:
            to_onnx(found, target, sparse)
        else:
            write_model(target, found)
    console().print(describe_model(target.name, found))
