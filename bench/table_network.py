"""The challenge on a CPU beside the loop that a SciPy user writes, and one sparse layer by every kernel."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from cases import Sources, add_data_option
from ceilings import bytes_moved, ceilings
from record import Row, Run, Table, WrongAnswerError, set_speedups

from sparsenn import backends, infer
from sparsenn.backends import StepInput
from sparsenn.backends.oracle import forward
from sparsenn.datasets import mnist_inputs, radixnet
from sparsenn.formats import CSR, from_dense
from sparsenn.io import Dataset
from sparsenn.io.challenge.folder import read_official
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.runtime.workers import thread_count
from sparsenn.studies.ladder import rungs_of

OFFICIAL_CATEGORIES = 1812
OFFICIAL_FOLDER = "challenge-1024x120-first1200"

# ---- The whole network ------------------------------------------------------------------------------------------

LOOP = "SciPy loop"
SWITCHES: dict[str, dict[str, bool]] = {
    "engine": {},
    "engine, equal outputs not merged": {"merging": False},
    "engine, equal rows not merged": {"deduplication": False},
    "engine, dead rows kept": {"compaction": False},
    "engine, dead and equal rows kept": {"compaction": False, "deduplication": False},
    "engine, nothing saved": {"compaction": False, "deduplication": False, "merging": False},
}


@dataclass(frozen=True)
class Method:
    """A method for a network of the challenge, and how many times it is run."""

    neurons: int
    name: str
    runs: int = 20

    def __str__(self) -> str:
        return f"{self.neurons}-{self.name}"


METHODS = (
    Method(1024, LOOP),
    *(Method(1024, name) for name in list(SWITCHES)[:-1]),
    Method(1024, "engine, nothing saved", 5),
    Method(4096, LOOP, 3),
    Method(4096, "engine"),
    Method(4096, "engine, equal outputs not merged", 5),
)


def official(sources: Sources) -> Dataset:
    """Return the official 1024 × 120 network with all 60,000 inputs."""
    network = read_official(sources.needed(OFFICIAL_FOLDER)).network
    return Dataset("radixnet-1024x120", network, mnist_inputs(1024, folder=sources.needed("mnist")))


def problem(neurons: int, sources: Sources) -> tuple[Dataset, np.ndarray]:
    """Return a problem and its categories: those of the reference, and of the SciPy loop for the larger one."""
    if neurons == 1024:
        dataset = official(sources)
        categories = infer(dataset.network, dataset.inputs, device="reference", merging=False).categories
        if categories.size != OFFICIAL_CATEGORIES:
            raise WrongAnswerError(f"the reference finds {categories.size} categories, not {OFFICIAL_CATEGORIES}")
        return dataset, categories
    network = radixnet(neurons, 120, bias=-0.35)
    dataset = Dataset(f"radixnet-{neurons}x120", network, mnist_inputs(neurons, folder=sources.needed("mnist")))
    return dataset, scipy_loop(*scipy_problem(dataset))


def scipy_problem(dataset: Dataset) -> tuple[list[Any], Any, float]:
    weights = [layer.weights.to_scipy().tocsr() for layer in dataset.network]
    return weights, dataset.inputs.to_scipy(), dataset.network[0].bias


def scipy_loop(weights: list[Any], inputs: Any, bias: float) -> np.ndarray:
    """CSR x CSR, bias on the non-zeros, clip, drop the zeros; return the categories."""
    features = inputs
    for matrix in weights:
        features = features @ matrix
        features.data += np.float32(bias)
        np.clip(features.data, 0, 32, out=features.data)
        features.eliminate_zeros()
    return np.flatnonzero(np.diff(features.indptr))


def network_row(cell: Method, run: Run) -> Row:
    sources = Sources(run.options.data)
    dataset, expected = run.shared_value(cell.neurons, lambda: problem(cell.neurons, sources))
    performed = None
    if cell.name == LOOP:
        arguments = scipy_problem(dataset)
        call = lambda: scipy_loop(*arguments)  # noqa: E731
        found = call()
    else:
        call = lambda: infer(dataset.network, dataset.inputs, **SWITCHES[cell.name])  # noqa: E731
        result = call()
        found, performed = result.categories, result.performed_edges
    if not np.array_equal(found, expected):
        raise WrongAnswerError(f"{cell}: {found.size} categories, not {expected.size}")
    timing = run.timer.time(call, runs=cell.runs, warm_up=1)
    seconds = timing.median / 1e3
    row = {
        "problem": f"{cell.neurons} × {len(dataset.network)}",
        "method": cell.name,
        "seconds": seconds,
        "spread": timing.spread / 1e3,
        "runs": timing.runs,
        "rate": dataset.inputs.shape[0] * dataset.network.edges / seconds / 1e12,
    }
    row["performed"] = performed and performed / 1e9
    least = ceilings().floor(bytes_moved(dataset.network, dataset.inputs), performed) if performed else None
    return row | {"floor_seconds": least, "floor_share": least and least / seconds}


def network_notes(options: argparse.Namespace, rows: Any) -> list[str]:
    limits = ceilings()
    few = ", ".join(f"{cell.name} {cell.neurons}: {cell.runs}" for cell in METHODS if cell.runs < 20)
    return [
        "Inputs and weights are in memory; planning is included. Every method is checked before it is timed: "
        f"{OFFICIAL_CATEGORIES} categories for the official 1024 × 120, the SciPy loop's for the generated 4096 × 120.",
        f"Spread: interquartile range of 20 runs ({few}). Floor: reading inputs and weights once at the measured copy "
        f"bandwidth ({limits.copy_bandwidth / 1e9:.0f} GB/s), or the multiply-adds done at the measured rate of a "
        f"dense matrix product ({limits.multiply_adds['float32'] / 1e9:.0f} G/s), whichever is longer.",
    ]


NETWORK = Table(
    title="The whole Sparse DNN Graph Challenge problem, 60,000 inputs, on the CPU",
    columns=[
        ("problem", "neurons × layers"),
        ("method", "method"),
        ("seconds", "median (s)", "{:.3f}"),
        ("spread", "spread (s)", "{:.3f}"),
        ("speedup", "× SciPy loop", "{:.0f}"),
        ("rate", "rate (TeraEdges/s)", "{:.3f}"),
        ("performed", "multiply-adds done (10⁹)", "{:.2f}"),
        ("floor_share", "% of roofline", "{:.0%}"),
    ],
    cells=lambda options: METHODS,
    measure=network_row,
    relate=partial(set_speedups, "problem", "method", LOOP, "seconds"),
    notes=network_notes,
    options=add_data_option,
    configuration=lambda run: {
        "inputs": 60_000,
        "threads": thread_count(),
        "precision": "float32",
        "copy_bandwidth_gb_per_s": ceilings().copy_bandwidth / 1e9,
        "sgemm_multiply_adds_per_s": ceilings().multiply_adds["float32"],
    },
)

# ---- One layer --------------------------------------------------------------------------------------------------

ROWS, WIDTH, DEGREE = 4096, 1024, 32
DENSITIES = (0.01, 0.03, 0.1, 0.3, 1.0)
TOO_SLOW = {("sequential", 0.3), ("sequential", 1.0)}
"""Seconds a run: the ratio is clear from the sparser rows."""


@dataclass(frozen=True)
class Kernel:
    """A kernel with rows of a density."""

    entry: Any
    density: float

    def __str__(self) -> str:
        return f"{self.entry.name}-{self.density:g}"


@cache
def layer() -> SparseLinear:
    """Return a layer whose outputs read 32 random inputs with random weights."""
    rng = np.random.default_rng(7)
    weights = np.zeros((WIDTH, WIDTH), np.float32)
    for column in weights.T:
        column[rng.choice(WIDTH, DEGREE, replace=False)] = rng.normal(size=DEGREE)
    return SparseLinear.from_scipy(from_dense(weights).to_scipy(), -0.1, ReLU())


def kernels(options: argparse.Namespace) -> Iterator[Kernel]:
    for density in DENSITIES:
        for entry in rungs_of("spmspm", "cpu"):
            if (entry.name, density) not in TOO_SLOW:
                yield Kernel(entry, density)


def kernel_row(cell: Kernel, run: Run) -> Row:
    rng = np.random.default_rng(11)
    dense = rng.random((ROWS, WIDTH), dtype=np.float32) * (rng.random((ROWS, WIDTH)) < cell.density)
    backend = backends.backend_for("cpu")
    rows = backend.place(from_dense(dense))
    stack = backend.prepare([layer()], [np.ones(WIDTH, np.int64)])
    step = StepInput(stack, 0, 1, rows, np.ones(ROWS, np.int64), 1)
    output = cell.entry.launch(step)
    expected = forward(layer(), rows.to_scipy().astype(np.float64)).toarray()
    found = output.features.to_scipy().toarray() if isinstance(output.features, CSR) else output.features
    if not np.allclose(output.row_map.scatter(found), expected, rtol=1e-4, atol=1e-4):
        raise WrongAnswerError(f"{cell}: the outputs are not the reference's")
    timing = run.timer.time(lambda: cell.entry.launch(step), runs=20, least_seconds=1.0)
    return {
        "density": cell.density,
        "kernel": cell.entry.name,
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "runs": timing.runs,
        "edge_rate": output.counts[0].performed_edges / timing.median / 1e6,
    }


SPMSPM = Table(
    title=(
        f"One sparse layer on the CPU: {ROWS:,} rows, {WIDTH} × {WIDTH} weights, {DEGREE} random ones for each output"
    ),
    columns=[
        ("density", "density of the rows", "{:.0%}"),
        ("kernel", "kernel"),
        ("milliseconds", "median (ms)", "{:.2f}"),
        ("spread_milliseconds", "spread (ms)", "{:.2f}"),
        ("speedup", "× scipy", "{:.1f}"),
        ("edge_rate", "multiply-adds done (10⁹/s)", "{:.2f}"),
    ],
    cells=kernels,
    measure=kernel_row,
    relate=partial(set_speedups, "density", "kernel", "scipy", "milliseconds"),
    notes=["Every kernel is checked against the float64 reference first. Spread: interquartile range."],
    configuration=lambda run: {
        "rows": ROWS,
        "width": WIDTH,
        "degree": DEGREE,
        "threads": thread_count(),
        "precision": "float32",
    },
)

TABLES = {"network": NETWORK, "spmspm": SPMSPM}
