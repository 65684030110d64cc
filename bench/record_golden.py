"""Record what a session takes for ONNX files of many kinds, beside ONNX Runtime with the whole file, and PyTorch.

Usage: python bench/record_golden.py [--seconds S] [--machine NAME]

`golden_networks.py` has the networks. All take the same rows, in blocks of calls in turns, with the threads that each
takes by itself; outputs are compared first. Writes bench/results/<machine>/golden.json, the slowest beside ONNX Runtime
first. The exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from golden_networks import NETWORKS, Golden
from results_file import results_path, write_results
from wall_timing import timed_in_blocks

from sparsenn import ForeignLayer, Session, from_onnx

ROWS = (1, 64)
TOLERANCE = 1e-4
"""The largest difference of two outputs, in parts of the largest output, or of 1."""


def as_matrix(outputs: Any) -> np.ndarray:
    """Return a row's numbers side by side, of one array or several."""
    several = (
        outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, list | tuple) else [outputs]
    )
    return np.concatenate([np.asarray(each).reshape(len(each), -1) for each in several], axis=1)


COLUMNS = [
    ("network", "network"),
    ("rows", "rows"),
    ("milliseconds", "sparsenn (ms)", "{:.3f}"),
    ("onnxruntime", "ONNX Runtime (ms)", "{:.3f}"),
    ("torch", "PyTorch (ms)", "{:.3f}"),
    ("times", "× ONNX Runtime", "{:.2f}"),
    ("layers", "layers here"),
    ("foreign", "of ONNX Runtime"),
    ("chosen", "kernels"),
]
"""Columns of a table of what `recorded` returns."""


def recorded(title: str, golden: Golden, seconds: float, counts: Sequence[int] = ROWS) -> list[dict[str, Any]]:
    """Time a network; return a row for each number of rows, `difference` in parts of the largest output."""
    module = golden.module()
    file = golden.onnx(module)
    runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    network = from_onnx(onnx.load_from_string(file))
    foreign = sum(isinstance(layer, ForeignLayer) for layer in network)
    found = []
    with Session(network, device="cpu") as session, torch.no_grad():
        for count in counts:
            rows = golden.rows(count)
            inputs = rows if len(rows) > 1 else next(iter(rows.values()))
            tensors = [torch.from_numpy(each) for each in rows.values()]
            calls: list[Callable[[], Any]] = [
                lambda inputs=inputs: session(inputs),
                lambda rows=rows: runtime.run(None, rows),
                lambda tensors=tensors: module(*tensors),
            ]
            own, *others = (as_matrix(call()) for call in calls)
            largest = max(1.0, *(float(np.abs(each).max()) for each in others))
            difference = max(float(np.abs(own - each).max()) for each in others) / largest
            ours, by_runtime, by_torch = timed_in_blocks(calls, seconds)
            found.append(
                {
                    "key": f"{title}-{count}",
                    "network": title,
                    "rows": count,
                    "milliseconds": ours.median,
                    "onnxruntime": by_runtime.median,
                    "torch": by_torch.median,
                    "times": by_runtime.median / ours.median,
                    "chosen": ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(inputs).kernels)),
                    "layers": len(network) - foreign,
                    "foreign": foreign,
                    "difference": difference,
                }
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record ONNX files of many kinds beside ONNX Runtime and PyTorch.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each network and number of rows")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    rows = [row for title, golden in NETWORKS.items() for row in recorded(title, golden, options.seconds)]
    rows.sort(key=lambda row: row["times"])
    write_results(
        results_path("golden", folder=options.machine),
        table="golden",
        title=f"ONNX files of many kinds, on a CPU: at least {rows[0]['times']:.2f} times as fast as ONNX Runtime",
        columns=COLUMNS,
        rows=rows,
        configuration={"rows": list(ROWS), "seconds": options.seconds},
        notes=[
            "Medians of warm calls, in blocks for each library in turns, rows and outputs in host memory, each library "
            "with its own number of threads. Outputs were compared first. A fifth of the weights is left in policies, "
            "transformers, the head of the LSTM, and the layers of the table; others are dense. The kernel onnxruntime "
            "is ONNX Runtime with the whole network.",
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in wrong:
        print(f"record_golden: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
