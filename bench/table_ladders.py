"""Ladders of kernels: every rung on some problems, checked and timed as `sparsenn kernels ladder` does.

Tables gemm, mlp and conv2d make their problems; spmspm-ladder and spmspm-sweep, which varies what can be varied, take
the official 1024 × 120 network with its first images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cases import OFFICIAL_FOLDER, data_folder
from record import Case, Row, Run, Table
from timing import roofs, roofs_in_words

from sparsenn.io import read_official
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.run import run_ladder

Problem = Callable[[argparse.Namespace], tuple[Any, Any]]

SEED = 3

SIZES = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192)),
    *((1 << 20, 64, 64), (65_536, 512, 16), (64, 65_536, 64)),
)
"""Of products: rows, terms of a sum, columns."""

WIDTHS = (72, 64, 64, 4)
MLP_ROWS = (5_120_000,)
"""Of few rows, a kernel takes less time than the events around it."""

SHAPES = {
    (1, 86, 86, 4, 7, 0): (100, 1000, 10_000),
    (4, 40, 40, 16, 7, 0): (100, 1000, 10_000),
    (64, 224, 224, 64, 3, 1): (16,),
    (512, 14, 14, 512, 3, 1): (16,),
}
"""Numbers of images by channels, height and width of an image, filters, their height and width in one, and padding."""

LIBRARIES = (
    *("library", "library_tf32", "library_float16", "cublas", "cublas_tf32", "cublas_float16"),
    *("conv_cudnn_float32", "conv_cudnn_tf32", "conv_cudnn_float16"),
)
"""Rungs that are libraries themselves; the others of their precision are compared with them."""


def rung_rows(operation: str, problem: Problem, run: Run) -> Iterator[Row]:
    """Yield the row of each rung; a rung that does not agree with the reference has a note in place of a row."""
    device, sweep = run.options.device, run.name == "spmspm-sweep"
    settings = {"device": device, "runs": run.options.runs, "sweep": sweep, "roofs": roofs(device)}
    result = run_ladder(operation, *problem(run.options), **settings)
    libraries = {rung.precision: rung.seconds for rung in result.rungs if rung.name in LIBRARIES}
    for rung in result.rungs:
        if rung.seconds is None or rung.spread is None:
            run.note(f"{rung.name} is left out: its outputs are off by {rung.error:.1e}")
            continue
        peer = libraries.get(rung.precision)
        yield {
            "kernel": rung.name,
            "precision": rung.precision,
            "milliseconds": 1e3 * rung.seconds,
            "spread_milliseconds": 1e3 * rung.spread,
            "layer_milliseconds": 1e3 * rung.seconds / result.stages,
            "kernel_milliseconds": None if rung.kernel_seconds is None else 1e3 * rung.kernel_seconds,
            "speedup": result.speedup(rung),
            "peer_milliseconds": None if peer is None else 1e3 * peer,
            "over_peer": None if peer is None else peer / rung.seconds,
            "floor_share": result.floor_share(rung) if rung.precision == "float32" else None,
            "registers": rung.registers,
            "shared_bytes": rung.shared_bytes,
            "error": rung.error,
        }


def made(operation: str, rows: int, sizes: tuple[int, ...]) -> Callable[[Run], Iterator[Row]]:
    """Return what records a ladder on the problem that it makes itself."""
    problem = ladder_for(operation).problem
    assert problem is not None
    return partial(rung_rows, operation, lambda options: problem(rows, sizes, SEED))


def gemm_cases(options: argparse.Namespace) -> Iterator[Case]:
    for sizes in SIZES:
        name = " × ".join(f"{number:,}" for number in sizes)
        rows, depth, columns = sizes
        yield Case(name, {"sizes": name}, made("gemm", 0, (rows, depth, columns)))


def conv2d_cases(options: argparse.Namespace) -> Iterator[Case]:
    for shape, counts in SHAPES.items():
        channels, height, width, filters, side, _ = shape
        name = f"{channels} × {height} × {width} → {filters}, {side} × {side}"
        for images in counts:
            yield Case(f"{name}, {images}", {"shape": name, "images": images}, made("conv2d", images, shape))


def official(options: argparse.Namespace) -> tuple[Any, Any]:
    folder = data_folder(options.data, OFFICIAL_FOLDER)
    dataset = read_official(folder, layers=options.layers, limit_inputs=options.inputs)
    return dataset.network, dataset.inputs


FIRST = (
    ("kernel", "kernel"),
    ("precision", "precision"),
    ("milliseconds", "time (ms)", "{:,.3f}"),
    ("spread_milliseconds", "spread (ms)", "{:.3f}"),
    ("kernel_milliseconds", "in kernel (ms)", "{:,.3f}"),
    ("speedup", "speed-up", "{:.2f}"),
)
LAST = (
    ("floor_share", "% of roofline", "{:.2%}"),
    ("registers", "registers"),
    ("shared_bytes", "shared memory (bytes)", "{:,}"),
    ("error", "largest error", "{:.1e}"),
)
LIBRARY = (("peer_milliseconds", "library (ms)", "{:,.3f}"), ("over_peer", "× library", "{:.2f}"))

NOTE = (
    "Each rung is checked against the float64 reference, then timed. Medians and interquartile ranges; in kernel: the "
    "operation's own kernels alone. Libraries, cuBLAS and cuDNN, are rungs themselves."
)


def ladder_table(title: str, columns: Any, cases: Any, **options: Any) -> Table:
    return Table(
        title=title,
        columns=columns,
        cases=cases,
        notes=[NOTE],
        options={"runs": 20} | options,
        configuration=lambda options: roofs_in_words(options.device),
        device="cuda",
    )


SPMSPM = ladder_table(
    "Sparse layers of 1024 × 120, every row computed",
    [*FIRST, ("layer_milliseconds", "a layer (ms)", "{:.4f}"), *LAST],
    lambda options: [Case("spmspm", {}, partial(rung_rows, "spmspm", official))],
    inputs=1200,
    layers=120,
)

TABLES = {
    "gemm": ladder_table(
        "Products of dense matrices, kernel by kernel, beside cuBLAS",
        [("sizes", "rows × terms × columns"), *FIRST, *LIBRARY, *LAST],
        gemm_cases,
    ),
    "mlp": ladder_table(
        f"The dense network {'-'.join(map(str, WIDTHS))}, kernel by kernel, beside cuBLAS",
        [("rows", "rows", "{:,}"), *FIRST, *LIBRARY, *LAST],
        lambda options: [Case(f"{rows}", {"rows": rows}, made("mlp", rows, WIDTHS)) for rows in MLP_ROWS],
    ),
    "conv2d": ladder_table(
        "Convolutions with bias and ReLU, kernel by kernel, beside cuDNN",
        [("shape", "shape"), ("images", "images", "{:,}"), *FIRST, *LIBRARY, *LAST],
        conv2d_cases,
    ),
    "spmspm-ladder": SPMSPM,
    "spmspm-sweep": SPMSPM,
}
