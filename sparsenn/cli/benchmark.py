"""`sparsenn benchmark`: what calls of a model take here, beside what else it could be run with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.files import STDOUT, check_files, tracing, write_document
from sparsenn.errors import UsageError


def benchmark(
    model: options.Model,
    rows: options.RowCounts = "1,64,1024,10000",
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of rows to run, as for predict; by default, random ones.")
    ] = None,
    steps: options.Steps = None,
    shape: options.Shape = None,
    prune: options.Prune = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    kernel: options.Kernel = "auto",
    against: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="What to compare with; none for no comparison.")
    ] = "onnxruntime,torch,scipy",
    seconds: Annotated[float, typer.Option(metavar="S", help="Seconds spent on each peer and number of rows.")] = 2.0,
    json: options.Json = None,
    report: options.Report = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Time calls of a model, and of the same network in ONNX Runtime, PyTorch and SciPy if they are installed.

    Each answer is compared with sparsenn's before it is timed. Latencies are those of warm calls, until the answer
    is available. --trace shows the calls made before the timed ones.

    \b
    Examples:
      sparsenn benchmark model.onnx
      sparsenn benchmark weights.npz --rows 1,10000 --against onnxruntime
      sparsenn benchmark model.h5 --precision tf32 --report bench.html
    """
    options.check_finite("--seconds", seconds)
    counts = options.row_counts(rows)
    check_files({"MODEL": model, "--inputs": inputs}, {"--json": json, "--trace": trace, "--report": report})
    with reporting(progress):  # importing takes a second, too
        from sparsenn.cli.predict import check_model, read_model_rows
        from sparsenn.io.files import read_model
        from sparsenn.report import to_json
        from sparsenn.report.benchmark import benchmark_page, benchmark_record, benchmark_table
        from sparsenn.studies.benchmark import run_benchmark

    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: take more than 0")
    check_model(model, "the challenge's problems are timed by sparsenn challenge benchmark")
    name = Path(model).name
    names = [] if against == "none" else [peer.strip() for peer in against.split(",") if peer.strip()]
    with tracing(trace):
        with reporting(progress) as show:
            found = read_model(model, steps, shape=options.sample_shape(shape))
            if prune is not None:
                found = found.pruned(prune)
            sample = None if inputs is None else read_model_rows(found, inputs)
            result = run_benchmark(
                found.network,
                counts,
                sample,
                against=names,
                seconds=seconds,
                progress=show,
                device=device,
                precision=precision,
                kernel=kernel,
            )
        console(sys.stderr if json == STDOUT else sys.stdout).print(benchmark_table(name, found, result))
        if json is not None:
            write_document(json, to_json(benchmark_record(name, found, result)))
        if report is not None:
            write_document(report, benchmark_page(name, found, result))
