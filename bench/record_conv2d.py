"""Every kernel for a convolution on the shapes of both ladders, beside PyTorch's cuDNN in each precision.

Outputs of a sample of images are checked against float64 first. Usage::

    python bench/record_conv2d.py [--shapes NAME ...] [--images B ...] [--kernels NAME ...] [--seconds S]
                                  [--machine NAME] [--plot FILE]

The result goes to bench/results/<machine>/conv2d.json. PyTorch is left out where it is not installed. The exit code is
1 if an answer is further from float64 than its precision allows.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from ceilings import Peaks
from device_peaks import peaks
from results_file import Column, write_results
from rung_recording import difference, inputs_in_turn, record_rungs, timed_in_turn

from sparsenn.backends import Kernel
from sparsenn.backends.cuda.conv import ConvLayer, upload_conv
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.errors import SparseNNError
from sparsenn.layers import Conv2d, ReLU
from sparsenn.studies.conv2d import LADDER
from sparsenn.studies.conv2d.products.float32 import LIBRARY

try:
    import torch
except ImportError:
    torch = None

SAMPLE = 64
"""Images checked, the first and the last among them."""

THREADS = 8
"""That compile kernels at the same time."""

WAYS = {
    "float32": {"NCHW": (False, False), "channels last": (False, True)},
    "tf32": {"channels last": (True, True)},
    "float16": {"channels last": (False, True)},
}
"""By precision, how PyTorch is called: whether TF32 is allowed, and whether images lie with their channels last."""

WITHOUT_BIAS = ", without bias"

COLUMNS = (
    Column("shape", "shape"),
    Column("images", "images", "{:,}"),
    Column("precision", "precision"),
    Column("features", "images as"),
    Column("kernel", "kernel"),
    Column("milliseconds", "ours (ms)", "{:,.3f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.3f}"),
    Column("rate", "TFLOP/s", "{:.1f}"),
    Column("floor_share", "% of roofline", "{:.0%}"),
    Column("peer_milliseconds", "PyTorch (ms)", "{:,.3f}"),
    Column("peer_way", "its faster layout"),
    Column("over_peer", "× PyTorch", "{:.2f}"),
    Column("bare_peer_milliseconds", "without bias (ms)", "{:,.3f}"),
    Column("error", "error", "{:.1e}"),
    Column("plain_error", "error of plain float32", "{:.1e}"),
    Column("runs", "runs"),
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution, and the numbers of images that it is measured with."""

    image: tuple[int, int, int]
    filters: int
    side: int
    padding: int
    counts: tuple[int, ...]

    def __str__(self) -> str:
        channels, height, width = self.image
        return f"{channels} × {height} × {width} → {self.filters}, {self.side} × {self.side}"

    def layer(self) -> Conv2d:
        """Return a layer with random weights."""
        rng = np.random.default_rng(3)
        weights = rng.normal(size=(self.filters, self.image[0], self.side, self.side))
        weights *= math.sqrt(2 / weights[0].size)
        return Conv2d(weights, rng.normal(size=self.filters) / 4, ReLU(), padding=self.padding)


SHAPES = {
    "1x86x86": Shape((1, 86, 86), 4, 7, 0, (100, 1000, 10_000)),
    "4x40x40": Shape((4, 40, 40), 16, 7, 0, (100, 1000, 10_000)),
    "64x224x224": Shape((64, 224, 224), 64, 3, 1, (16,)),
    "512x14x14": Shape((512, 14, 14), 512, 3, 1, (16,)),
}


def exact(layer: Conv2d, images: Any) -> Any:
    """Return the float64 outputs, computed on the device: a product for each element of the filters."""
    weights = cp.asarray(layer.weights, np.float64)
    down, across = layer.sliding_window.padding
    padded = cp.pad(images.astype(np.float64), ((0, 0), (0, 0), (down, down), (across, across)))
    _, filters, height, width = layer.output_shape(images.shape)
    sums = cp.zeros((images.shape[0], filters, height * width))
    for i, j in np.ndindex(*layer.kernel_size):
        seen = cp.ascontiguousarray(padded[:, :, i : i + height, j : j + width])
        sums += cp.matmul(weights[:, :, i, j], seen.reshape(*seen.shape[:2], -1))
    outputs = sums.reshape(images.shape[0], filters, height, width)
    return cp.maximum(outputs + cp.asarray(layer.bias_vector(), np.float64)[:, None, None], 0)


@dataclass
class Case:
    """A shape with so many images, float32 or float16, and what all rungs share there."""

    shape: Shape
    count: int
    kind: Any
    layer: Conv2d
    uploaded: ConvLayer
    given: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.count, *self.shape.image)
        rng = cp.random.default_rng(5)
        turns = inputs_in_turn(self.moved)
        self.given = [rng.standard_normal(shape, np.float32).astype(self.kind, copy=False) for _ in range(turns)]

    @property
    def moved(self) -> int:
        """Bytes of images, outputs and weights."""
        outputs = math.prod(self.layer.output_shape((self.count, *self.shape.image)))
        size = np.dtype(self.kind).itemsize
        return size * (self.count * math.prod(self.shape.image) + outputs) + self.layer.weights.nbytes

    @property
    def multiply_adds(self) -> int:
        return self.layer.multiply_adds((self.count, *self.shape.image))

    @cached_property
    def places(self) -> Any:
        """Which images are checked."""
        if self.count <= SAMPLE:
            return cp.arange(self.count)
        inner = np.random.default_rng(7).choice(self.count - 2, SAMPLE - 2, replace=False) + 1
        return cp.asarray(np.concatenate([[0], inner, [self.count - 1]]))

    @cached_property
    def right(self) -> Any:
        """The float64 outputs of those."""
        return exact(self.layer, self.given[0][self.places])

    def error(self, rung: Kernel) -> float:
        """Return how far a rung's outputs are from float64's, in parts of the largest; NaN stays NaN."""
        return difference(rung.launch(self.uploaded, self.given[0])[self.places], self.right)

    @cached_property
    def plain_error(self) -> float:
        """The same for the library's product in float32 of the same images."""
        sample = self.given[0][self.places].astype(np.float32)
        return difference(LIBRARY.launch(self.uploaded, sample), self.right)

    def peers(self, precision: str) -> dict[str, float]:
        """Return the milliseconds of PyTorch's convolution, by layout; and without bias, which another kernel adds."""
        if torch is None:
            return {}
        return {
            way + ("" if biased else WITHOUT_BIAS): 1e3 * self._peer(precision, biased, *how)
            for way, how in WAYS[precision].items()
            for biased in (True, False)
        }

    def _peer(self, precision: str, biased: bool, tf32: bool, last: bool) -> float:
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = tf32
        kind = torch.float16 if precision == "float16" else torch.float32
        layout = torch.channels_last if last else torch.contiguous_format
        weights = torch.from_numpy(self.layer.weights).to("cuda", kind).to(memory_format=layout)
        bias = torch.from_numpy(self.layer.bias_vector()).to("cuda", kind) if biased else None
        with torch.no_grad():
            given = [torch.from_dlpack(images).to(kind).to(memory_format=layout) for images in self.given]
            found = timed_in_turn(
                lambda images: torch.nn.functional.conv2d(images, weights, bias, padding=self.layer.padding), given
            )
        del given
        torch.cuda.empty_cache()
        return found.median


def rungs_for(case: Case, names: Sequence[str]) -> list[Kernel]:
    """Return the rungs that take a case, compiled, in the ladder's order."""
    asked = [rung for rung in LADDER.rungs["cuda"] if not names or rung.name in names]
    able = [rung for rung in asked if rung.why_not(current_machine(), case.layer, case.shape.image) is None]
    able = [rung for rung in able if case.kind == np.float32 or rung.half_rows]
    with ThreadPoolExecutor(THREADS) as pool:
        failures = list(pool.map(lambda rung: _failure(case, rung), able))
    for rung, failure in zip(able, failures, strict=True):
        if failure:
            print(f"{rung.name} is left out: {failure}", file=sys.stderr, flush=True)
    return [rung for rung, failure in zip(able, failures, strict=True) if not failure]


def _failure(case: Case, rung: Kernel) -> str:
    try:
        rung.launch(case.uploaded, case.given[0])
    except SparseNNError as error:
        return str(error)
    return ""


def measure(case: Case, rung: Kernel, top: Peaks, peers: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return one row of the table."""
    error = case.error(rung)
    found = timed_in_turn(lambda images: rung.launch(case.uploaded, images), case.given)
    if rung.precision not in peers:
        peers[rung.precision] = case.peers(rung.precision)
    by_way = peers[rung.precision]
    biased = {name: value for name, value in by_way.items() if not name.endswith(WITHOUT_BIAS)}
    way = min(biased, key=lambda name: biased[name]) if biased else None
    best = None if way is None else biased[way]
    floor = top.floor(case.moved, case.multiply_adds, rung.precision)
    return {
        "shape": str(case.shape),
        "images": case.count,
        "precision": rung.precision,
        "features": np.dtype(case.kind).name,
        "kernel": rung.name,
        "milliseconds": 1e3 * found.median,
        "spread_milliseconds": 1e3 * found.spread,
        "rate": 2e-12 * case.multiply_adds / found.median,
        "floor_milliseconds": 1e3 * floor,
        "floor_share": floor / found.median,
        "peer_milliseconds": best,
        "peer_way": way,
        "over_peer": None if best is None else best / (1e3 * found.median),
        "bare_peer_milliseconds": min((by_way[name] for name in by_way if name not in biased), default=None),
        "error": error,
        "plain_error": case.plain_error,
        "runs": found.runs,
        "inputs_in_turn": len(case.given),
        **{f"pytorch {name} milliseconds": value for name, value in by_way.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record all kernels of conv2d beside PyTorch.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--images", type=int, nargs="+", help="in place of each shape's own numbers")
    parser.add_argument("--kernels", nargs="+", default=[], help="these only")
    parser.add_argument("--seconds", type=float, default=110, help="start no further kernel after this time")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--plot", type=Path, help="draw each shape with its largest number of images, too")
    options = parser.parse_args(arguments)
    top = peaks()
    print(top, flush=True)
    return record_rungs("conv2d", COLUMNS, _rows(options, top), partial(record, top), options.machine, options.plot)


def _rows(options: argparse.Namespace, top: Peaks) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    for name in options.shapes:
        shape = SHAPES[name]
        layer = shape.layer()
        uploaded = upload_conv(cp.cuda.runtime.getDevice(), layer, shape.image)
        for count in options.images or shape.counts:
            peers: dict[str, dict[str, float]] = {}
            for kind in (np.float32, np.float16):
                case = Case(shape, count, kind, layer, uploaded)
                for rung in rungs_for(case, options.kernels):
                    if time.perf_counter() - start > options.seconds:
                        print(f"out of time before {rung.name}, {count} images of {shape}", flush=True)
                        return
                    yield measure(case, rung, top, peers)
                del case
                cp.get_default_memory_pool().free_all_blocks()


def record(top: Peaks, path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the result file."""
    write_results(
        path,
        table="conv2d",
        title="Convolutions with bias and ReLU, kernel by kernel, beside PyTorch's cuDNN",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "activation": "ReLU",
            "copy_bytes_per_second": top.copied,
            "multiply_adds_per_second": top.rates,
            "torch": None if torch is None else torch.__version__,
            "cudnn": None if torch is None else torch.backends.cudnn.version(),
        },
        notes=(
            "Calls are queued one after the other while the device is busy, on images in turn that are more than any "
            "cache holds. Medians, slow kernels' of fewer runs. Spread: interquartile range. TFLOP/s: two operations a "
            "multiply-add, those with padding included.",
            "PyTorch: its convolution with bias, without ReLU, cudnn.benchmark on; float32 in both layouts, TF32 and "
            "half precision with channels last and, for half precision, with images that are float16 already. Without "
            "bias: the faster layout of the convolution alone.",
            "Floor: the larger of images, outputs and weights moved once at the measured copy bandwidth, and the "
            "multiply-adds at the rate of a cuBLAS product of the same precision; for float32 at a third of TF32's, if "
            "that is more.",
            f"Error: largest difference from float64 on {SAMPLE} images, in parts of the largest output; plain float32 "
            "is cuBLAS on windows written out.",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
