"""`sparsenn benchmark`: what calls of a model take here, beside what else it could be run with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.sources import check_sources
from sparsenn.cli.targets import PAGE_SUFFIXES, STDOUT, TRACE_SUFFIXES, check_target, tracing, write_json, write_page
from sparsenn.errors import UsageError

__all__ = ["benchmark"]

MOST_SAMPLES = 2**31 - 1


def benchmark(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model, as for infer.", show_default=False)],
    samples: Annotated[str, typer.Option(metavar="N,N,...", help="Samples per call.")] = "1,64,1024,10000",
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of samples to run, as for infer; by default, random ones."),
    ] = None,
    steps: options.Steps = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    against: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="What to compare with; none for no comparison.")
    ] = "onnxruntime,torch,scipy",
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Seconds spent on each peer and number of samples.")
    ] = 2.0,
    json: options.Json = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="A single page with pictures that opens offline."),
    ] = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Time calls of a model, and of the same network in ONNX Runtime, PyTorch and SciPy if they are installed.

    Each answer is compared with sparsenn's before it is timed. Latencies are those of warm calls, until the answer
    is available. --trace shows the calls made before the timed ones.

    \b
    Examples:
      sparsenn benchmark model.onnx
      sparsenn benchmark weights.npz --samples 1,10000 --against onnxruntime
      sparsenn benchmark model.h5 --precision tf32 --report bench.html
    """
    options.check_finite("--seconds", seconds)
    fault = f"--samples {samples}: take whole numbers of at least 1, separated by commas, as in 1,64,1024,10000"
    counts = options.whole_numbers(samples, fault, most=MOST_SAMPLES)
    check_target("--json", None if json == STDOUT else json)
    check_target("--trace", trace, TRACE_SUFFIXES)
    check_target("--report", page, PAGE_SUFFIXES)
    check_apart({"MODEL": str(model), "--inputs": inputs}, {"--json": json, "--trace": trace, "--report": page})
    check_sources(model, inputs)
    with reporting(progress):  # importing takes a second, too
        from sparsenn.cli.evaluate import read_given_rows
        from sparsenn.io.files import read_model
        from sparsenn.report import to_json
        from sparsenn.report.benchmark import benchmark_page, benchmark_record, benchmark_table
        from sparsenn.studies.benchmark import run_benchmark

    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: take more than 0")
    names = [] if against == "none" else [name.strip() for name in against.split(",") if name.strip()]
    with tracing(trace):
        with reporting(progress) as report:
            found = read_model(model, steps)
            rows = None if inputs is None else read_given_rows(found, inputs)
            result = run_benchmark(
                found.network,
                counts,
                rows,
                against=names,
                seconds=seconds,
                progress=report,
                device=device,
                precision=precision,
            )
        console(sys.stderr if json == STDOUT else sys.stdout).print(benchmark_table(model.name, result))
        if json is not None:
            write_json(json, to_json(benchmark_record(model.name, result)))
        if page is not None:
            write_page(page, benchmark_page(model.name, found, result))
