"""`sparsenn predict`: what a trained model says of the rows of a file, and how well it does where that is known."""

from __future__ import annotations

import sys
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
from sparsenn.io.model_files import is_model, kind_of
from sparsenn.printable import printable
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.engine import Result
    from sparsenn.formats import Array, Scaling
    from sparsenn.io import Model
    from sparsenn.training import InputRows, ModelResult, TrainingData

__all__ = ["check_model", "predict", "read_model_rows"]

OUTPUT_SUFFIXES = (".csv", ".tsv", ".npy", ".npz", *HDF5_SUFFIXES, ".parquet", ".mtx", ".idx")


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
            help="The class or the values of each row: .csv, .tsv, .npy, .npz, .h5 or .parquet.",
        ),
    ] = None,
    classes: Annotated[
        bool | None,
        typer.Option("--classes/--no-classes", help="Outputs are scores of classes; by default, as the model says."),
    ] = None,
    targets: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The last N columns of a table are true answers: report accuracy or loss."
        ),
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
      sparsenn predict model.h5 rows.npy --output outputs.npy --device cuda
      sparsenn predict model.h5 pixels.npy --factor 1/255 --mean 0.13
      sparsenn predict model.onnx labelled.csv --targets 1
      sparsenn predict model.h5 large.npy --stream --memory-limit 2G --output outputs.npy
    """
    if targets is not None:
        data_options.check_table("--targets", rows)
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
        (".npy", *HDF5_SUFFIXES) if stream else OUTPUT_SUFFIXES,
    )
    with reporting(progress):  # what looks into a file takes a second to import
        check_model(model, "give the model first, then the rows; a dataset is run with sparsenn challenge run")
    wake_gpu(device)
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    path = Path(model)
    with tracing(trace):
        if stream:
            streamed = _stream(path, rows, output, classes, resume, how, progress)
            _deliver_stream(screen, path, rows, streamed, json, stats)
            count = streamed.inputs
        else:
            read = partial(_read, path, rows, targets, classes, scaling, scale_bytes=factor is None)
            result = _run(path, rows, read, how, progress)
            with span("report", "write"):
                _deliver(screen, path, rows, result, output, json, stats, report)
            count = result.plan.inputs
    if output is not None:
        screen.print(printable(f"wrote {output} ({count:,} rows)"), soft_wrap=True)


def check_model(path: str, remedy: str) -> None:
    """Refuse a name that is not a model's, and an HDF5 file that holds something else.

    Raises
    ------
    UsageError
        It is such a name or file; the remedy follows in the message.
    """
    place = Path(path)
    if kind_of(path) is None or place.is_dir() or (place.exists() and not is_model(path)):
        raise UsageError(f"{path} is not a model; {remedy}")


def read_model_rows(model: Model, rows: Path) -> Array:
    """Read a file's rows as a model's network takes them, float32 of shape (rows, inputs); targets are passed over.

    Raises
    ------
    SparseNNError
        Reading fails, or the rows do not fit the model.
    """
    from sparsenn.formats import CSR
    from sparsenn.training.inference import rows_for

    found = rows_for(model, _data_for(model, rows, None, True))
    dense: Array = found.to_scipy().toarray() if isinstance(found, CSR) else found
    return dense


def _read(
    path: Path, rows: Path, targets: int | None, classes: bool | None, scaling: Scaling | None, *, scale_bytes: bool
) -> tuple[Model, TrainingData | InputRows]:
    with span(f"read {path.name}", "read"):
        model = _model_for(path, classes)
        if scaling is not None:
            if model.scaling is not None:
                raise UsageError(
                    f"{path} scales its inputs itself ({model.scaling}), as in training; "
                    "leave out --factor, --mean and --deviation"
                )
            model = replace(model, scaling=scaling)
    with span(f"read {rows.name}", "read"):
        return model, _data_for(model, rows, targets, scale_bytes)


def _model_for(path: Path, classes: bool | None) -> Model:
    from sparsenn.io import read_model

    model = read_model(path)
    if classes is None or classes == model.classes:
        return model
    return replace(model, classes=classes, class_names=model.class_names if classes else None)


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


def _run(path: Path, rows: Path, read: Any, how: dict[str, Any], progress: bool | None) -> ModelResult:
    from sparsenn.errors import ShapeError

    with reporting(progress) as report:  # what is imported takes a second, too
        from sparsenn.distributed.devices import session_on
        from sparsenn.engine import ReadingTimer
        from sparsenn.training import run_model

        timer = ReadingTimer()
        try:
            model, data = read()
            reading = timer.seconds()
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

        model = _model_for(path, classes)
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


def _deliver(
    screen: Any,
    path: Path,
    rows: Path,
    result: ModelResult,
    output: Path | None,
    json: Path | None,
    stats: bool,
    report: Path | None,
) -> None:
    """Print the summary, and the table by layer if asked for, and write the files."""
    from sparsenn.io.model_output import write_model_output
    from sparsenn.report import model_layer_table, model_record, model_summary, to_json

    model = result.model
    screen.print(model_summary(path.name, rows.name, result))
    if stats:
        screen.print(model_layer_table(model.network, result.statistics))
    if output is not None:
        notes = {"model": path.name, "plan": str(result.plan)}
        names = None if model.encoding is None else model.encoding.targets
        predicted = result.predicted if model.classes and model.network.outputs > 1 else None
        named = model.network.named_outputs
        write_model_output(output, result.outputs, predicted, notes, model.class_names, names, named)
    if json is not None:
        write_document(json, to_json(model_record(str(path), str(rows), result)))
    if report is not None:
        from sparsenn.report.page import model_page

        write_document(report, model_page(path.name, rows.name, result))


def _deliver_stream(screen: Any, path: Path, rows: Path, result: Result, json: Path | None, stats: bool) -> None:
    from sparsenn.report import layer_table, to_json
    from sparsenn.report.inference import stream_record, stream_summary

    screen.print(stream_summary(path.name, rows.name, result))
    if stats and result.statistics:
        screen.print(layer_table(result.statistics))
    if json is not None:
        write_document(json, to_json(stream_record(str(path), str(rows), result)))
