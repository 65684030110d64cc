"""Record torchvision's networks on a GPU, dense and pruned, in each precision, beside PyTorch as one CUDA graph.

Usage: python bench/record_gpu_convolutions.py [--only NAME …] [--images N …] [--precisions NAME …] [--left S …]
                                               [--seconds S] [--limit S] [--machine NAME] [--add]

Models with random weights: all, or the largest tenth or twentieth of each layer's, but for depthwise convolutions.
Images are on the device. PyTorch multiplies all weights, with channels last; in float32 the faster layout counts.
Outputs are compared first. Writes bench/results/<machine>/gpu-convolutions.json; the exit code is 1 if outputs differ.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import numpy as np
import torch
from record_torchvision import PIXELS, made
from results_file import read_results, results_path, write_results
from torch_graphs import graph_of
from wall_timing import gpu_wait, timed

import sparsenn
from sparsenn.backends.kernel_records import CONV_OPERATION

MODELS = ("resnet50", "mobilenet_v2", "resnet18")
SHARES = (0.1, 1.0, 0.05)
IMAGES = (64, 1)

TOLERANCE = {"float32": 1e-3, "tf32": 5e-2, "float16": 5e-2}
"""The largest difference of two outputs, as a share of the largest output: of PyTorch's in float32, without TF32."""

COLUMNS = [
    ("network", "network"),
    ("left", "weights", "{:.0%}"),
    ("images", "images"),
    ("precision", "precision"),
    ("torch", "PyTorch (ms)", "{:.3f}"),
    ("bound", "bound call (ms)", "{:.3f}"),
    ("times", "× PyTorch", "{:.2f}"),
    ("chosen", "kernels of convolutions"),
]


def allow_tf32(allowed: bool) -> None:
    """Say whether PyTorch may multiply float32 numbers in TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


def milliseconds_of_torch(module: torch.nn.Module, images: torch.Tensor, precision: str, seconds: float) -> float:
    """Return the time of a module as a graph; in float32 of the faster layout."""
    allow_tf32(precision != "float32")
    kind, found = torch.float16 if precision == "float16" else torch.float32, []
    for layout in (torch.channels_last, torch.contiguous_format)[: 2 if precision == "float32" else 1]:
        own = copy.deepcopy(module).to(dtype=kind, memory_format=layout)
        rows = images.to(dtype=kind, memory_format=layout)
        replay, _ = graph_of(lambda own=own, rows=rows: own(rows))
        found.append(timed(replay, gpu_wait(), most_seconds=seconds).median)
        del replay, own, rows
        torch.cuda.empty_cache()
    return min(found)


def recorded(
    name: str, left: float, counts: Sequence[int], precisions: Sequence[str], seconds: float, end: float
) -> Iterator[dict[str, Any]]:
    """Time a model; yield a row for each number of images and precision."""
    if time.monotonic() > end:
        return
    torch.manual_seed(0)
    module = made(name, left, spares_depthwise=True).eval()
    network = sparsenn.from_torch(module, torch.zeros(1, 3, PIXELS, PIXELS))
    module.cuda()
    torch.backends.cudnn.benchmark = True
    for count, precision in itertools.product(counts, precisions):
        if time.monotonic() > end:
            return
        images = torch.randn(count, 3, PIXELS, PIXELS, device="cuda")
        allow_tf32(False)
        with torch.no_grad():
            expected = module(images).cpu().numpy()
        rows = cupy.asarray(images)
        with sparsenn.Session(network, device="cuda", precision=precision) as session:
            session(rows)  # measures kernels
            call = session.bind(rows)
            difference = float(np.abs(cupy.asnumpy(call()) - expected).max() / np.abs(expected).max())
            bound = timed(call, gpu_wait(), most_seconds=seconds).median
            chosen = [step.kernel for step in session.plan(rows).steps]
            kernels = Counter(kernel.name for kernel in chosen if kernel.operation == CONV_OPERATION)
        del call
        of_torch = milliseconds_of_torch(module, images, precision, seconds)
        yield {
            "key": f"{name}-{left:g}-{count}-{precision}",
            "network": name,
            "left": left,
            "images": count,
            "precision": precision,
            "torch": of_torch,
            "bound": bound,
            "times": of_torch / bound,
            "chosen": ", ".join(f"{number} {each}" for each, number in kernels.most_common()),
            "difference": difference,
        }
        cupy.get_default_memory_pool().free_all_blocks()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record torchvision's networks on a GPU.")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="NAME")
    parser.add_argument("--images", nargs="+", type=int, default=IMAGES)
    parser.add_argument("--precisions", nargs="+", choices=list(TOLERANCE), default=list(TOLERANCE), metavar="NAME")
    parser.add_argument("--left", nargs="+", type=float, default=SHARES, help="shares of weights")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each timing, at most")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no further cell begins")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--add", action="store_true", help="add to the cells of the file, of the same commit")
    options = parser.parse_args(arguments)
    end, path = time.monotonic() + options.limit, results_path("gpu-convolutions", folder=options.machine)
    rows = list(read_results(path).rows) if options.add else []
    for left, name in itertools.product(options.left, options.only):
        for row in recorded(name, left, options.images, options.precisions, options.seconds, end):
            rows.append(row)
            print(f"{row['key']}: {row['torch']:.3f} {row['bound']:.3f} {row['times']:.2f}", flush=True)
    slower = sum(row["times"] < 1 for row in rows)
    write_results(
        path,
        table="gpu-convolutions",
        title=f"torchvision's networks on a GPU: in {len(rows) - slower} of {len(rows)} cells faster than PyTorch",
        columns=COLUMNS,
        rows=rows,
        configuration={"seconds": options.seconds, "pixels": PIXELS},
        notes=[
            f"Images of {PIXELS} × {PIXELS} pixels of random numbers, float32, on the device; medians until outputs "
            "are there. PyTorch multiplies all weights, as one CUDA graph, with cudnn.benchmark and channels last; in "
            "float32 with the faster of both layouts, in float16 on images of float16. × PyTorch is its time over "
            "the bound call's. Outputs were compared first. The largest weights of each layer are left, and all of "
            "depthwise convolutions.",
        ],
    )
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE[row["precision"]]]
    for row in wrong:
        print(f"record_gpu_convolutions: {row['key']}: outputs differ by {row['difference']:.1e}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
