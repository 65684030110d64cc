"""Record what copies beside computation buy a convolution of images that are on the host.

Both layers of the study are run from images on the host to outputs on the host: all images at once, and in pieces on
streams; from and to pinned memory, and ordinary memory. Outputs are compared bit for bit, those of a few images with
a float64 convolution. The floor is what the copies alone take, measured between pinned memory and the device.

Usage: python bench/record_conv_streaming.py [--images N] [--runs R] [--machine NAME]. Writes
bench/results/<machine>/conv-streaming.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from results_file import results_path, write_results

from sparsenn.backends.cuda.conv import ConvLayer, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import streamed

LAYERS = {"1 × 86 × 86, 4 filters": ((1, 86, 86), 4), "4 × 40 × 40, 16 filters": ((4, 40, 40), 16)}
KERNEL = 7
COMPARED = 3
"""Images whose outputs are compared with a float64 convolution."""

COLUMNS = [
    ("layer", "layer"),
    ("way", "way"),
    ("memory", "memory on the host"),
    ("milliseconds", "median (ms)", "{:.1f}"),
    ("spread_milliseconds", "spread (ms)", "{:.1f}"),
    ("floor_milliseconds", "copies alone (ms)", "{:.1f}"),
    ("floor_share", "% of roofline", "{:.0%}"),
    ("kernel_milliseconds", "computation alone (ms)", "{:.2f}"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record convolutions of images on the host.")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    rows = []
    for name, (image, filters) in LAYERS.items():
        layer = random_layer(image, filters)
        rows += [{"layer": name, **row} for row in measured(layer, image, options.images, options.runs)]
        print(*rows[-4:], sep="\n", flush=True)
    path = results_path("conv-streaming", folder=options.machine)
    write_results(
        path,
        table="conv-streaming",
        title=f"Convolutions with {KERNEL} × {KERNEL} weights of {options.images:,} images, from host to host",
        columns=COLUMNS,
        rows=rows,
        configuration={"images": options.images, "runs": options.runs, "kernel": KERNEL, "streams": streamed.STREAMS},
        notes=[
            f"Medians and interquartile ranges of {options.runs} runs after one. In pieces: up to {streamed.STREAMS} "
            "pieces are under way at a time, one arriving, one being computed, one leaving.",
            "Floor: for all at once, the copies there and back, one after the other; in pieces, the longer of the two. "
            "Both are between pinned memory and the device; what ordinary memory takes comes on top.",
        ],
    )
    print(path)
    return 0


def random_layer(image: tuple[int, int, int], filters: int) -> Conv2d:
    """Return a layer whose outputs are about as large as its inputs."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(filters, image[0], KERNEL, KERNEL)) / np.sqrt(image[0] * KERNEL**2)
    return Conv2d(weights, rng.normal(size=filters))


def measured(layer: Conv2d, image: tuple[int, int, int], count: int, runs: int) -> list[dict[str, Any]]:
    """Return a row for each way: all at once and in pieces, with pinned and with ordinary memory."""
    uploaded = upload_conv(0, layer, image)
    images = np.random.default_rng(1).random((count, *image), dtype=np.float32)
    expected = streamed.run_at_once(uploaded, images)
    check(layer, images, expected)
    locked_images, locked_outputs = streamed.pinned(images.shape), streamed.pinned(expected.shape)
    locked_images[...] = images
    there, back = copy_seconds(locked_images, locked_outputs, runs)
    kernel = kernel_seconds(uploaded, images, runs)
    outputs = np.empty_like(expected)
    rows = []
    for way, run, floor in (
        ("all at once", streamed.run_at_once, there + back),
        ("in pieces", in_pieces, max(there, back)),
    ):
        for memory, source, target in (("pinned", locked_images, locked_outputs), ("ordinary", images, outputs)):
            target[...] = np.nan
            seconds = timed(lambda run=run, source=source, target=target: run(uploaded, source, target), runs)
            if not np.array_equal(target, expected):
                sys.exit(f"{way}, {memory} memory: the outputs differ")
            rows.append(row(way, memory, seconds, floor, kernel))
    return rows


def in_pieces(layer: ConvLayer, images: np.ndarray, outputs: np.ndarray) -> None:
    """Run a layer in pieces, into an array that is there."""
    streamed.run_streamed(layer, images, None, outputs)


def row(way: str, memory: str, seconds: Sequence[float], floor: float, kernel: float) -> dict[str, Any]:
    """Return a row of the table."""
    median = statistics.median(seconds)
    quartiles = statistics.quantiles(seconds, n=4)
    return {
        "way": way,
        "memory": memory,
        "milliseconds": 1e3 * median,
        "spread_milliseconds": 1e3 * (quartiles[2] - quartiles[0]),
        "floor_milliseconds": 1e3 * floor,
        "floor_share": floor / median,
        "kernel_milliseconds": 1e3 * kernel,
    }


def check(layer: Conv2d, images: np.ndarray, outputs: np.ndarray) -> None:
    """Stop if the first, a middle and the last image's outputs are not those of a float64 convolution."""
    for number in np.linspace(0, len(images) - 1, COMPARED).astype(int):
        windows = np.lib.stride_tricks.sliding_window_view(images[number].astype(np.float64), (KERNEL, KERNEL), (1, 2))
        sums = np.einsum("chwij,mcij->mhw", windows, layer.weights.astype(np.float64), optimize=True)
        exact = layer.activation(sums + layer.bias_vector()[:, None, None])
        if not np.abs(outputs[number] - exact).max() <= 1e-5 * np.abs(exact).max():
            sys.exit(f"image {number}: the outputs are not those of a float64 convolution")


def timed(work: Callable[[], Any], runs: int) -> list[float]:
    """Return the seconds of each of some runs, after one that is not counted."""
    work()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def copy_seconds(images: np.ndarray, outputs: np.ndarray, runs: int) -> tuple[float, float]:
    """Return what it takes to copy the images to the device, and the outputs from there."""
    cp = cupy()
    placed = [cp.zeros(array.shape, array.dtype) for array in (images, outputs)]

    def send() -> None:
        placed[0].set(images)
        cp.cuda.get_current_stream().synchronize()

    def fetch() -> None:
        placed[1].get(out=outputs)
        cp.cuda.get_current_stream().synchronize()

    return statistics.median(timed(send, runs)), statistics.median(timed(fetch, runs))


def kernel_seconds(layer: ConvLayer, images: np.ndarray, runs: int) -> float:
    """Return what computing takes with images and outputs on the device, by events around it."""
    cp = cupy()
    placed = cp.asarray(images)
    seconds = []
    for _ in range(runs + 1):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        streamed.launch_streamed(layer, placed)
        stop.record()
        stop.synchronize()
        seconds.append(cp.cuda.get_elapsed_time(start, stop) / 1e3)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    sys.exit(main())
