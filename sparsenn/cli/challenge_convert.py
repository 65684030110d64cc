"""`sparsenn challenge convert`: a dataset, or a single matrix, from one format into another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import check_files, is_hdf5
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of

if TYPE_CHECKING:
    from sparsenn.formats import COO

_MATRIX_NAME = re.compile(r".+\.(mtx|tsv)(\.gz)?", re.IGNORECASE)
_MATRICES = (".mtx", ".tsv", ".mtx.gz", ".tsv.gz")
_SHAPE = re.compile(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})")


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A dataset, as for run; or one matrix: .mtx or .tsv, also .gz.")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="DST", help="An .h5 file or a folder; for one matrix .mtx or .tsv, also .gz of these."),
    ],
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    limit_inputs: options.LimitInputs = None,
    archive: Annotated[bool, typer.Option("--archive", help="For a folder: put all layers into one .tar.gz.")] = False,
    compress: Annotated[bool, typer.Option("--compress", help="For a folder: compress the text with gzip.")] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxCOLUMNS", help="Shape of a .tsv matrix, which the file does not hold.", show_default=False
        ),
    ] = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Convert a dataset between the official layout and HDF5, or one matrix between Matrix Market and TSV triples.

    The official layout holds networks of one width, with the challenge's activation and one bias.
    TSV triples are those of the official layer files: row, column, value, counted from 1.

    \b
    Examples:
      sparsenn challenge convert challenge/ problem.h5 --neurons 1024 --layers 120
      sparsenn challenge convert problem.h5 challenge/ --archive
      sparsenn challenge convert n1024-l1.tsv layer.mtx --shape 1024x1024
    """
    options.check_finite("--bias", bias)
    if _MATRIX_NAME.fullmatch(source) and not Path(source).is_dir():
        _refuse("one matrix", neurons=neurons, layers=layers, bias=bias, limit_inputs=limit_inputs)
        _refuse("one matrix", archive=archive, compress=compress)
        _convert_matrix(Path(source), target, shape, progress)
        return
    check_files({"SRC": source}, {"DST": target})
    _refuse("a dataset", shape=shape)
    if is_hdf5(target):
        _refuse("HDF5", archive=archive, compress=compress)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.datasets import load
        from sparsenn.io import write_dataset, write_official
        from sparsenn.report import describe_dataset

        if kind_of(source) is not None and is_model(source):
            raise UsageError(f"{source} is a model; convert it with sparsenn convert")
    with reporting(progress) as report:
        dataset = load(source, neurons=neurons, layers=layers, bias=bias, limit_inputs=limit_inputs, progress=report)
        if is_hdf5(target):
            write_dataset(dataset, target)
        else:
            write_official(dataset, target, archive=archive, compress=compress, progress=report)
    console().print(describe_dataset(dataset))


def _refuse(kind: str, **options: Any) -> None:
    """Refuse options that have no meaning for a kind of source or target, rather than ignore them."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for {kind}; leave it out")


def _convert_matrix(source: Path, target: Path, shape: str | None, progress: bool | None) -> None:
    from sparsenn.formats import coo_to_csc
    from sparsenn.io import write_layer, write_matrix_market

    check_files({"SRC": source}, {"DST": target}, _MATRICES)
    with reporting(progress):
        matrix = _read_matrix(source, shape)
        if _is_text_triples(target):
            write_layer(target, coo_to_csc(matrix))
        else:
            write_matrix_market(target, matrix)


def _read_matrix(source: Path, shape: str | None) -> COO:
    from sparsenn.io import read_matrix_market, read_triples

    if not _is_text_triples(source):
        _refuse("Matrix Market, which holds the shape", shape=shape)
        return read_matrix_market(source)
    found = _SHAPE.fullmatch(shape or "")
    if not found:
        raise UsageError(f"--shape {shape or 'is missing'}: a .tsv matrix needs it, as --shape 1024x1024")
    return read_triples(source, (int(found[1]), int(found[2])))


def _is_text_triples(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")
