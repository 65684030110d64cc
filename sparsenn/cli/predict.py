"""`sparsenn predict`: what a trained model says of the rows of a file, and how well it does where that is known."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn.cli import data_options, options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import HDF5_SUFFIXES, STDOUT, check_files, tracing, write_document
from sparsenn.cli.startup import wake_gpu
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of
from sparsenn.printable import printable
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.engine import Result
    from sparsenn.errors import OpenSizesError
    from sparsenn.formats import Array, Scaling
    from sparsenn.model import Model
    from sparsenn.training import InputRows, ModelResult, TrainingData

OUTPUT_SUFFIXES = (*data_options.TABLES, ".csv.gz", ".tsv.gz", ".npy", ".npz", *HDF5_SUFFIXES)

SHOWN_ROWS = 10
"""Rows of a table's predictions that are shown where no file takes them."""


def predict(
    model: options.Model,
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS",
            help="A table (.csv, .tsv, .parquet), arrays (.npy, .npz, .h5, .mtx) or IDX images.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A class or values per row: .csv, .parquet, .npy, .npz or .h5.",
        ),
    ] = None,
    classes: Annotated[
        bool | None,
        typer.Option("--classes/--no-classes", help="Outputs are scores of classes; by default, as the model says."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="In a table: also the score of each class.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Columns that the model takes, in its order."),
    ] = None,
    ignore: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A column that the model does not take; repeatable."),
    ] = [],  # noqa: B006 (typer copies it)
    id: Annotated[  # noqa: A002 (the name of the option)
        str | None,
        typer.Option("--id", metavar="NAME", help="A column that is copied to the output."),
    ] = None,
    impute: Annotated[bool, typer.Option("--impute", help="Replace missing numbers by their column's mean.")] = False,
    targets: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The last N columns are true answers: report accuracy or loss."),
    ] = None,
    factor: data_options.Factor = None,
    mean: data_options.Mean = None,
    deviation: data_options.Deviation = None,
    device: options.Device = "auto",
    devices: options.Devices = None,
    precision: options.Precision = "auto",
    memory_limit: options.MemoryLimit = None,
    reproducible: options.Reproducible = False,
    stream: options.Stream = False,
    resume: options.Resume = False,
    json: options.Json = None,
    stats: options.Stats = False,
    report: options.Report = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Predict with a trained model: a class, or values, for each row of a file.

    \b
    Examples:
      sparsenn predict model.onnx rows.csv --output predictions.csv
      sparsenn predict model.onnx people.csv --id name --ignore city --impute --scores -o found.csv
      sparsenn predict model.h5 rows.npy --output outputs.npy --device cuda
      sparsenn predict model.h5 pixels.npy --factor 1/255 --mean 0.13
      sparsenn predict model.onnx labelled.csv --targets 1
      sparsenn predict model.h5 large.npy --stream --memory-limit 2G --output outputs.npy
    """
    for option, value in (
        *(("--targets", targets), ("--columns", columns), ("--ignore", ignore), ("--id", id), ("--impute", impute)),
    ):
        if value:
            data_options.check_table(option, rows)
    written_as_table = output is None or data_options.is_table(output)
    in_blocks = data_options.is_table(rows) and written_as_table and not (targets or json or stats or report or resume)
    if (columns or ignore or id or impute) and not in_blocks:
        raise UsageError(
            "--columns, --ignore, --id and --impute go with an --output that is a table, and without --targets, "
            "--json, --stats, --report and --resume"
        )
    if stream and (targets or factor or mean or deviation or report):
        raise UsageError("--targets, --factor, --mean, --deviation and --report do not go with --stream")
    if resume and not (stream and output):
        raise UsageError("--resume goes with --stream and --output")
    if devices is not None and device != "auto":
        raise UsageError("--device does not go with --devices; leave one of them out")
    scaling = data_options.scaling_from(factor, mean, deviation)
    how: dict[str, Any] = {
        **({"device": device} if devices is None else {"devices": devices}),
        "precision": precision,
        "memory_limit": options.byte_count("--memory-limit", memory_limit),
        "reproducible": reproducible,
    }
    check_files(
        {"MODEL": model, "ROWS": rows},
        {"--output": output, "--json": json, "--trace": trace, "--report": report},
        (".npy", *HDF5_SUFFIXES) if stream and not in_blocks else OUTPUT_SUFFIXES,
    )
    with reporting(progress):  # what looks into a file takes a second to import
        check_model(model, "give the model first, then the rows; a dataset is run with sparsenn challenge run")
    wake_gpu(device)
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    path = Path(model)
    with tracing(trace):
        if in_blocks:
            model_of = partial(_model_for, path, rows, classes, scaling)
            choice = {
                "columns": None if columns is None else [name.strip() for name in columns.split(",")],
                "ignore": ignore,
                "id": id,
                "impute": impute,
                "scores": scores,
            }
            count = _predict_table(screen, path, rows, output, model_of, choice | how, progress)
        elif stream:
            from sparsenn.report import layer_table, to_json
            from sparsenn.report.inference import stream_record, stream_summary

            streamed = _stream(path, rows, output, classes, resume, how, progress)
            screen.print(stream_summary(path.name, rows.name, streamed))
            if stats and streamed.statistics:
                screen.print(layer_table(streamed.statistics))
            if json is not None:
                write_document(json, to_json(stream_record(str(path), str(rows), streamed)))
            count = streamed.inputs
        else:
            read = partial(_read, path, rows, targets, classes, scaling, scale_bytes=factor is None)
            result = _run(path, rows, read, how, progress)
            with span("report", "write"):
                from sparsenn.io.tables.predictions import write_predictions
                from sparsenn.report import model_layer_table, model_record, model_summary, to_json

                screen.print(model_summary(path.name, rows.name, result))
                if stats:
                    screen.print(model_layer_table(result.model.network, result.statistics))
                if output is not None:
                    notes = {"model": path.name, "plan": str(result.plan)}
                    write_predictions(output, result.model, result.outputs, scores=scores, notes=notes)
                if json is not None:
                    write_document(json, to_json(model_record(str(path), str(rows), result)))
                if report is not None:
                    from sparsenn.report.page import model_page

                    write_document(report, model_page(path.name, rows.name, result))
            count = result.plan.inputs
    if output is not None:
        from sparsenn.report.quantities import rows_text

        screen.print(printable(f"wrote {output} ({rows_text(count)})"), soft_wrap=True)


def check_model(path: str, remedy: str) -> None:
    """Refuse a name that is not a model's, and an HDF5 file that is damaged or holds something else."""
    place, fault = Path(path), UsageError(f"{path} is not a model; {remedy}")
    if kind_of(path) is None or place.is_dir():
        raise fault
    if place.exists() and not is_model(path):
        from sparsenn.io.hdf5.reading import opened

        with opened(path):  # raises what is wrong with a file that is damaged
            raise fault


def read_model_rows(model: Model, rows: Path) -> Array:
    """Read a file's rows as a model's network takes them, float32 of shape (rows, inputs); targets are passed over."""
    from sparsenn.formats import CSR
    from sparsenn.training.inference import rows_for

    found = rows_for(model, _data_for(model, rows, None, True))
    dense: Array = found.to_scipy().toarray() if isinstance(found, CSR) else found
    return dense


def _read(
    path: Path, rows: Path, targets: int | None, classes: bool | None, scaling: Scaling | None, *, scale_bytes: bool
) -> tuple[Model, TrainingData | InputRows]:
    model = _model_for(path, rows, classes, scaling)
    with span(f"read {rows.name}", "read"):
        return model, _data_for(model, rows, targets, scale_bytes)


def _model_for(path: Path, rows: Path, classes: bool | None, scaling: Scaling | None = None) -> Model:
    from sparsenn.errors import OpenSizesError
    from sparsenn.io import read_model
    from sparsenn.io.networks import read_with_sizes

    with span(f"read {path.name}", "read"):
        try:
            model = read_model(path)
        except OpenSizesError as error:
            arrays = _arrays_in(rows, error)
            model, _ = read_with_sizes(lambda shape: read_model(path, shape=shape), error.sizes, arrays)
    if scaling is not None:
        if model.scaling is not None:
            raise UsageError(
                f"{path} scales its inputs itself ({model.scaling}), as in training; "
                "leave out --factor, --mean and --deviation"
            )
        model = replace(model, scaling=scaling)
    if classes is None or classes == model.classes:
        return model
    return replace(model, classes=classes, class_names=model.class_names if classes else None)


def _arrays_in(rows: Path, error: OpenSizesError) -> Any:
    """Return the arrays of a file, which fix sizes; the error is raised again for files without arrays."""
    from sparsenn.io.arrays.npy import read_npy, read_npz

    suffix = rows.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise error
    arrays = read_npz(rows, (*error.sizes, "inputs")) if suffix == ".npz" else {"inputs": read_npy(rows)}
    return arrays if error.sizes.keys() <= arrays.keys() else next(iter(arrays.values()), None)


def _data_for(model: Model, rows: Path, targets: int | None, scale_bytes: bool) -> TrainingData | InputRows:
    from sparsenn.errors import FileFormatError, ShapeError
    from sparsenn.training import read_rows
    from sparsenn.training.inference import rows_for

    network = model.network
    read = partial(
        read_rows,
        rows,
        network.inputs,
        network.outputs,
        targets=targets,
        class_names=model.class_names,
        encoding=model.encoding,
        scale_bytes=scale_bytes,
        network=network,
    )
    try:
        return read(classes=model.classes)
    except FileFormatError:
        plain = None
        with suppress(FileFormatError, ShapeError):
            plain = read()
        if plain is not None:
            rows_for(model, plain, last=1)  # raises ShapeError: rows of another width explain labels that are none
        raise


def _predict_table(
    screen: Any,
    path: Path,
    rows: Path,
    output: Path | None,
    read: Callable[[], Model],
    how: dict[str, Any],
    progress: bool | None,
) -> int:
    from sparsenn.errors import ShapeError

    with reporting(progress) as report:
        from sparsenn.predictions import predict_table
        from sparsenn.report.inference import prediction_rows, table_summary

        start = time.perf_counter()
        model = read()
        try:
            done = predict_table(model, rows, output, progress=report, **how)
        except ShapeError as error:
            raise ShapeError(f"{rows} does not fit {path}: {str(error).removeprefix(f'{rows}: ')}") from error
        seconds = time.perf_counter() - start
    screen.print(table_summary(path.name, model.network, rows.name, done.rows, done.notes, seconds))
    if done.table is not None:
        first = done.table.slice(0, SHOWN_ROWS).to_pylist()
        screen.print(prediction_rows(done.columns, first))
        if done.rows > len(first):
            screen.print(f"the first {len(first)} of {done.rows:,} rows; --output FILE writes all")
    return done.rows


def _run(path: Path, rows: Path, read: Any, how: dict[str, Any], progress: bool | None) -> ModelResult:
    from sparsenn.errors import ShapeError

    with reporting(progress) as report:  # what is imported takes a second, too
        from sparsenn.distributed.devices import session_on
        from sparsenn.runtime.timing import Timer
        from sparsenn.training import run_model

        timer = Timer()
        try:
            model, data = read()
            reading = timer.reading()
            result = run_model(model, data, progress=report, session=session_on, **how)
        except ShapeError as error:
            raise ShapeError(f"{rows} does not fit {path}: {error}") from error
    return replace(result, seconds=reading + result.seconds)


def _stream(
    path: Path,
    rows: Path,
    output: Path | None,
    classes: bool | None,
    resume: bool,
    how: dict[str, Any],
    progress: bool | None,
) -> Result:
    with reporting(progress) as report:
        from sparsenn.distributed import stream

        model = _model_for(path, rows, classes)
        if model.encoding is not None:
            raise UsageError(f"{path} was trained on a table, whose columns have names: leave out --stream")
        scores = model.classes and model.network.outputs > 1
        with span(f"stream {rows.name}", "run"):
            return stream(
                model.network,
                rows,
                output,
                resume=resume,
                prepare=None if model.scaling is None else model.scaling.apply,
                classes=scores and output is not None and output.suffix.lower() == ".npy",
                progress=report,
                **how,
            )
