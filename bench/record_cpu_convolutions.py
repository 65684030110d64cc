"""Record what a session takes on a CPU for pruned networks of convolutions, beside ONNX Runtime and OpenVINO.

Usage: python bench/record_cpu_convolutions.py [--only NAME …] [--seconds S] [--machine NAME]

Models of torchvision with random weights: all, or the largest tenth or twentieth of each layer's, but for depthwise
convolutions. OpenVINO is left out where it cannot be imported. Outputs are compared first. Writes
bench/results/<machine>/cpu-convolutions.json; the exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from cpu_peers import DEEPSPARSE, DEEPSPARSE_NOTE, floor, openvino_call
from golden_networks import Golden, numbers
from record_golden import TOLERANCE, as_matrix
from record_torchvision import PIXELS, made
from results_file import results_path, write_results
from wall_timing import timed_in_blocks

from sparsenn import Session, from_onnx

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "vgg11")
SHARES = (1.0, 0.1, 0.05)
ROWS = (1, 16)

COLUMNS = [
    ("network", "network"),
    ("left", "weights", "{:.0%}"),
    ("rows", "images"),
    ("milliseconds", "sparsenn (ms)", "{:.2f}"),
    ("onnxruntime", "ONNX Runtime (ms)", "{:.2f}"),
    ("openvino", "OpenVINO (ms)", "{:.2f}"),
    ("deepsparse", "DeepSparse, once (ms)", "{:.1f}"),
    ("floor", "floor (ms)", "{:.2f}"),
    ("chosen", "kernels"),
]


def recorded(name: str, left: float, seconds: float) -> list[dict[str, Any]]:
    """Time a model; return a row for each number of images, `difference` as a share of the largest output."""
    golden = Golden(partial(made, name, left, spares_depthwise=True), {"x": numbers(3, PIXELS, PIXELS)})
    file = golden.onnx(golden.module())
    runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    network = from_onnx(onnx.load_from_string(file))
    found = []
    with Session(network, device="cpu") as session:
        for count in ROWS:
            rows = golden.rows(count)["x"]
            calls: list[Callable[[], Any]] = [
                lambda rows=rows: session(rows),
                lambda rows=rows: runtime.run(None, {"x": rows}),
            ]
            by_openvino = openvino_call(file, rows)
            if by_openvino is not None:
                calls.append(by_openvino)
            own, *others = (as_matrix(call()) for call in calls)
            largest = max(1.0, *(float(np.abs(each).max()) for each in others))
            ours, by_runtime, *rest = timed_in_blocks(calls, seconds)
            found.append(
                {
                    "key": f"{name}-{left:g}-{count}",
                    "network": name,
                    "left": left,
                    "rows": count,
                    "milliseconds": ours.median,
                    "onnxruntime": by_runtime.median,
                    "openvino": rest[0].median if rest else None,
                    "deepsparse": DEEPSPARSE.get((f"{name}, {left:.0%}".replace("%", " %"), count)),
                    "floor": floor(network, count),
                    "chosen": ", ".join(dict.fromkeys(kernel.name for kernel in session.plan(rows).kernels)),
                    "difference": max(float(np.abs(own - each).max()) for each in others) / largest,
                }
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record pruned networks of convolutions on a CPU.")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each network and number of images")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    rows = [row for name in options.only for left in SHARES for row in recorded(name, left, options.seconds)]
    write_results(
        results_path("cpu-convolutions", folder=options.machine),
        table="cpu-convolutions",
        title="Pruned networks of convolutions, random weights, on a CPU",
        columns=COLUMNS,
        rows=rows,
        configuration={"rows": list(ROWS), "seconds": options.seconds, "pixels": PIXELS, "shares": list(SHARES)},
        notes=[
            f"Images of {PIXELS} × {PIXELS} pixels of random numbers. Medians of warm calls, in blocks of each library "
            "alternately, with its own number of threads. Outputs were compared first. The largest weights of each "
            "layer are left, and all of depthwise convolutions. The floor is the time of the multiply-adds of weights "
            "that are left at the rate of a dense product, or of copying them, the images and the outputs once.",
            DEEPSPARSE_NOTE,
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE]
    for row in wrong:
        print(f"record_cpu_convolutions: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
