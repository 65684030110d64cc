"""Every kernel for a convolution on the shapes of both ladders, beside PyTorch's cuDNN in each precision."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ladders import (
    ERRORS,
    FLOOR_NOTE,
    MIDDLE,
    QUEUED_NOTE,
    RATE,
    SAMPLE,
    Cell,
    Ladder,
    Work,
    add_options,
    in_turn,
    ladder_configuration,
    machine,
    random_inputs,
    rung_rows,
    sample_of,
)
from peers import allow_tf32, torch
from record import Row, Table, count

from sparsenn.backends import Kernel
from sparsenn.layers import Conv2d, ReLU


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

LAYOUTS = {"float32": ("NCHW", "channels last"), "tf32": ("channels last",), "float16": ("channels last",)}
"""How PyTorch is called, by precision."""


class ConvWork(Work):
    """Images in a convolution."""

    def __init__(self, size: tuple[Any, ...], kind: str) -> None:
        import cupy

        from sparsenn.backends.cuda.conv import upload_conv

        name, count = size
        self.shape = next(shape for shape in SHAPES.values() if str(shape) == name)
        self.layer = self.shape.layer()
        self.uploaded = upload_conv(cupy.cuda.runtime.getDevice(), self.layer, self.shape.image)
        shape = (count, *self.shape.image)
        numbers = math.prod(shape) + math.prod(self.layer.output_shape(shape))
        self.moved = np.dtype(kind).itemsize * numbers + self.layer.weights.nbytes
        self.multiply_adds = self.layer.multiply_adds(shape)
        self.inputs = random_inputs(shape, kind, self.moved)
        self.sample = sample_of(count)

    def accepts(self, rung: Kernel) -> bool:
        return rung.why_not(machine(), self.layer, self.shape.image) is None

    def launch(self, rung: Kernel, inputs: Any) -> Any:
        return rung.launch(self.uploaded, inputs)

    def sampled(self, outputs: Any) -> Any:
        return outputs[self.sample]

    def exact(self) -> Any:
        """Return the float64 outputs: a product for each element of the filters."""
        import cupy as cp

        images, weights = self.inputs[0][self.sample], cp.asarray(self.layer.weights, np.float64)
        down, across = self.layer.sliding_window.padding
        padded = cp.pad(images.astype(np.float64), ((0, 0), (0, 0), (down, down), (across, across)))
        _, filters, height, width = self.layer.output_shape(images.shape)
        sums = cp.zeros((images.shape[0], filters, height * width))
        for i, j in np.ndindex(*self.layer.kernel_size):
            window = cp.ascontiguousarray(padded[:, :, i : i + height, j : j + width])
            sums += cp.matmul(weights[:, :, i, j], window.reshape(*window.shape[:2], -1))
        outputs = sums.reshape(images.shape[0], filters, height, width)
        return cp.maximum(outputs + cp.asarray(self.layer.bias_vector(), np.float64)[:, None, None], 0)

    def plain(self) -> Any:
        from sparsenn.studies.conv2d.products.float32 import LIBRARY

        return LIBRARY.launch(self.uploaded, self.inputs[0][self.sample].astype(np.float32))

    def peers(self, precision: str) -> Row:
        """Time PyTorch's convolution in each layout; and without bias, which another kernel adds."""
        if torch is None:
            return dict.fromkeys(("peer_milliseconds", "peer_way", "bare_peer_milliseconds"))
        times = {
            (layout, biased): self._peer(precision, layout, biased)
            for layout in LAYOUTS[precision]
            for biased in (True, False)
        }
        best = min((layout for layout, biased in times if biased), key=lambda layout: times[layout, True])
        return {
            "peer_milliseconds": times[best, True],
            "peer_way": best,
            "bare_peer_milliseconds": min(time for (_, biased), time in times.items() if not biased),
        }

    def _peer(self, precision: str, layout: str, biased: bool) -> float:
        torch.backends.cudnn.benchmark = True
        allow_tf32(precision == "tf32")
        kind = torch.float16 if precision == "float16" else torch.float32
        form = torch.channels_last if layout == "channels last" else torch.contiguous_format
        weights = torch.tensor(self.layer.weights).to("cuda", kind).to(memory_format=form)
        bias = torch.tensor(self.layer.bias_vector()).to("cuda", kind) if biased else None
        with torch.no_grad():
            inputs = [torch.from_dlpack(images).to(kind).to(memory_format=form) for images in self.inputs]
            call = lambda images: torch.nn.functional.conv2d(images, weights, bias, padding=self.layer.padding)  # noqa: E731
            found = in_turn(call, inputs)
        del inputs
        torch.cuda.empty_cache()
        return found.median


CONV2D = Ladder("conv2d", ("shape", "images"), ConvWork)


def conv_cells(options: argparse.Namespace) -> Iterator[Cell]:
    shapes = [SHAPES[name] for name in options.shapes]
    return CONV2D.cells([(str(s), count) for s in shapes for count in options.images or s.counts], options)


def conv_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--images", type=count, nargs="+", help="in place of each shape's own numbers")


CONV2D_TABLE = Table(
    title="Convolutions with bias and ReLU, kernel by kernel, beside PyTorch's cuDNN",
    columns=[
        ("shape", "shape"),
        ("images", "images", "{:,}"),
        *MIDDLE,
        *RATE,
        ("peer_milliseconds", "PyTorch (ms)", "{:,.3f}"),
        ("peer_way", "its faster layout"),
        ("over_peer", "× PyTorch", "{:.2f}"),
        ("bare_peer_milliseconds", "without bias (ms)", "{:,.3f}"),
        *ERRORS,
        ("runs", "runs"),
    ],
    cells=conv_cells,
    measure=rung_rows,
    notes=[
        f"{QUEUED_NOTE} TFLOP/s: two operations per multiply-add, padding included.",
        "PyTorch: its convolution with bias, without ReLU, cudnn.benchmark on; float32 in both layouts, TF32 and half "
        "precision with channels last and, for half precision, with images that are float16 already. Without bias: the "
        "faster layout of the convolution alone.",
        FLOOR_NOTE,
        f"Error: largest difference from float64 on {SAMPLE} images, relative to the largest output; plain float32 is "
        "cuBLAS on windows written out.",
    ],
    options=conv_options,
    configuration=ladder_configuration,
    limit=110.0,
)

TABLES = {"conv2d": CONV2D_TABLE}
