"""Every kernel for a stack of dense layers on 72-64-64-4, beside PyTorch and cuBLAS, in each precision.

Outputs of a sample of rows are checked against float64 first. Usage::

    python bench/record_mlp.py [--widths N ...] [--rows N ...] [--machine NAME] [--seconds S]

The result goes to bench/results/<machine>/mlp.json. PyTorch is left out where it is not installed. The exit code is
1 if an answer is further from float64 than its precision allows.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from ceilings import Peaks
from device_peaks import cublas_precision, peaks
from event_timing import timed as queued
from results_file import Column, write_results
from rung_recording import difference, record_rungs

from sparsenn.backends import Kernel
from sparsenn.backends.cuda.dense.stack import DenseStack, upload_dense
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.studies.ladder import ladder_for

try:
    import torch
except ImportError:
    torch = None

RUNS = 30
CACHE_BYTES = 200 << 20
"""Inputs are rotated until they are larger than any cache."""

MOST_CALLS = 64
"""In one graph."""

SAMPLE = 12_800
"""Rows checked."""

LIBRARY = "cublas"
"""The rung that calls a library, which cannot be captured in a graph through CuPy."""

COLUMNS = (
    Column("rows", "rows", "{:,}"),
    Column("precision", "precision"),
    Column("features", "features"),
    Column("kernel", "kernel"),
    Column("microseconds", "ours (µs)", "{:,.1f}"),
    Column("spread_microseconds", "spread (µs)", "{:.1f}"),
    Column("floor_share", "% of roofline", "{:.0%}"),
    Column("torch_eager_microseconds", "PyTorch (µs)", "{:,.1f}"),
    Column("torch_graph_microseconds", "its graph (µs)", "{:,.1f}"),
    Column("torch_fused_microseconds", "with fused ReLU (µs)", "{:,.1f}"),
    Column("cublas_microseconds", "cuBLAS (µs)", "{:,.1f}"),
    Column("over_best", "× the best of them", "{:.2f}"),
    Column("error", "error", "{:.1e}"),
    Column("plain_error", "error of plain float32", "{:.1e}"),
)


# ---- Timing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and interquartile range."""

    median: float
    spread: float


def summary(samples: Sequence[float]) -> Timing:
    """Return median and interquartile range."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return Timing(middle, high - low)


def timed(calls: Sequence[Callable[[], object]]) -> Timing:
    """Time calls one after the other in a captured graph, by events around it; per call."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        kept = [call() for call in calls]
        graph = stream.end_capture()
        events = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(RUNS)]
        for _ in range(3):
            graph.launch(stream)
        for start, stop in events:
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
        stream.synchronize()
    del kept
    return summary([cp.cuda.get_elapsed_time(*pair) / 1e3 / len(calls) for pair in events])


# ---- The network and its inputs ---------------------------------------------------------------------------------


def network(widths: Sequence[int]) -> tuple[Linear, ...]:
    """Return layers with random weights and biases, ReLU after all but the last."""
    rng = np.random.default_rng(3)
    shapes = list(pairwise(widths))
    return tuple(
        Linear(
            rng.normal(size=shape) * math.sqrt(2 / shape[0]),
            rng.normal(size=shape[1]) / 4,
            Identity() if number == len(shapes) else ReLU(),
        )
        for number, shape in enumerate(shapes, start=1)
    )


def inputs(rows: int, width: int, kind: Any) -> list[Any]:
    """Return as many matrices of features as it takes to leave no cache with one that comes again."""
    size = rows * width * np.dtype(kind).itemsize
    count = max(1, min(MOST_CALLS, -(-CACHE_BYTES // size)))
    rng = cp.random.default_rng(5)
    return [rng.standard_normal((rows, width), np.float32).astype(kind, copy=False) for _ in range(count)]


def exact(layers: Sequence[Linear], features: Any) -> Any:
    """Return the float64 outputs, computed on the device."""
    values = features.astype(np.float64)
    for layer in layers:
        values = values @ cp.asarray(layer.weights, np.float64) + cp.asarray(layer.bias_vector(), np.float64)
        if isinstance(layer.activation, ReLU):
            values = cp.maximum(values, 0)
    return values


# ---- cuBLAS through CuPy ----------------------------------------------------------------------------------------


_FINISH = {
    positive: cp.ElementwiseKernel(
        "T bias", "T sum", "sum += bias;" + ("sum = sum < T(0) ? T(0) : sum;" if positive else ""), f"finish_{positive}"
    )
    for positive in (False, True)
}


class CuBLAS:
    """A product by cuBLAS and one further kernel for bias and ReLU, a layer."""

    def __init__(self, layers: Sequence[Linear], rows: int, kind: Any) -> None:
        self.weights = [cp.asarray(layer.weights, kind) for layer in layers]
        self.biases = [cp.asarray(layer.bias_vector(), kind) for layer in layers]
        self.finish = [_FINISH[isinstance(layer.activation, ReLU)] for layer in layers]
        self.sums = [cp.empty((rows, layer.outputs), kind) for layer in layers]

    def __call__(self, features: Any) -> Any:
        """Return the outputs."""
        for weights, bias, finish, sums in zip(self.weights, self.biases, self.finish, self.sums, strict=True):
            cp.matmul(features, weights, out=sums)
            finish(bias, sums)
            features = sums
        return features


def time_cublas(layers: Sequence[Linear], given: Sequence[Any], precision: str) -> float:
    """Return seconds of a call; queued one by one, as CuPy does not capture cuBLAS."""
    peer = CuBLAS(layers, given[0].shape[0], given[0].dtype)
    with cublas_precision(precision):
        return queued(lambda: [peer(features) for features in given]).median / len(given)


# ---- PyTorch ----------------------------------------------------------------------------------------------------


def time_torch(layers: Sequence[Linear], given: Sequence[Any], precision: str) -> dict[str, float | None]:
    """Return seconds of a call: layers called one by one, the same in a graph, and a graph with ReLU in the product."""
    if torch is None:
        return dict.fromkeys(("eager", "graph", "fused"))
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    kind = torch.float16 if given[0].dtype == np.float16 else torch.float32
    rows = [torch.from_dlpack(features) for features in given]
    modules: list[Any] = []
    for layer in layers:
        linear = torch.nn.Linear(layer.inputs, layer.outputs, device="cuda", dtype=kind)
        linear.weight.data.copy_(torch.from_numpy(layer.weights.T.copy()))
        linear.bias.data.copy_(torch.from_numpy(layer.bias_vector()))
        modules.append(linear)
        if isinstance(layer.activation, ReLU):
            modules.append(torch.nn.ReLU())
    plain = torch.nn.Sequential(*modules)

    def fused(features: Any) -> Any:
        for module, following in zip(modules, [*modules[1:], None], strict=True):
            if isinstance(module, torch.nn.ReLU):
                continue
            if isinstance(following, torch.nn.ReLU):
                features = torch._addmm_activation(module.bias, features, module.weight.t())
            else:
                features = torch.addmm(module.bias, features, module.weight.t())
        return features

    with torch.no_grad():
        return {
            "eager": torch_seconds(lambda: [plain(features) for features in rows], len(rows)),
            "graph": graph_seconds(plain, rows),
            "fused": graph_seconds(fused, rows),
        }


def graph_seconds(call: Callable[[Any], Any], rows: Sequence[Any]) -> float | None:
    """Capture a call for each matrix in one graph and time that; None if PyTorch refuses."""
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for features in rows[:2]:
                call(features)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for features in rows:
                call(features)
    except RuntimeError as error:
        print(f"PyTorch: left out: {error}", file=sys.stderr)
        return None
    return torch_seconds(graph.replay, len(rows))


def torch_seconds(call: Callable[[], object], calls: int) -> float:
    """Return seconds of one of the calls that `call` makes."""
    for _ in range(3):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(RUNS)]
    for start, stop in events:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return summary([start.elapsed_time(stop) / 1e3 / calls for start, stop in events]).median


# ---- The table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """One of our rungs on so many rows of a type."""

    rung: Kernel
    kind: Any
    rows: int


def cases(layers: Sequence[Linear], rows: int) -> Iterator[Case]:
    """Yield every rung that takes the network, with each type of rows that it takes."""
    for rung in ladder_for("mlp").rungs["cuda"]:
        if rung.name != LIBRARY and rung.why_not(current_machine(), layers) is None:
            yield Case(rung, np.float32, rows)
            if rung.half_rows:
                yield Case(rung, np.float16, rows)


def measure(
    case: Case, layers: Sequence[Linear], stack: DenseStack, top: Peaks, peers: dict[Any, Any]
) -> dict[str, Any]:
    """Return one row of the table."""
    launch, precision = case.rung.launch, case.rung.precision
    given = inputs(case.rows, layers[0].inputs, case.kind)
    sample = given[0][:SAMPLE]
    right = exact(layers, sample)
    error = difference(launch(stack, given[0])[:SAMPLE], right)
    plain = difference(CuBLAS(layers, len(sample), np.float32)(sample.astype(np.float32)), right)
    ours = timed([partial(launch, stack, features) for features in given])
    key = precision, case.kind, case.rows
    if key not in peers:
        pytorch = time_torch(layers, given, precision)
        peers[key] = {**pytorch, "cublas": time_cublas(layers, given, precision)}
    micro = {name: None if seconds is None else 1e6 * seconds for name, seconds in peers[key].items()}
    moved = case.rows * (layers[0].inputs + layers[-1].outputs) * given[0].itemsize
    multiply_adds = case.rows * sum(layer.inputs * layer.outputs for layer in layers)
    floor = top.floor(moved, multiply_adds, precision)
    return {
        "rows": case.rows,
        "precision": precision,
        "features": np.dtype(case.kind).name,
        "kernel": case.rung.name,
        "microseconds": 1e6 * ours.median,
        "spread_microseconds": 1e6 * ours.spread,
        "floor_microseconds": 1e6 * floor,
        "floor_share": floor / ours.median,
        "torch_eager_microseconds": micro["eager"],
        "torch_graph_microseconds": micro["graph"],
        "torch_fused_microseconds": micro["fused"],
        "cublas_microseconds": micro["cublas"],
        "over_best": min(value for value in micro.values() if value is not None) / (1e6 * ours.median),
        "error": error,
        "plain_error": plain,
        "inputs_in_turn": len(given),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record a fused dense network beside PyTorch and cuBLAS.")
    parser.add_argument("--widths", type=int, nargs="+", default=[72, 64, 64, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[12_800, 5_120_000])
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--seconds", type=float, default=80, help="start no further case after this time")
    options = parser.parse_args(arguments)
    top = peaks()
    print(top, flush=True)
    return record_rungs("mlp", COLUMNS, _cases(options, top), partial(record, top, options.widths), options.machine)


def _cases(options: argparse.Namespace, top: Peaks) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    layers = network(options.widths)
    stack = upload_dense(cp.cuda.runtime.getDevice(), layers)
    peers: dict[Any, Any] = {}
    for rows in options.rows:
        for case in cases(layers, rows):
            if time.perf_counter() - start > options.seconds:
                print(f"out of time before {case.rung.name}, {rows}", flush=True)
                return
            yield measure(case, layers, stack, top, peers)
            cp.get_default_memory_pool().free_all_blocks()


def record(top: Peaks, widths: Sequence[int], path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the result file."""
    write_results(
        path,
        table="mlp",
        title=f"The dense network {'-'.join(map(str, widths))}, kernel by kernel, beside PyTorch and cuBLAS",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "widths": widths,
            "activation": "ReLU, none after the last layer",
            "copy_bytes_per_second": top.copied,
            "multiply_adds_per_second": top.rates,
            "torch": None if torch is None else torch.__version__,
        },
        notes=(
            "Times are of one call in a captured graph of calls on inputs in turn, more than any cache holds; "
            "PyTorch's first column is without a graph, and cuBLAS's calls are queued one by one. Medians of "
            f"{RUNS} graphs. Spread: interquartile range.",
            "Floor: the larger of features and outputs moved once at the measured copy bandwidth, and the "
            "multiply-adds at the rate of a cuBLAS product of the same precision; for float32 at a third of TF32's, if "
            "that is more.",
            f"Error: largest difference from float64 on {SAMPLE:,} rows, in parts of the largest output; plain float32 "
            "is cuBLAS on the same features.",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
