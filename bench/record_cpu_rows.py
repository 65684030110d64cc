"""Record what a session takes on a CPU for sparse layers, one row to thousands, beside ONNX Runtime and OpenVINO.

Usage: python bench/record_cpu_rows.py [--only NAME …] [--seconds S] [--machine NAME]

Networks of random weights. OpenVINO is left out where it cannot be imported. Outputs are compared first. Writes
bench/results/<machine>/cpu-rows.json; the exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import scipy.sparse
from cpu_peers import DEEPSPARSE, DEEPSPARSE_NOTE, floor, openvino_call
from record_golden import TOLERANCE
from results_file import results_path, write_results
from wall_timing import timed_in_blocks

from sparsenn import Network, ReLU, Session, to_onnx

COLUMNS = [
    ("network", "network"),
    ("rows", "rows"),
    ("milliseconds", "sparsenn (ms)", "{:.3f}"),
    ("onnxruntime", "ONNX Runtime (ms)", "{:.3f}"),
    ("openvino", "OpenVINO (ms)", "{:.3f}"),
    ("deepsparse", "DeepSparse, once (ms)", "{:.3f}"),
    ("floor", "floor (ms)", "{:.3f}"),
    ("share", "% of roofline", "{:.0%}"),
    ("chosen", "kernels"),
]


@dataclass(frozen=True)
class Case:
    """A chain of layers, ReLU after each: widths, weights of an output, and numbers of rows."""

    widths: tuple[int, ...]
    weights: tuple[int, ...]
    rows: tuple[int, ...]

    def network(self) -> Network:
        """Return the network, the inputs of an output at random places."""
        rng = np.random.default_rng(0)
        layers = []
        for inputs, outputs, each in zip(self.widths[:-1], self.widths[1:], self.weights, strict=True):
            places = np.concatenate([np.sort(rng.choice(inputs, each, replace=False)) for _ in range(outputs)])
            values = (rng.standard_normal(places.size) * np.sqrt(2 / each)).astype(np.float32)
            starts = np.arange(0, places.size + 1, each)
            layers.append(scipy.sparse.csc_array((values, places, starts), shape=(inputs, outputs)))
        return Network.from_scipy(layers, bias=0.01, activation=ReLU())


LENET = (784, 300, 100, 10)
CASES = {
    "jets, 64-32-32-5, one an output": Case((64, 32, 32, 5), (1, 1, 1), (1, 16, 64, 10_000)),
    "LeNet-300-100, 1.9 %": Case(LENET, (15, 6, 2), (1, 16, 64, 10_000)),
    "LeNet-300-100, 20 %": Case(LENET, (157, 60, 20), (1, 16, 64, 10_000)),
    "24 × 1024, 32 an output": Case((1024,) * 25, (32,) * 24, (1, 16, 64, 6000)),
    "12 × 1024, 102 an output": Case((1024,) * 13, (102,) * 12, (1, 16, 64, 6000)),
    "4 × 4096, 205 an output": Case((4096,) * 5, (205,) * 4, (1, 16, 64, 6000)),
}


def recorded(name: str, case: Case, seconds: float) -> list[dict[str, Any]]:
    """Time a network; return a row for each number of rows, `difference` as a share of the largest output."""
    network, found = case.network(), []
    with tempfile.TemporaryDirectory() as folder, Session(network, device="cpu") as session:
        path = Path(folder) / "network.onnx"
        to_onnx(network, path)
        file = path.read_bytes()
        runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        source = runtime.get_inputs()[0].name
        for count in case.rows:
            rows = np.random.default_rng(count).random((count, network.inputs), dtype=np.float32)
            calls: list[Callable[[], Any]] = [
                lambda rows=rows: session(rows),
                lambda rows=rows: runtime.run(None, {source: rows})[0],
            ]
            by_openvino = openvino_call(file, rows)
            if by_openvino is not None:
                calls.append(by_openvino)
            own, *others = (call() for call in calls)
            largest = max(1.0, *(float(np.abs(each).max()) for each in others))
            ours, by_runtime, *rest = timed_in_blocks(calls, seconds)
            least = floor(network, count)
            found.append(
                {
                    "key": f"{name}-{count}",
                    "network": name,
                    "rows": count,
                    "milliseconds": ours.median,
                    "onnxruntime": by_runtime.median,
                    "openvino": rest[0].median if rest else None,
                    "deepsparse": DEEPSPARSE.get((name, count)),
                    "floor": least,
                    "share": least / ours.median,
                    "chosen": ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(rows).kernels)),
                    "difference": max(float(np.abs(own - each).max()) for each in others) / largest,
                }
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record sparse layers on a CPU.")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each network and number of rows")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    rows = [row for name in options.only for row in recorded(name, CASES[name], options.seconds)]
    write_results(
        results_path("cpu-rows", folder=options.machine),
        table="cpu-rows",
        title="Sparse layers with random weights, on a CPU",
        columns=COLUMNS,
        rows=rows,
        configuration={"seconds": options.seconds},
        notes=[
            "Medians of warm calls, in blocks of each library alternately, with its own number of threads. Outputs "
            "were compared first. The floor is the time of the multiply-adds of weights that are left at the rate of a "
            "dense product, or of copying them, the rows and the outputs once.",
            DEEPSPARSE_NOTE,
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in wrong:
        print(f"record_cpu_rows: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
