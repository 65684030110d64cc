"""Convolutions of images that are on the host: all at once, or in chunks on streams, from pinned and ordinary memory.

Outputs are compared bit for bit, those of a few images with a float64 convolution. The floor is the time of the copies
alone, between pinned memory and the device.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from record import Row, Run, Table, WrongAnswerError, count
from timing import Timer, between_events

from sparsenn.layers import Conv2d

LAYERS = {"1 × 86 × 86, 4 filters": ((1, 86, 86), 4), "4 × 40 × 40, 16 filters": ((4, 40, 40), 16)}
KERNEL = 7
COMPARED = 3
"""Images whose outputs are compared with a float64 convolution."""


@dataclass(frozen=True)
class Images:
    """Images in a layer: all at once or in chunks, from pinned or ordinary memory."""

    layer: str
    way: str
    memory: str

    def __str__(self) -> str:
        return f"{self.layer}, {self.way}, {self.memory}"


def random_conv_layer(image: tuple[int, int, int], filters: int) -> Conv2d:
    """Return a layer whose outputs are about as large as its inputs."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(filters, image[0], KERNEL, KERNEL)) / np.sqrt(image[0] * KERNEL**2)
    return Conv2d(weights, rng.normal(size=filters))


def check(layer: Conv2d, images: np.ndarray, outputs: np.ndarray) -> None:
    """Compare outputs of the first, a middle and the last image with a float64 convolution.

    Raises
    ------
    WrongAnswerError
        They differ.
    """
    for number in np.linspace(0, len(images) - 1, COMPARED).astype(int):
        windows = np.lib.stride_tricks.sliding_window_view(images[number].astype(np.float64), (KERNEL, KERNEL), (1, 2))
        sums = np.einsum("chwij,mcij->mhw", windows, layer.weights.astype(np.float64), optimize=True)
        exact = layer.activation(sums + layer.bias_vector()[:, None, None])
        if not np.abs(outputs[number] - exact).max() <= 1e-5 * np.abs(exact).max():
            raise WrongAnswerError(f"image {number}: the outputs are not those of a float64 convolution")


@dataclass(frozen=True, eq=False)
class Streamed:
    """A layer on the device with its images and outputs, by the memory that they are in, and what copies take alone.

    Parameters
    ----------
    there, back, kernel : milliseconds of copying images and outputs, pinned, and of computing.
    """

    uploaded: Any
    arrays: dict[str, tuple[np.ndarray, np.ndarray]]
    expected: np.ndarray
    there: float
    back: float
    kernel: float


@lru_cache(maxsize=1)
def streamed_layer(name: str, images_count: int, runs: int) -> Streamed:
    """Return a layer with its images, whose outputs have been checked."""
    import cupy as cp

    from sparsenn.backends.cuda.conv import upload_conv
    from sparsenn.studies.conv2d.direct import streamed

    image, filters = LAYERS[name]
    layer = random_conv_layer(image, filters)
    uploaded = upload_conv(0, layer, image)
    images = np.random.default_rng(1).random((images_count, *image), dtype=np.float32)
    expected = streamed.run_at_once(uploaded, images)
    check(layer, images, expected)
    pinned_images, pinned_outputs = streamed.pinned(images.shape), streamed.pinned(expected.shape)
    pinned_images[...] = images
    placed = [cp.zeros(array.shape, array.dtype) for array in (pinned_images, pinned_outputs)]
    wait = cp.cuda.get_current_stream().synchronize
    there = Timer().time(lambda: placed[0].set(pinned_images), wait, runs, warm_up=1)
    back = Timer().time(lambda: placed[1].get(out=pinned_outputs), wait, runs, warm_up=1)
    on_device = cp.asarray(images)
    kernel = between_events(lambda: streamed.launch_streamed(uploaded, on_device), runs, warm_up=1)
    arrays = {"pinned": (pinned_images, pinned_outputs), "ordinary": (images, np.empty_like(expected))}
    return Streamed(uploaded, arrays, expected, there.median, back.median, kernel.median)


def images_row(cell: Images, run: Run) -> Row:
    """Time a layer, whose outputs must be the same bits each time."""
    from sparsenn.studies.conv2d.direct import streamed

    found = streamed_layer(cell.layer, run.options.images, run.options.runs)
    images, outputs = found.arrays[cell.memory]
    outputs[...] = np.nan
    if cell.way == "all at once":
        floor, call = found.there + found.back, lambda: streamed.run_at_once(found.uploaded, images, outputs)
    else:
        floor = max(found.there, found.back)
        call = lambda: streamed.run_streamed(found.uploaded, images, None, outputs)  # noqa: E731
    call()
    if not np.array_equal(outputs, found.expected):
        raise WrongAnswerError(f"{cell}: the outputs differ")
    timing = run.timer.time(call, runs=run.options.runs, warm_up=1)
    return {
        **vars(cell),
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "floor_milliseconds": floor,
        "floor_share": floor / timing.median,
        "kernel_milliseconds": found.kernel,
    }


def images_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=count, default=10_000)
    parser.add_argument("--runs", type=count, default=20)


CONV_STREAMING = Table(
    title=lambda options, rows: (
        f"Convolutions with {KERNEL} × {KERNEL} weights of {options.images:,} images, from host to host"
    ),
    columns=[
        ("layer", "layer"),
        ("way", "way"),
        ("memory", "memory on the host"),
        ("milliseconds", "median (ms)", "{:.1f}"),
        ("spread_milliseconds", "spread (ms)", "{:.1f}"),
        ("floor_milliseconds", "copies alone (ms)", "{:.1f}"),
        ("floor_share", "% of roofline", "{:.0%}"),
        ("kernel_milliseconds", "computation alone (ms)", "{:.2f}"),
    ],
    cells=lambda options: [
        Images(*each) for each in itertools.product(LAYERS, ("all at once", "in pieces"), ("pinned", "ordinary"))
    ],
    measure=images_row,
    notes=lambda options, rows: [
        f"Medians and interquartile ranges of {options.runs} runs after one. In pieces: a few pieces are under way at "
        "a time, one arriving, one being computed, one leaving.",
        "Floor: for all at once, the copies there and back, one after the other; in pieces, the longer of the two. "
        "Both are between pinned memory and the device; what ordinary memory takes comes on top.",
    ],
    options=images_options,
    configuration=("images", "runs"),
)

TABLES = {"conv-streaming": CONV_STREAMING}
