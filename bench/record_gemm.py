"""Every kernel for a product of matrices, square and narrow, beside cuBLAS in each precision.

Rows of each product are checked against float64 first. Usage::

    python bench/record_gemm.py [--sizes M,K,N ...] [--kernels NAME ...] [--seconds S] [--machine NAME] [--plot FILE]

The result goes to bench/results/<machine>/gemm.json. The exit code is 1 if an answer is further from float64 than its
precision allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from ceilings import Peaks
from device_peaks import cublas_precision, peaks
from results_file import Column, write_results
from rung_recording import difference, inputs_in_turn, record_rungs, timed_in_turn

from sparsenn.backends import Kernel
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.errors import SparseNNError
from sparsenn.studies.ladder import ladder_for

SAMPLE = 64
"""Rows checked, the first and the last among them."""

LIBRARY = "library"

SIZES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (1 << 20, 64, 64),
    (65_536, 512, 16),
    (64, 65_536, 64),
)
"""Rows, terms of a sum, columns."""

COLUMNS = (
    Column("sizes", "rows × terms × columns"),
    Column("precision", "precision"),
    Column("features", "matrices as"),
    Column("kernel", "kernel"),
    Column("milliseconds", "ours (ms)", "{:,.3f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.3f}"),
    Column("rate", "TFLOP/s", "{:.1f}"),
    Column("floor_share", "% of roofline", "{:.0%}"),
    Column("peer_milliseconds", "cuBLAS (ms)", "{:,.3f}"),
    Column("over_peer", "× cuBLAS", "{:.2f}"),
    Column("error", "error", "{:.1e}"),
    Column("plain_error", "error of plain float32", "{:.1e}"),
    Column("runs", "runs"),
)


@dataclass
class Case:
    """Pairs of matrices of some sizes, float32 or float16, and what all rungs share there."""

    sizes: tuple[int, int, int]
    kind: Any
    given: list[tuple[Any, Any]] = field(init=False)

    def __post_init__(self) -> None:
        rows, depth, columns = self.sizes
        rng = cp.random.default_rng(5)

        def matrix(*shape: int) -> Any:
            return rng.standard_normal(shape, np.float32).astype(self.kind, copy=False)

        self.given = [(matrix(rows, depth), matrix(depth, columns)) for _ in range(inputs_in_turn(self.moved))]

    def __str__(self) -> str:
        return " × ".join(f"{size:,}" for size in self.sizes)

    @property
    def moved(self) -> int:
        """Bytes of both factors and the product."""
        rows, depth, columns = self.sizes
        return np.dtype(self.kind).itemsize * (rows * depth + depth * columns + rows * columns)

    @property
    def multiply_adds(self) -> int:
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @cached_property
    def places(self) -> Any:
        """Which rows are checked."""
        rows = self.sizes[0]
        if rows <= SAMPLE:
            return cp.arange(rows)
        inner = np.random.default_rng(7).choice(rows - 2, SAMPLE - 2, replace=False) + 1
        return cp.asarray(np.concatenate([[0], inner, [rows - 1]]))

    @cached_property
    def right(self) -> Any:
        """Those rows of the float64 product."""
        a, b = self.given[0]
        return a[self.places].astype(np.float64) @ b.astype(np.float64)

    def error(self, launch: Any, kind: Any = None) -> float:
        """Return how far a product is from float64's, in parts of the largest element; NaN stays NaN."""
        a, b = (matrix.astype(kind or self.kind, copy=False) for matrix in self.given[0])
        return difference(launch(a, b)[self.places], self.right)

    @cached_property
    def plain_error(self) -> float:
        """The same for cuBLAS in float32 on the same matrices."""
        return self.error(cp.matmul, np.float32)

    def peer(self, precision: str) -> float:
        """Return the milliseconds of cuBLAS; of half precision with matrices that are float16 already."""
        kind = np.float16 if precision == "float16" else np.float32
        given = [tuple(matrix.astype(kind, copy=False) for matrix in pair) for pair in self.given]
        out = cp.empty((self.sizes[0], self.sizes[2]), kind)
        with cublas_precision(precision):
            return 1e3 * timed_in_turn(lambda pair: cp.matmul(*pair, out=out), given).median


def rungs_for(case: Case, names: Sequence[str]) -> Iterator[Kernel]:
    """Yield the rungs that take a case, in the ladder's order; cuBLAS itself is none of them."""
    for rung in ladder_for("gemm").rungs["cuda"]:
        if rung.name == LIBRARY or (names and rung.name not in names):
            continue
        if rung.why_not(current_machine(), *case.given[0]) is None and (case.kind == np.float32 or rung.half_rows):
            yield rung


def measure(case: Case, rung: Kernel, top: Peaks, peers: dict[str, float]) -> dict[str, Any]:
    """Return one row of the table.

    Raises
    ------
    SparseNNError
        The rung refuses the matrices.
    """
    error = case.error(rung.launch)
    found = timed_in_turn(lambda pair: rung.launch(*pair), case.given)
    if rung.precision not in peers:
        peers[rung.precision] = case.peer(rung.precision)
    floor = top.floor(case.moved, case.multiply_adds, rung.precision)
    return {
        "sizes": str(case),
        "precision": rung.precision,
        "features": np.dtype(case.kind).name,
        "kernel": rung.name,
        "milliseconds": 1e3 * found.median,
        "spread_milliseconds": 1e3 * found.spread,
        "rate": 2e-12 * case.multiply_adds / found.median,
        "floor_milliseconds": 1e3 * floor,
        "floor_share": floor / found.median,
        "peer_milliseconds": peers[rung.precision],
        "over_peer": peers[rung.precision] / (1e3 * found.median),
        "error": error,
        "plain_error": case.plain_error,
        "runs": found.runs,
        "inputs_in_turn": len(case.given),
    }


def sizes_from(text: str) -> tuple[int, int, int]:
    """Return sizes written as M,K,N."""
    rows, depth, columns = map(int, text.split(","))
    return rows, depth, columns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record all kernels of gemm beside cuBLAS.")
    parser.add_argument("--sizes", type=sizes_from, nargs="+", default=list(SIZES), metavar="M,K,N")
    parser.add_argument("--kernels", nargs="+", default=[], help="these only")
    parser.add_argument("--seconds", type=float, default=110, help="start no further kernel after this time")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--plot", type=Path, help="draw the ladders, too")
    options = parser.parse_args(arguments)
    top = peaks()
    print(top, flush=True)
    return record_rungs("gemm", COLUMNS, _rows(options, top), partial(record, top), options.machine, options.plot)


def _rows(options: argparse.Namespace, top: Peaks) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    for sizes in options.sizes:
        peers: dict[str, float] = {}
        for kind in (np.float32, np.float16):
            case = Case(sizes, kind)
            for rung in rungs_for(case, options.kernels):
                if time.perf_counter() - start > options.seconds:
                    print(f"out of time before {rung.name}, {case}", flush=True)
                    return
                yield from _measured(partial(measure, case, rung, top, peers), rung)
            del case
            cp.get_default_memory_pool().free_all_blocks()


def _measured(call: Any, rung: Kernel) -> Iterator[dict[str, Any]]:
    try:
        yield call()
    except SparseNNError as error:
        print(f"{rung.name} is left out: {error}", file=sys.stderr, flush=True)


def record(top: Peaks, path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the result file."""
    write_results(
        path,
        table="gemm",
        title="Products of dense matrices, kernel by kernel, beside cuBLAS",
        columns=COLUMNS,
        rows=rows,
        configuration={"copy_bytes_per_second": top.copied, "multiply_adds_per_second": top.rates},
        notes=(
            "Calls are queued one after the other while the device is busy, on matrices in turn that are more than any "
            "cache holds. Medians, slow kernels' of fewer runs. Spread: interquartile range.",
            "cuBLAS is called through CuPy; of half precision with matrices that are float16 already.",
            "Floor: the larger of both factors and the product moved once at the measured copy bandwidth, and the "
            "multiply-adds at the rate of a cuBLAS product of 8,192 × 8,192 in the same precision; for float32 at a "
            "third of TF32's, if that is more.",
            f"Error: largest difference from float64 on {SAMPLE} rows, in parts of the largest element; plain float32 "
            "is cuBLAS on the same matrices.",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
