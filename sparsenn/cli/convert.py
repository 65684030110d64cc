"""`sparsenn convert`: a dataset, a model, or a single matrix, from one format into another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.sources import check_dataset_source, check_sources
from sparsenn.cli.targets import check_dataset_target, check_target, is_hdf5
from sparsenn.errors import UsageError
from sparsenn.io.files import WRITTEN_SUFFIXES, is_model, kind_of

if TYPE_CHECKING:
    from sparsenn.formats import COO

__all__ = ["convert"]

_MATRIX_NAME = re.compile(r".+\.(mtx|tsv)(\.gz)?", re.IGNORECASE)
_SHAPE = re.compile(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})")
_SAMPLE_SHAPE = re.compile(r"(?:([^=]+)=)?([1-9][0-9]{0,9}(?:x[1-9][0-9]{0,9})*)")


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="A dataset or a model, as for infer; or one matrix: .mtx or .tsv, also .gz."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="DST",
            help="An .h5 file or a folder; for a model .h5 or .onnx; for one matrix .mtx or .tsv; also .gz of these.",
        ),
    ],
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    samples: options.Samples = None,
    archive: Annotated[bool, typer.Option("--archive", help="For a folder: put all layers into one .tar.gz.")] = False,
    compress: Annotated[bool, typer.Option("--compress", help="For a folder: compress the text with gzip.")] = False,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZExSIZE...",
            help="Shape of a .tsv matrix, which the file does not hold: ROWSxCOLUMNS. For an .onnx model that leaves "
            "sizes open: those of one sample, as 3x224x224, or of each input, as image=3x224x224,mask=224x224.",
        ),
    ] = None,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="For ONNX: write sparse initialisers, which few other programs read.")
    ] = False,
    steps: options.Steps = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Convert a dataset between the official layout and HDF5, a model between HDF5 and ONNX, or one matrix.

    HDF5 holds whatever infer reads.
    A single matrix can be converted between Matrix Market and TSV triples.
    The official layout holds networks of one width, with the challenge's activation and one bias.
    TSV triples are those of the official layer files: row, column, value, counted from 1.

    \b
    Examples:
      sparsenn convert challenge/ problem.h5 --neurons 1024 --layers 120
      sparsenn convert problem.h5 challenge/ --archive
      sparsenn convert radixnet-1024x120 challenge/
      sparsenn convert n1024-l1.tsv layer.mtx --shape 1024x1024
      sparsenn convert network.onnx model.h5
      sparsenn convert detector.onnx model.h5 --shape 3x640x640
    """
    options.check_finite("--bias", bias)
    matrix = bool(_MATRIX_NAME.fullmatch(source)) and not Path(source).is_dir()
    if matrix:
        check_sources(Path(source))
    else:
        check_dataset_source(source)
    check_apart({"SRC": source}, {"DST": target})
    choice = {"neurons": neurons, "layers": layers, "bias": bias}
    folder_only = {"archive": archive, "compress": compress}
    if matrix:
        _refuse("one matrix", {**choice, **folder_only, "samples": samples, "sparse": sparse, "steps": steps})
        _convert_matrix(Path(source), target, shape, progress)
        return
    with reporting(progress):  # what looks into a file takes a second to import
        model = not Path(source).is_dir() and kind_of(source) is not None and is_model(source)
    if model:
        _refuse("a model", {**choice, **folder_only, "samples": samples})
        _convert_model(source, target, sparse, steps, _shape_of_sample(shape), progress)
        return
    _refuse("a dataset", {"shape": shape, "sparse": sparse, "steps": steps})
    check_dataset_target("DST", target)
    if is_hdf5(target):
        _refuse("HDF5", folder_only)
    _convert_dataset(source, target, {**choice, "limit_inputs": samples}, folder_only, progress)


def _refuse(what: str, options: dict[str, Any]) -> None:
    """Refuse options that have no meaning here, rather than pass over them."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for {what}; leave it out")


def _convert_dataset(
    source: str, target: Path, choice: dict[str, Any], form: dict[str, bool], progress: bool | None
) -> None:
    with reporting(progress):  # importing takes a second, too
        from sparsenn.datasets import load
        from sparsenn.io import write_dataset, write_official
        from sparsenn.report import describe_dataset

    with reporting(progress) as report:
        dataset = load(source, **choice, progress=report)
        if is_hdf5(target):
            write_dataset(dataset, target)
        else:
            write_official(dataset, target, **form, progress=report)
    console().print(describe_dataset(dataset))


def _shape_of_sample(text: str | None) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    if text is None:
        return None
    found = [_SAMPLE_SHAPE.fullmatch(each) for each in text.split(",")]
    shapes = {each[1]: tuple(map(int, each[2].split("x"))) for each in found if each}
    if len(shapes) < len(found) or (None in shapes and len(found) > 1):
        raise UsageError(f"--shape {text}: give sizes of one sample, as 3x224x224 or image=3x224x224,mask=224x224")
    return shapes.get(None, shapes)


def _convert_model(
    source: str, target: Path, sparse: bool, steps: str | None, shape: Any, progress: bool | None
) -> None:
    from sparsenn.io import read_model, write_model
    from sparsenn.io.importers.onnx import to_onnx
    from sparsenn.report import describe_model

    check_target("DST", target, WRITTEN_SUFFIXES)
    into_onnx = target.name.lower().endswith((".onnx", ".onnx.gz"))
    if not into_onnx:
        _refuse("HDF5, which keeps what is sparse so", {"sparse": sparse})
    with reporting(progress):
        model = read_model(source, steps, shape=shape)
        if into_onnx:
            to_onnx(model, target, sparse)
        else:
            write_model(target, model)
    console().print(describe_model(target.name, model))


def _convert_matrix(source: Path, target: Path, shape: str | None, progress: bool | None) -> None:
    from sparsenn.formats import coo_to_csc
    from sparsenn.io import write_layer, write_matrix_market

    if not _MATRIX_NAME.fullmatch(target.name):
        raise UsageError(f"DST {target}: one matrix becomes .mtx or .tsv, also .gz, not a dataset")
    check_target("DST", target)
    with reporting(progress):
        matrix = _read_matrix(source, shape)
        if _is_text_triples(target):
            write_layer(target, coo_to_csc(matrix))
        else:
            write_matrix_market(target, matrix)


def _read_matrix(source: Path, shape: str | None) -> COO:
    from sparsenn.io import read_matrix_market, read_triples

    if not _is_text_triples(source):
        _refuse("Matrix Market, which holds the shape", {"shape": shape})
        return read_matrix_market(source)
    found = _SHAPE.fullmatch(shape or "")
    if not found:
        raise UsageError(f"--shape {shape or 'is missing'}: a .tsv matrix needs it, as --shape 1024x1024")
    return read_triples(source, (int(found[1]), int(found[2])))


def _is_text_triples(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(".tsv")
