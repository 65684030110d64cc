"""`sparsenn challenge run`, also `sparsenn infer`: run a dataset's inputs through its network and verify the answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import HDF5_SUFFIXES, STDOUT, check_files, drawing, is_hdf5, tracing, write_document
from sparsenn.cli.startup import wake_gpu
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.engine import Result
    from sparsenn.io import Dataset
    from sparsenn.report import Verification

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=".tsv: the categories in the official form; .h5: outputs and categories; with --stream also .npy.",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --stream: other inputs, in .tsv, .tsv.gz, .npy, .h5 or .parquet."),
]


def infer(
    dataset: options.Source,
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    limit_inputs: options.LimitInputs = None,
    inputs: Inputs = None,
    device: options.Device = "auto",
    devices: options.Devices = None,
    kernel: options.Kernel = "auto",
    precision: options.Precision = "auto",
    batch_size: options.BatchSize = None,
    memory_limit: options.MemoryLimit = None,
    weight_memory: options.WeightMemory = None,
    compaction: options.Compaction = True,
    deduplication: options.Deduplication = True,
    merging: options.Merging = True,
    reproducible: options.Reproducible = False,
    stream: options.Stream = False,
    resume: options.Resume = False,
    verify: options.Verify = None,
    output: Output = None,
    json: options.Json = None,
    stats: options.Stats = False,
    plot: options.Plot = None,
    report: options.Report = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Run a dataset's inputs through its network and verify the categories; infer is the same as challenge run.

    Exit code 0: done, and verified if the true categories are known. 1: verification failed. 2: bad usage or bad input.

    \b
    Examples:
      sparsenn infer radixnet-1024x120
      sparsenn challenge run radixnet-1024x120 --stats --plot layers.png
      sparsenn challenge run challenge/ --neurons 1024 --layers 120 --output found.tsv
      sparsenn challenge run problem.h5 --stream --memory-limit 4G --output found.tsv
      sparsenn challenge run problem.h5 --no-compaction --no-deduplication --no-merging
    """
    options.check_finite("--bias", bias)
    if resume and not (stream and output):
        raise UsageError("--resume goes with --output and --stream")
    if inputs is not None and not stream:
        raise UsageError("--inputs goes with --stream; a model is run by sparsenn predict")
    if limit_inputs is not None and stream:
        raise UsageError("--limit-inputs does not go with --stream; leave it out")
    if devices is not None and device != "auto":
        raise UsageError("--device does not go with --devices; leave one of them out")
    check_files(
        {"DATASET": dataset, "--inputs": inputs},
        {"--output": output, "--json": json, "--plot": plot, "--trace": trace, "--report": report},
        (".tsv", *((".npy",) if stream else ()), *HDF5_SUFFIXES),
    )
    how: dict[str, Any] = {
        **({"device": device} if devices is None else {"devices": devices}),
        "precision": precision,
        "kernel": kernel,
        "batch_size": batch_size,
        "memory_limit": options.byte_count("--memory-limit", memory_limit),
        "weight_memory": options.byte_count("--weight-memory", weight_memory),
        "compaction": compaction,
        "deduplication": deduplication,
        "merging": merging,
        "reproducible": reproducible,
    }
    with reporting(progress):  # what looks into a file takes a second to import
        if kind_of(dataset) is not None and is_model(dataset):
            raise UsageError(f"{dataset} is a model, not a dataset; run it with sparsenn predict {dataset} ROWS")
    for name in _device_names(device, devices):
        wake_gpu(name)
    choice = {"neurons": neurons, "layers": layers, "bias": bias, "limit_inputs": limit_inputs}
    with tracing(trace):
        if stream:
            if inputs is None and not is_hdf5(Path(dataset)):
                raise UsageError(f"{dataset} is not a file of inputs; name one (--inputs)")
            rows = inputs or Path(dataset)
            how |= {"output": output, "resume": resume}
            problem, name, result, verdict = _run_in_chunks(dataset, rows, choice, how, verify, progress)
        else:
            problem, name, result, verdict = _run(dataset, choice, how, verify, progress)
        with span("report", "write"):
            from sparsenn.io import write_categories, write_result
            from sparsenn.report import draw_layers, layer_table, summary, to_json, to_record
            from sparsenn.report.records import origin_record

            origin = origin_record(problem.name, problem.provenance)
            verified = None if isinstance(verdict, str) else verdict.passed
            screen = console(sys.stderr if json == STDOUT else sys.stdout)
            screen.print(summary(name, result, verdict, problem.provenance))
            if stats and result.statistics:
                screen.print(layer_table(result.statistics))
            if output is not None and not stream and is_hdf5(output):
                write_result(output, result.outputs, result.categories, {"dataset": name, "plan": str(result.plan)})
            elif output is not None and not stream:
                write_categories(output, result.categories)
            if json is not None:
                write_document(json, to_json(origin | to_record(result, verified)))
            if plot is not None and result.statistics:
                with drawing(plot):
                    draw_layers(result.statistics, plot, name)
            if report is not None:
                from sparsenn.report.page import inference_page

                write_document(report, inference_page(name, result, verdict, problem.provenance))
    if not isinstance(verdict, str) and not verdict.passed:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _run(
    dataset: str, choice: dict[str, Any], how: dict[str, Any], verify: bool | None, progress: bool | None
) -> tuple[Dataset, str, Result, Verification | str]:
    """Read, plan, compute; how to compute is checked before anything is read."""
    with reporting(progress) as report:  # what is imported takes a second, too
        from sparsenn.backends import select_kernels
        from sparsenn.datasets import load
        from sparsenn.distributed.devices import session_on
        from sparsenn.runtime.timing import Timer

        for name in _device_names(how.get("device"), how.get("devices")):
            select_kernels(name, how["kernel"], reproducible=how["reproducible"])
        timer = Timer()
        with span(f"read {dataset}", "read"):
            problem = load(dataset, **choice, truth=verify is not False, progress=report)
        reading = timer.reading()
        if verify and problem.truth is None:
            raise UsageError(f"--verify: {problem.name} holds no truth to verify against; leave the option out")
        result = session_on(problem.network, **how).run(problem.inputs, progress=report)
        verdict = _verdict(result, problem.truth, verify)
        if not isinstance(verdict, str) and not verdict.passed:
            from sparsenn.datasets.truth import undecided_rows

            undecided = undecided_rows(problem.network, problem.inputs, verdict.different)
            verdict = replace(verdict, undecided=None if undecided is None else undecided.size)
    return problem, problem.name, replace(result, seconds=reading + result.seconds), verdict


def _device_names(device: str | None, devices: str | None) -> tuple[str, ...]:
    if devices is None:
        return (device or "auto",)
    from sparsenn.distributed.devices import device_names

    return device_names(devices)


def _run_in_chunks(
    dataset: str, rows: Path, choice: dict[str, Any], how: dict[str, Any], verify: bool | None, progress: bool | None
) -> tuple[Dataset, str, Result, Verification | str]:
    """Run inputs as they come from a file; of the dataset's own none but the first is read before."""
    from sparsenn.datasets import load
    from sparsenn.distributed import stream

    with reporting(progress) as report:
        problem = load(dataset, **{**choice, "limit_inputs": 1}, truth=verify is not False, progress=report)
        truth = _truth(dataset, problem, rows)
        if verify and truth is None:
            raise UsageError(f"--verify: {rows} holds no truth to verify against; leave the option out")
        with span(f"stream {rows.name}", "run"):
            result = stream(problem.network, rows, progress=report, **how)
    return problem, f"{problem.name}, rows of {rows.name}", result, _verdict(result, truth, verify)


def _truth(source: str, dataset: Dataset, rows: Path) -> Any:
    """Return the true categories of the rows, which are known where they are the dataset's own."""
    if dataset.truth is None:
        return None
    from sparsenn.io.hdf5.dataset import read_categories

    place = Path(source)
    own = place.is_file() and rows.is_file() and place.samefile(rows)
    return read_categories(rows) if own else None


def _verdict(result: Result, truth: Any, verify: bool | None) -> Verification | str:
    from sparsenn.report import compare_categories

    if truth is None:
        return "no truth to verify against"
    return "not done (--no-verify)" if verify is False else compare_categories(result.categories, truth)
