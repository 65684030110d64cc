"""Record chains of three sparse layers on a GPU, for one row to thousands, beside PyTorch's dense products in a graph.

Usage: python bench/record_few_rows.py [--rows N ...] [--seconds S] [--limit S] [--machine NAME]

Rows are on the device. PyTorch multiplies the weights with their zeros, in the same precision, as one CUDA graph; a
bound call of a session and plain calls, with CuPy's array and with PyTorch's tensor, take the same rows. Outputs are
compared first. The floor is the time in which the device could copy the weights that are left. Writes
bench/results/<machine>/few-rows.json. The exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np
import scipy.sparse
import torch
from results_file import results_path, write_results
from torch_graphs import graph_of
from wall_timing import gpu_wait, timed

import sparsenn
from sparsenn.backends.cuda.runtime.device import current_machine

LAYERS = 3
BIAS = 0.01
CELLS = (
    *((width, density) for width in (512, 2048) for density in (0.01, 0.05, 0.2)),
    *((4096, density) for density in (0.05, 0.2, 0.5)),
    *((8192, density) for density in (0.01, 0.05, 0.2)),
)
"""Inputs and outputs of each layer, and the share of weights that is left."""

ROWS = (1, 8, 16, 64, 128, 1024, 8192)
PRECISIONS = {"float32": (torch.float32, 6), "float16": (torch.float16, 4)}
"""By precision: PyTorch's type, and the bytes of a weight and its place."""

TOLERANCE = {"float32": 1e-4, "float16": 3e-2}
"""The largest difference of two outputs, as a share of the largest output."""

COLUMNS = [
    ("precision", "precision"),
    ("width", "width"),
    ("density", "density", "{:.0%}"),
    ("rows", "rows"),
    ("torch", "PyTorch (µs)", "{:.0f}"),
    ("plain", "call (µs)", "{:.0f}"),
    ("tensor", "call with a tensor (µs)", "{:.0f}"),
    ("bound", "bound call (µs)", "{:.0f}"),
    ("times", "× PyTorch", "{:.2f}"),
    ("floor", "floor (µs)", "{:.1f}"),
    ("kernel", "kernel"),
]


def weights_of(width: int, density: float) -> list[scipy.sparse.csc_matrix]:
    """Return layers whose outputs have equally many weights, at places of chance in equal ranges."""
    rng, each = np.random.default_rng(0), int(width * density)
    layers = []
    for _ in range(LAYERS):
        spread = (np.arange(each) * (width / each))[None, :].astype(int)
        places = np.sort(spread + rng.integers(0, max(1, width // each), (width, each)), axis=1) % width
        values = (rng.standard_normal(places.size) * np.sqrt(2 / each)).astype(np.float32)
        offsets = np.arange(0, places.size + 1, each)
        layers.append(scipy.sparse.csc_matrix((values, places.ravel(), offsets), shape=(width, width)))
        layers[-1].sum_duplicates()
    return layers


def dense_graph(weights: Sequence[torch.Tensor], rows: torch.Tensor) -> tuple[Callable[[], Any], torch.Tensor]:
    """Return the replay of dense layers with ReLU, captured as a graph, and its outputs."""
    bias = torch.full((rows.shape[1],), BIAS, device="cuda", dtype=rows.dtype)

    def run() -> torch.Tensor:
        features = rows
        for each in weights:
            features = torch.relu(torch.addmm(bias, features, each))
        return features

    return graph_of(run)


def recorded(
    precision: str, width: int, density: float, counts: Sequence[int], seconds: float, end: float
) -> Iterator[dict[str, Any]]:
    """Time a chain; yield a row for each number of rows."""
    kind, edge_bytes = PRECISIONS[precision]
    layers = weights_of(width, density)
    network = sparsenn.Network.from_scipy(layers, bias=BIAS, activation=sparsenn.ReLU())
    dense = [torch.tensor(layer.toarray(), device="cuda").to(kind) for layer in layers]
    floor = sum(layer.nnz for layer in layers) * edge_bytes / current_machine().copy_bandwidth
    with sparsenn.Session(network, device="cuda", precision=precision) as session:
        for count in counts:
            if time.monotonic() > end:
                return
            tensor = torch.rand(count, width, device="cuda").to(kind)
            replay, outputs = dense_graph(dense, tensor)
            replay()
            rows = cupy.asarray(tensor)
            call, wait = session.bind(rows), gpu_wait()
            expected = cupy.asarray(outputs).astype(np.float32)
            difference = float(abs(call().astype(np.float32) - expected).max() / abs(expected).max())

            def microseconds(function: Callable[[], Any], wait: Callable[[], None] = wait) -> float:
                return 1e3 * timed(function, wait, most_seconds=seconds).median

            of_torch, bound = microseconds(replay), microseconds(call)
            yield {
                "key": f"{precision}-{width}-{density}-{count}",
                "precision": precision,
                "width": width,
                "density": density,
                "rows": count,
                "torch": of_torch,
                "plain": microseconds(lambda rows=rows: session(rows)),
                "tensor": microseconds(lambda tensor=tensor: session(tensor)),
                "bound": bound,
                "times": of_torch / bound,
                "floor": 1e6 * floor,
                "kernel": ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(rows).kernels)),
                "difference": difference,
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record chains of sparse layers of few rows on a GPU.")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each timing, at most")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no further cell begins")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows")
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = False
    end, rows = time.monotonic() + options.limit, list[dict[str, Any]]()
    for precision, (width, density) in itertools.product(PRECISIONS, CELLS):
        for row in recorded(precision, width, density, options.rows, options.seconds, end):
            rows.append(row)
            shown = [row[key] for key, *_ in COLUMNS]
            print(", ".join(f"{each:.3g}" if isinstance(each, float) else str(each) for each in shown), flush=True)
        torch.cuda.empty_cache()
    rows.sort(key=lambda row: row["times"])
    slower = sum(row["times"] < 1 for row in rows)
    write_results(
        results_path("few-rows", folder=options.machine),
        table="few-rows",
        title=f"Chains of sparse layers on a GPU: in {len(rows) - slower} of {len(rows)} cells faster than PyTorch",
        columns=COLUMNS,
        rows=rows,
        configuration={"layers": LAYERS, "rows": list(options.rows), "seconds": options.seconds},
        notes=[
            "Medians until the outputs are on the device, rows there. PyTorch multiplies weights with their zeros in "
            "the same precision, captured as one CUDA graph; × PyTorch is its time divided by the bound call's. "
            "Outputs were compared first. The floor is the weights that are left, each with its place, at the "
            "device's bandwidth."
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE[row["precision"]]]
    for row in wrong:
        print(f"record_few_rows: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
