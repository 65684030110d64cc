"""Record a network of images: time by layer and in all, and accuracy, in each precision, beside PyTorch.

Usage: python bench/record_lenet.py [--device D] [--pruned FILE] [--classes FILE] [--batches B ...] [--runs R]
[--machine NAME] MODEL IMAGES LABELS. MODEL is a file such as datasets/lenet86.h5; the pruned network is looked for
beside it, under MODEL-pruned.h5. --classes names what tools/train_lenet86.py wrote: predictions are held against it.

Images are enlarged to the model's size and brought to the device before anything is timed. On a GPU times are those
between two events; launches are queued one by one, or captured in a graph and launched together. Writes
bench/results/<machine>/lenet.json. The exit code is 1, and nothing is written, if a prediction in float32 is not that
of the classes file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from image_timing import Gpu, Host, Peer, torch
from results_file import Column, results_path, write_results

from sparsenn.backends import backend_for
from sparsenn.engine import Session
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.io import read_model
from sparsenn.layers import Conv2d, ImageLayer, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.report.architecture import layer_title
from sparsenn.training import read_data
from sparsenn.training.inference import rows_for

LIBRARY = "cublas"
"""The kernel of dense layers that CuPy cannot capture in a graph."""

PRECISIONS = ("float32", "tf32", "float16")
ONE_BY_ONE, GRAPH = "launch by launch", "one CUDA graph"
COLUMNS = (
    Column("images", "images", "{:,}"),
    Column("precision", "precision"),
    Column("network", "network"),
    Column("method", "method"),
    Column("first_convolution", "first convolution (ms)", "{:.3f}"),
    Column("second_convolution", "second convolution (ms)", "{:.3f}"),
    Column("milliseconds", "all layers (ms)", "{:.3f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.3f}"),
    Column("rate", "images/s", "{:,.0f}"),
    Column("accuracy", "accuracy", "{:.2%}"),
    Column("differing", "predictions unlike PyTorch's", "{:,}"),
)

TIMES = ("milliseconds", "spread_milliseconds")
"""Of a layer's median and interquartile range."""

Row = dict[str, Any]


# ---- Our network, step by step ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Step:
    """Layers `first` to `last`, counted from 0, that are launched together, and what runs them."""

    first: int
    last: int
    kernel: str
    run: Callable[[Any], Any]
    captures: bool = True


def steps_of(network: Network, name: str, precision: str, images: int) -> list[Step]:
    """Return a network as steps: layers of images one by one, consecutive dense ones together.

    Parameters
    ----------
    name : the device's, as `sparsenn.Session` takes it.
    images : how many there are at a time.
    """
    found = []
    for first, last in network.runs():
        ends = range(first + 1, last + 1) if network[first].family is ImageLayer else [last]
        start = first
        for end in ends:
            shape = network.shapes[start]
            image = None if network[start].family is not ImageLayer else shape if len(shape) == 3 else (1, 1, *shape)
            part = Network(network.layers[start:end], image)
            multiplies = part.edges > 0  # pools, and what else has no weights, have no precision
            session = Session(part, device=name, precision=precision if multiplies else "float32")
            kernel = session.plan(np.broadcast_to(np.float32(0), (images, part.inputs))).kernel.name
            found.append(Step(start, end, kernel, session, kernel != LIBRARY))
            start = end
    return found


# ---- What is measured -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Problem:
    """Images as the network takes them, their labels, and what PyTorch predicted when it was trained, if that is known.

    Parameters
    ----------
    rows : float32 (images, numbers of an image).
    labels, classes : (images,) whole numbers; classes by the name of the model's file.
    """

    rows: np.ndarray
    labels: np.ndarray
    classes: dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """So many images, in a precision, through a network."""

    images: int
    precision: str
    path: Path
    model: Model

    @property
    def name(self) -> str:
        return "pruned" if any(layer.family is SparseLinear for layer in self.model.network) else "whole"


def summary(seconds: Sequence[float]) -> tuple[float, float]:
    """Return median and interquartile range, in milliseconds."""
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return 1e3 * middle, 1e3 * (high - low)


def result_row(case: Case, method: str, problem: Problem, outputs: np.ndarray, seconds: Sequence[float]) -> Row:
    """Return a line of the table, without the times of single layers."""
    predicted = outputs.reshape(case.images, -1).argmax(axis=1)
    if not np.isfinite(outputs).all():
        raise UsageError(f"{method}, {case.precision}: an output is not finite")
    known = problem.classes.get(case.path.name)
    median, spread = summary(seconds)
    return {
        "images": case.images,
        "precision": case.precision,
        "network": case.name,
        "method": method,
        "first_convolution": None,
        "second_convolution": None,
        "milliseconds": median,
        "spread_milliseconds": spread,
        "rate": 1e3 * case.images / median,
        "accuracy": float((predicted == problem.labels[: case.images]).mean()),
        "differing": None if known is None else int((predicted != known[: case.images]).sum()),
        "runs": len(seconds),
    }


def ours(case: Case, problem: Problem, device: Host | Gpu, name: str, runs: int) -> Iterator[Row]:
    """Yield what we take, launch by launch, and in a graph where all of it can be captured."""
    network = case.model.network
    features = device.place_rows(problem.rows[: case.images], case.precision)
    forward = Session(network, device=name, precision=case.precision)
    outputs = device.fetch(forward(features))
    seconds = {ONE_BY_ONE: device.seconds(lambda: forward(features), runs)}
    if case.name == "pruned":
        layers = counted_times(network, forward, features, runs)
    else:
        steps = steps_of(network, name, case.precision, case.images)
        layers = layer_times(network, steps, features, device, runs)
        capturable = all(step.captures for step in steps)
        captured = device.captured_seconds(lambda: forward(features), runs) if capturable else None
        if captured is not None:
            seconds[GRAPH] = captured
    for way, found in seconds.items():
        method = f"sparsenn, {way}" if device.graphs else "sparsenn"
        yield result_row(case, method, problem, outputs, found) | layers


def counted_times(network: Network, forward: Session, features: Any, runs: int) -> Row:
    """Return the times of layers as the session tells them, which waits after each step to do so."""
    results = [forward.run(features) for _ in range(1 + runs)][1:]
    times = [
        {
            "layers": [found[0].layer, found[0].layer],
            "what": [layer_title(network[found[0].layer - 1])],
            "kernel": found[0].kernel,
            **dict(zip(TIMES, summary([layer.seconds for layer in found]), strict=True)),
        }
        for found in zip(*(result.statistics for result in results), strict=True)
    ]
    return with_convolutions(network, times)


def layer_times(network: Network, steps: Sequence[Step], features: Any, device: Host | Gpu, runs: int) -> Row:
    """Time each step by itself on what the one before gave; captured in a graph where that can be."""
    found, values = [], features
    for step in steps:
        call = lambda step=step, values=values: step.run(values)  # noqa: E731 - kept for this step and its values
        seconds = device.captured_seconds(call, runs) if step.captures else None
        median, spread = summary(device.seconds(call, runs) if seconds is None else seconds)
        found.append(
            {
                "layers": [step.first + 1, step.last],
                "what": [layer_title(layer) for layer in network.layers[step.first : step.last]],
                "kernel": step.kernel,
                **dict(zip(TIMES, (median, spread), strict=True)),
            }
        )
        values = call()
    return with_convolutions(network, found)


def with_convolutions(network: Network, times: Sequence[Row]) -> Row:
    """Return the times of layers, and those of the first two convolutions by themselves."""
    convolutions = [part["milliseconds"] for part in times if isinstance(network[part["layers"][0] - 1], Conv2d)]
    first, second, *_ = (*convolutions, None, None)
    return {"first_convolution": first, "second_convolution": second, "layer_times": list(times)}


def pytorch(case: Case, problem: Problem, on_gpu: bool, runs: int) -> Iterator[Row]:
    """Yield what PyTorch takes for the same, launch by launch and in a graph."""
    network = case.model.network
    peer = Peer(network, "cuda" if on_gpu else "cpu", case.precision)
    images = peer.tensor(problem.rows[: case.images]).reshape(case.images, *network.shapes[0])
    outputs = peer(images).float().cpu().numpy()
    times, values = [], images
    for layer, run in zip(network, peer.layers, strict=True):
        if isinstance(layer, Conv2d):
            with torch.no_grad():
                call = lambda run=run, values=values: run(values)  # noqa: E731 - kept for this layer and its values
                times.append(summary(peer.seconds(peer.captured(call) or call, runs))[0])
        with torch.no_grad():
            values = run(values)
    first, second, *_ = (*times, None, None)
    convolutions = {"first_convolution": first, "second_convolution": second}
    calls = {ONE_BY_ONE: lambda: peer(images), GRAPH: peer.captured(lambda: peer(images))}
    for way, call in calls.items():
        if call is not None:
            method = f"PyTorch, {way}" if on_gpu else "PyTorch"
            yield result_row(case, method, problem, outputs, peer.seconds(call, runs)) | convolutions


# ---- The command ------------------------------------------------------------------------------------------------


def read_problem(model: Model, options: argparse.Namespace, models: Sequence[Path]) -> Problem:
    """Read images, labels and PyTorch's predictions; as many images as the largest batch takes.

    Raises
    ------
    SparseNNError
        A file is not as it should be, or the classes are those of another model.
    """
    data = read_data(options.images, labels=options.labels, outputs=model.network.outputs).head(max(options.batches))
    classes: dict[str, np.ndarray] = {}
    if options.classes is not None:
        for name, said in json.loads(options.classes.read_text(encoding="utf-8")).items():
            path = next((path for path in models if path.name == name), None)
            if path is not None and said["sha256"] != hashlib.sha256(path.read_bytes()).hexdigest():
                raise UsageError(f"{options.classes}: holds the classes of another {name}: the checksums differ")
            classes[name] = np.array(said["classes"])
            if len(classes[name]) < data.rows:
                raise UsageError(f"{options.classes}: holds {len(classes[name])} classes for {data.rows} images")
    return Problem(rows_for(model, data), data.targets.argmax(axis=1), classes)


def measure(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    """Return all lines of the table; `notes` gets what could not be measured."""
    beside = options.model.with_name(f"{options.model.stem}-pruned{options.model.suffix}")
    pruned = options.pruned or (beside if beside.is_file() else None)
    paths = [path for path in (options.model, pruned) if path is not None]
    models = {path: read_model(path) for path in paths}
    problem = read_problem(models[options.model], options, paths)
    on_gpu = backend_for(options.device).device == "cuda"
    device = Gpu() if on_gpu else Host()
    rows: list[Row] = []
    for images in sorted({min(batch, len(problem.rows)) for batch in options.batches}):
        for path, model in models.items():
            for precision in PRECISIONS:
                case = Case(images, precision, path, model)
                found: list[Row] = []
                try:
                    found += ours(case, problem, device, options.device, options.runs)
                    if torch is not None and case.name == "whole":
                        found += pytorch(case, problem, on_gpu, options.runs)
                except UsageError as error:
                    notes.append(f"The {case.name} network in {precision}: {error}.")
                for row in found:
                    print("  ".join(column.show(row[column.key]) for column in COLUMNS), flush=True)
                rows += found
    if torch is None:
        notes.append("PyTorch was not there to compare with.")
    notes[:] = dict.fromkeys(notes)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parse(arguments)
    notes = [
        "All layers, from images on the device to the probabilities there; medians and interquartile ranges. Times of "
        "single convolutions, bias and ReLU included, are of calls by themselves, captured in a graph where that is "
        "possible; those of the pruned network are wall time, of runs that wait for the device after each step. Sparse "
        "layers may be multiplied as dense ones, and in float32 otherwise. PyTorch: channels first, cuDNN's fastest "
        "algorithm.",
    ]
    try:
        rows = measure(options, notes)
    except (SparseNNError, OSError) as error:
        print(f"record_lenet: {error}", file=sys.stderr)
        return 2
    wrong = [row for row in rows if row["precision"] == "float32" and row["differing"]]
    for row in wrong:
        print(f"{row['method']}: {row['differing']} of {row['images']} predictions are wrong", file=sys.stderr)
    if wrong:
        return 1
    model = read_model(options.model)
    path = results_path("lenet", folder=options.machine)
    write_results(
        path,
        table="lenet",
        title=f"LeNet on MNIST, {' × '.join(map(str, model.network.shapes[0]))}, {model.network.multiply_adds:,} "
        "multiply-adds an image",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "model": options.model.name,
            "sha256": hashlib.sha256(options.model.read_bytes()).hexdigest(),
            "device": options.device,
            "batches": options.batches,
            "runs": options.runs,
            "shapes": model.network.shapes,
            "torch": None if torch is None else torch.__version__,
        },
        notes=notes,
    )
    print(path)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record a network of images, layer by layer, beside PyTorch.")
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pruned", type=Path, help="the same network pruned; MODEL-pruned.h5 if it is there")
    parser.add_argument("--classes", type=Path, help="JSON: what PyTorch predicted")
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--machine", help="folder of results, instead of this machine's")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
