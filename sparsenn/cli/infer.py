"""`sparsenn infer`: run a dataset's inputs through its network."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sparsenn.cli import cluster_options, data_options, options
from sparsenn.cli.console import console, reporting
from sparsenn.cli.evaluate import Rows, evaluate_model
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.given import refuse_given_options
from sparsenn.cli.overwrites import check_apart
from sparsenn.cli.sources import check_dataset_source, check_sources
from sparsenn.cli.startup import wake_gpu
from sparsenn.cli.stream import InPieces, run_dataset_in_pieces, run_model_in_pieces
from sparsenn.cli.targets import STDOUT, ResultTargets, drawing, is_hdf5, tracing, write_json, write_page
from sparsenn.errors import UsageError
from sparsenn.io.files import is_model, kind_of
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.engine import Result
    from sparsenn.io import Dataset
    from sparsenn.report import Verification

__all__ = ["infer"]

_OF_MODELS = ("inputs", "labels", "targets", "classes", "scale", "mean", "std", "prune", "steps")
"""Parameters that only a model has a use for."""

_NOT_IN_PIECES = ("samples", "scale", "mean", "std", "prune", "steps", "labels", "targets", "classes")
"""Parameters that samples which are run in pieces have no use for."""

_OF_DATASETS = ("neurons", "layers", "bias", "verify")
"""Parameters that only a dataset has a use for."""


def infer(
    context: typer.Context,
    dataset: options.Source,
    neurons: options.Neurons = None,
    layers: options.Layers = None,
    bias: options.Bias = None,
    samples: options.Samples = None,
    stream: options.Stream = False,
    inputs: data_options.Inputs = None,
    labels: data_options.Labels = None,
    targets: data_options.TargetsOrNone = None,
    classes: data_options.Classes = False,
    scale: data_options.Factor = None,
    mean: data_options.Mean = None,
    std: data_options.Deviation = None,
    steps: options.Steps = None,
    prune: options.Prune = None,
    device: options.Device = "auto",
    devices: options.Devices = None,
    kernel: options.Kernel = "auto",
    precision: options.Precision = "auto",
    batch_size: options.BatchSize = None,
    memory_limit: options.MemoryLimit = None,
    weight_memory: options.WeightMemory = None,
    no_compaction: options.NoCompaction = False,
    no_deduplication: options.NoDeduplication = False,
    no_merging: options.NoMerging = False,
    reproducible: options.Reproducible = False,
    scheduler: cluster_options.Scheduler = None,
    workers: cluster_options.Workers = None,
    piece: cluster_options.Piece = None,
    verify: options.Verify = None,
    output: options.Output = None,
    resume: options.Resume = False,
    json: options.Json = None,
    stats: options.Stats = False,
    plot: options.Plot = None,
    report: options.Report = None,
    trace: options.Trace = None,
    progress: options.ProgressFlag = None,
) -> None:
    """Run the inputs of a dataset through its network and verify the categories.

    Or run a trained model on the samples of --inputs, write its output for each, and report loss and accuracy if the
    data hold targets.

    Exit code 0: done, and verified if the true categories are known.
    Exit code 1: verification failed.
    Exit code 2: bad usage or bad input.

    \b
    Examples:
      sparsenn infer radixnet-1024x120
      sparsenn infer radixnet-1024x120 --stats --plot layers.png
      sparsenn infer challenge/ --neurons 1024 --layers 120 --output found.tsv
      sparsenn infer problem.h5 --json - --no-verify
      sparsenn infer problem.h5 --trace run.json --report run.html
      sparsenn infer radixnet-65536x1920 --devices all
      sparsenn infer problem.h5 --stream --output found.tsv
      sparsenn infer model.h5 --inputs large.npy --stream --output outputs.npy
      sparsenn infer problem.h5 --kernel scipy --no-compaction --no-deduplication
      sparsenn infer model.h5 --inputs rows.npy --output classes.csv
      sparsenn infer model.h5 --inputs t10k-images-idx3-ubyte.gz
      sparsenn infer model.h5 --inputs pixels.npy --scale 1/255 --mean 0.13
      sparsenn infer model.h5 --inputs rows.npy --prune 0.05
      sparsenn infer weights.npz --inputs rows.npy --steps fc1,tanh,fc2,softmax
      sparsenn infer lenet86.h5 --inputs t10k-images-idx3-ubyte.gz
      sparsenn infer problem.h5 --workers 4 --output found.tsv
      sparsenn infer problem.h5 --scheduler tcp://10.0.0.1:8786
    """
    options.check_finite("--bias", bias)
    cluster = cluster_options.cluster_from(context, scheduler, workers, piece)
    in_pieces = stream or cluster is not None
    with reporting(progress):  # what looks into a file takes a second to import
        if inputs is not None and _is_model(str(inputs)) and not _is_model(dataset):
            raise UsageError(f"{inputs} is a model and {dataset} is none: give the model first, and --inputs {dataset}")
        model = (inputs is not None and not in_pieces) or _is_model(dataset)
    if model:
        refuse_given_options(context, _OF_DATASETS, "goes with a dataset, not with a model")
    else:
        names = [name for name in _OF_MODELS if name != "inputs" or not in_pieces]
        refuse_given_options(context, names, "goes with a model, which this is not")
    if in_pieces:
        refuse_given_options(context, _NOT_IN_PIECES, "does not go with --stream, nor with a cluster")
    elif inputs is not None:
        data_options.refuse_idle(context, [inputs])
    if resume and not in_pieces:
        raise UsageError("--resume goes with --stream, --workers or --scheduler")
    if resume and output is None:
        raise UsageError("without --output there is nothing to resume; name it, or leave out --resume")
    scaling = data_options.scaling_from(scale, mean, std)
    rows = None
    if model and not in_pieces:
        unit_bytes = scale is None
        rows = Rows(_given(dataset, inputs), labels, targets, classes, samples, scaling, unit_bytes, prune, steps)
    source = _file_of_samples(dataset, inputs, model, cluster is not None) if in_pieces else None
    check_dataset_source(dataset)
    check_sources(inputs, labels)
    files = ResultTargets(output, json, plot, trace, stats, report)
    files.check(model, in_pieces)
    check_apart(
        {"DATASET": dataset, "--inputs": inputs, "--labels": labels},
        {"--output": output, "--json": json, "--plot": plot, "--trace": trace, "--report": report},
    )
    if devices is not None:
        refuse_given_options(context, ("device",), "does not go with --devices")
    if cluster is None:
        for name in _named(device, devices):
            wake_gpu(name)
    how: dict[str, Any] = {
        **({"device": device} if devices is None else {"devices": devices}),
        "precision": precision,
        "kernel": kernel,
        "batch_size": batch_size,
        "memory_limit": _bytes("--memory-limit", memory_limit),
        "weight_memory": _bytes("--weight-memory", weight_memory),
        "compaction": not no_compaction,
        "deduplication": not no_deduplication,
        "merging": not no_merging,
        "reproducible": reproducible,
    }
    what = {"neurons": neurons, "layers": layers, "bias": bias, "limit_inputs": samples}
    if rows is not None:
        with tracing(trace):
            evaluate_model(Path(dataset), rows, how, files, progress)
        return
    if in_pieces:
        run = InPieces(source, how, files, resume, cluster, progress)
        with tracing(trace):
            passed = run_model_in_pieces(dataset, run) if model else run_dataset_in_pieces(dataset, run, what, verify)
        if not passed:
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)
        return
    with tracing(trace):
        problem, result = _run(dataset, what, how, verify, progress)
        verdict = _verdict(problem, result, verify)
        with span("report", "write"):
            _deliver(problem.name, result, verdict, files)
    if not isinstance(verdict, str) and not verdict.passed:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _is_model(source: str) -> bool:
    """Whether the source is there and a model; with --inputs it must be, or reading it says why not."""
    return kind_of(source) is not None and Path(source).exists() and is_model(source)


def _file_of_samples(dataset: str, inputs: Path | None, model: bool, on_cluster: bool) -> Path | None:
    """Return the file whose samples are run in pieces; None for those of a dataset that a cluster is sent."""
    if inputs is not None:
        return inputs
    if not model and is_hdf5(Path(dataset)):
        return Path(dataset)
    if model or not on_cluster:
        raise UsageError(f"{dataset} is not a file of samples; name one (--inputs)")
    return None


def _given(model: str, inputs: Path | None) -> Path:
    if inputs is None:
        raise UsageError(f"{model} is a model; name the data to run it on (--inputs)")
    return inputs


def _bytes(option: str, gigabytes: float | None) -> int | None:
    if gigabytes is None:
        return None
    size = gigabytes * 1e9
    if not (math.isfinite(size) and size > 0):
        raise UsageError(f"{option} {gigabytes:g} is not a positive number of gigabytes")
    return int(size)


def _run(
    source: str, what: dict[str, Any], how: dict[str, Any], verify: bool | None, progress: bool | None
) -> tuple[Dataset, Result]:
    """Read, plan, compute; how to compute is checked before anything is read."""
    with reporting(progress) as report:  # what is imported takes a second, too
        from sparsenn.datasets import load
        from sparsenn.distributed.devices import session_on
        from sparsenn.engine import ReadingTimer

        for name in _named(how.get("device"), how.get("devices")):
            _check_kernel(name, how["kernel"], how["reproducible"])
        timer = ReadingTimer()
        with span(f"read {source}", "read"):
            dataset = load(source, **what, progress=report)
        reading = timer.seconds()
        if verify and dataset.truth is None:
            raise UsageError(f"--verify: {dataset.name} holds no truth to verify against; leave the option out")
        result = session_on(dataset.network, **how).run(dataset.inputs, progress=report)
    return dataset, replace(result, seconds=reading + result.seconds)


def _named(device: str | None, devices: str | None) -> tuple[str, ...]:
    """Return the names of the devices that the options ask for."""
    if devices is None:
        return (device or "auto",)
    from sparsenn.distributed.devices import device_names

    return device_names(devices)


def _check_kernel(device: str, kernel: str, reproducible: bool) -> None:
    from sparsenn.backends import select_kernels

    select_kernels(device, kernel, reproducible=reproducible)


def _verdict(dataset: Dataset, result: Result, verify: bool | None) -> Verification | str:
    from sparsenn.report import compare_categories

    if dataset.truth is None:
        return "no truth to verify against"
    if verify is False:
        return "not done (--no-verify)"
    return compare_categories(result.categories, dataset.truth)


def _deliver(name: str, result: Result, verdict: Verification | str, targets: ResultTargets) -> None:
    """Print the summary and write what was asked for."""
    from sparsenn.report import draw_layers, layer_table, summary, to_json, to_record

    screen = console(sys.stderr if targets.json == STDOUT else sys.stdout)
    screen.print(summary(name, result, verdict))
    if targets.stats:
        screen.print(layer_table(result.statistics))
    if targets.output is not None:
        _write_output(targets.output, name, result)
    if targets.json is not None:
        document = to_json(to_record(result, None if isinstance(verdict, str) else verdict.passed))
        write_json(targets.json, document)
    if targets.plot is not None:
        with drawing(targets.plot):
            draw_layers(result.statistics, targets.plot, name)
    if targets.report is not None:
        from sparsenn.report.page import inference_page

        write_page(targets.report, inference_page(name, result, verdict))


def _write_output(path: Path, name: str, result: Result) -> None:
    from sparsenn.io import write_categories, write_result

    if is_hdf5(path):
        notes = {"dataset": name, "plan": str(result.plan)}
        write_result(path, result.outputs, result.categories, notes)
    else:
        write_categories(path, result.categories)
