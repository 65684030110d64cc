"""One sparse layer of random, unstructured weights on a GPU: gather_chunks beside cuSPARSE and dense cuBLAS.

Each case is checked against a float64 product first. Usage::

    python bench/record_general.py [--widths N ...] [--densities D ...] [--rows N ...] [--machine NAME]

The result goes to bench/results/<machine>/general.json. The exit code is 1 if a case is wrong or slower than the better
library.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import cupy as cp
import numpy as np
from event_timing import FEW_RUNS, LONG_SECONDS, RUNS, Timing, timed
from product_libraries import time_cublas, time_cusparse
from results_file import Column, results_path, write_results

from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.sparse.chunks.chain import gather_chunks
from sparsenn.backends.cuda.sparse.chunks.tiling import Tiling, shared_tilings
from sparsenn.backends.cuda.sparse.chunks.weights import lay_out
from sparsenn.backends.cuda.sparse.rows import rows_to_tiles, tiles_to_rows
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.backends.machine import Machine
from sparsenn.formats import CSC, index_dtype

CHECKED_ROWS = 4096
"""Rows checked at a time."""

RELU = np.int32(0)
NO_CLIP = np.float32(np.inf)

COLUMNS = (
    Column("width", "neurons", "{:,}"),
    Column("density", "density", "{:.0%}"),
    Column("rows", "rows", "{:,}"),
    Column("milliseconds", "ours (ms)", "{:.3f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.3f}"),
    Column("edge_rate", "multiply-adds (10¹²/s)", "{:.2f}"),
    Column("floor_share", "% of roofline", "{:.0%}"),
    Column("cusparse_milliseconds", "cuSPARSE (ms)", "{:.3f}"),
    Column("cusparse_way", "its fastest way"),
    Column("cublas_milliseconds", "dense cuBLAS (ms)", "{:.3f}"),
    Column("over_cusparse", "× cuSPARSE", "{:.2f}"),
    Column("over_better", "× the better", "{:.2f}"),
    Column("layout_milliseconds", "to tiles and back (ms)", "{:.3f}"),
    Column("tiling", "tiling"),
    Column("runs", "runs"),
)

TOOLS = cp.RawModule(
    code=r"""
// Reads 16 bytes a thread from shared memory, 16 * rounds times.
extern "C" __global__ void __launch_bounds__(1024) read_shared(int rounds, unsigned* out) {
    __shared__ uint4 memory[2048];
    for (int at = threadIdx.x; at < 2048; at += 1024) memory[at] = make_uint4(at, at, at, at);
    __syncthreads();
    const unsigned base = (unsigned)__cvta_generic_to_shared(memory) + 16 * threadIdx.x;
    unsigned sum = 0;
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int k = 0; k < 16; k++) {
            unsigned x, y, z, w;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(base + 512 * k));
            sum ^= x ^ y;
            sum ^= z ^ w;
        }
    if (sum == 12345) *out = sum;
}
""",
    options=("-std=c++17",),
)


# ---- The device -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second: copied in device memory, read plus written; and read from shared memory."""

    copied: float
    shared: float

    def floor(self, case: Case, edges: int) -> float:
        """Return the seconds that gathering from shared memory cannot go below, nor moving everything once."""
        moved = 4 * case.rows * 2 * case.width + 8 * edges
        return max(moved / self.copied, 4 * edges * case.rows / self.shared)


def ceilings(machine: Machine) -> Ceilings:
    """Measure this device."""
    source = cp.ones(1 << 29, np.float32)
    target = cp.empty_like(source)
    copy = timed(lambda: cp.copyto(target, source)).median
    blocks, rounds = 2 * machine.multiprocessors, 2000
    arguments = (np.int32(rounds), cp.zeros(1, np.uint32))
    read = timed(lambda: TOOLS.get_function("read_shared")((blocks,), (1024,), arguments)).median
    return Ceilings(2 * source.nbytes / copy, blocks * 1024 * rounds * 16 * 16 / read)


# ---- Cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    width: int
    density: float
    rows: int


@dataclass(frozen=True, eq=False)
class Weights:
    """Random weights on the device: CSC, dense, and a bias of both signs."""

    sparse: CSC
    dense: Any
    bias: Any


def random_weights(width: int, density: float) -> Weights:
    """Each position holds a weight with probability `density`; values and bias are normal."""
    rng = cp.random.default_rng(7)
    mask = rng.random((width, width), dtype=np.float32) < density  # by output
    indptr = cp.zeros(width + 1, np.int64)
    indptr[1:] = cp.cumsum(mask.sum(axis=1))
    places = cp.flatnonzero(mask)
    values = rng.standard_normal(places.size, dtype=np.float32)
    sparse = CSC((width, width), indptr, (places % width).astype(index_dtype(width)), values)
    dense = cp.zeros((width, width), np.float32)
    dense[places % width, places // width] = values
    return Weights(sparse, dense, rng.standard_normal(width, dtype=np.float32))


def random_rows(case: Case) -> Any:
    """Return dense row-major features of both signs."""
    return cp.random.default_rng(11).standard_normal((case.rows, case.width), dtype=np.float32)


def worst_error(found: Any, features: Any, weights: Weights) -> float:
    """Return the largest error, in units of what rounding may add up to; above 1 the answer is wrong, NaN always.

    A sum of n products is off by at most (n + 2) epsilon times the sum of their sizes.
    """
    dense = weights.dense.astype(np.float64)
    sizes, bias = cp.abs(dense), weights.bias.astype(np.float64)
    terms = int(cp.diff(weights.sparse.indptr).max()) + 2
    worst = 0.0
    for first in range(0, features.shape[0], CHECKED_ROWS):
        rows = features[first : first + CHECKED_ROWS].astype(np.float64)
        right = cp.maximum(rows @ dense + bias, 0)
        bound = terms * np.finfo(np.float32).eps * (cp.abs(rows) @ sizes + cp.abs(bias)) + 1e-30
        error = float((cp.abs(found[first : first + CHECKED_ROWS] - right) / bound).max())
        worst = error if math.isnan(error) else max(worst, error)
        if not worst <= 1:
            break
    return worst


# ---- Ours -------------------------------------------------------------------------------------------------------


def describe(tiling: Tiling, stages: int) -> str:
    """Return rows x outputs of a tile, warps, blocks, groups, chunk and stages in a few characters."""
    block = tiling.block
    shape = f"{block.rows}x{block.slots}/{block.warps}w{block.blocks}"
    return f"{shape} g{tiling.groups} c{tiling.chunk}x{stages}"


def time_ours(weights: Weights, features: Any, tiling: Tiling, machine: Machine, runs: int) -> tuple[Timing, str, Any]:
    """Return time, tiling in words, and the outputs row-major."""
    sparse = CSC(weights.sparse.shape, *map(cp.asnumpy, weights.sparse.arrays))
    numbers = LayerNumbers(sparse, cp.asnumpy(weights.bias), np.ones(sparse.shape[1], np.int64))
    (chunked,) = lay_out([numbers], [tiling], machine)
    tiles = rows_to_tiles(features, tiling.block.rows)
    alive = cp.zeros(tiles.shape[0] * tiles.shape[2], np.uint8)
    timing = timed(lambda: gather_chunks(chunked, RELU, NO_CLIP, tiles, alive), runs)
    outputs = gather_chunks(chunked, RELU, NO_CLIP, tiles)
    rows = tiles_to_rows(outputs, features.shape[0])
    return timing, describe(chunked.tiling, chunked.stages), rows


def time_layout(features: Any, tiling: Tiling) -> float:
    """Return the seconds that taking rows to tiles and tiles to rows takes, once each."""
    tiles = rows_to_tiles(features, tiling.block.rows)
    there = timed(lambda: rows_to_tiles(features, tiling.block.rows)).median
    return there + timed(lambda: tiles_to_rows(tiles, features.shape[0])).median


def measure(case: Case, weights: Weights, cublas: dict[Any, Timing], machine: Machine, top: Ceilings) -> dict[str, Any]:
    """Return one row of the table."""
    features = random_rows(case)
    edges = weights.sparse.nnz
    (tiling,) = shared_tilings(case.rows, [(case.width, case.width, edges)], machine)
    ours, shape, outputs = time_ours(weights, features, tiling, machine, RUNS)
    error = worst_error(outputs, features, weights)
    del outputs
    peer, way = time_cusparse(weights.sparse, weights.dense, features, RUNS)
    dense = _dense_time(case, weights, features, cublas, RUNS)
    return {
        **vars(case),
        "milliseconds": 1e3 * ours.median,
        "spread_milliseconds": 1e3 * ours.spread,
        "edge_rate": edges * case.rows / ours.median / 1e12,
        "floor_milliseconds": 1e3 * top.floor(case, edges),
        "floor_share": top.floor(case, edges) / ours.median,
        "cusparse_milliseconds": 1e3 * peer.median,
        "cusparse_way": way,
        "cublas_milliseconds": 1e3 * dense.median,
        "over_cusparse": peer.median / ours.median,
        "over_better": min(peer.median, dense.median) / ours.median,
        "layout_milliseconds": 1e3 * time_layout(features, tiling),
        "tiling": shape,
        "runs": min(ours.runs, peer.runs, dense.runs),
        "edges": edges,
        "error": error,
    }


def _dense_time(case: Case, weights: Weights, features: Any, known: dict[Any, Timing], runs: int) -> Timing:
    """The dense product takes the same time whatever the density."""
    key = (case.width, case.rows)
    if key not in known:
        known[key] = time_cublas(weights.dense, features, runs)
    return known[key]


# ---- The command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record one general sparse layer beside cuSPARSE and cuBLAS.")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.01, 0.05, 0.1, 0.2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 60_000])
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--seconds", type=float, default=230, help="start no further case after this time")
    options = parser.parse_args(arguments)
    machine = current_machine()
    top = ceilings(machine)
    print(f"copy {top.copied / 1e12:.2f} TB/s, shared memory {top.shared / 1e12:.1f} TB/s, {machine}", flush=True)
    rows = list(_cases(options, machine, top))
    ratios = [row["over_cusparse"] for row in rows]
    print(
        f"{len(rows)} cases; x cuSPARSE: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}; "
        f"x the better: least {min(row['over_better'] for row in rows):.2f}"
    )
    print(_write(rows, options, top))
    return 0 if all(row["error"] <= 1 and row["over_better"] >= 1 for row in rows) else 1


def _cases(options: argparse.Namespace, machine: Machine, top: Ceilings) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    cublas: dict[Any, Timing] = {}
    for width, density in product(options.widths, options.densities):
        weights = random_weights(width, density)
        for rows in options.rows:
            if time.perf_counter() - start > options.seconds:
                print(f"out of time before {width}, {density:.0%}, {rows}", flush=True)
                return
            row = measure(Case(width, density, rows), weights, cublas, machine, top)
            print(
                "  ".join(column.show(row[column.key]) for column in COLUMNS),
                f"error {row['error']:.3f}",
                flush=True,
            )
            cp.get_default_memory_pool().free_all_blocks()
            yield row


def _write(rows: list[dict[str, Any]], options: argparse.Namespace, top: Ceilings) -> Any:
    path = results_path("general", folder=options.machine)
    write_results(
        path,
        table="general",
        title="One sparse layer of random weights on the GPU, beside cuSPARSE and a dense product",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "precision": "float32",
            "bias": "vector of both signs",
            "activation": "ReLU",
            "copy_bytes_per_second": top.copied,
            "shared_memory_bytes_per_second": top.shared,
        },
        notes=(
            "Ours adds the bias and applies ReLU; the libraries' products do neither. Features stay in tiles from "
            "layer to layer; what taking them there and back costs is listed apart.",
            "Floor: the larger of inputs, outputs and weights moved once at the measured copy bandwidth, and 4 bytes a "
            "multiply-add at the measured bandwidth of shared memory.",
            f"Medians of {RUNS} runs, {FEW_RUNS} where one takes more than {LONG_SECONDS:g} s; each checked against a "
            "float64 product first. Spread: interquartile range.",
        ),
    )
    return path


if __name__ == "__main__":
    sys.exit(main())
