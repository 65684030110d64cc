"""One sparse layer at a time: every CPU kernel on the same rows, sparse ones and dense ones."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn import backends
from sparsenn.backends import StepInput
from sparsenn.backends.oracle import forward
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.runtime.workers import thread_count
from sparsenn.studies.ladder import rungs_of

ROWS = 4096
WIDTH = 1024
DEGREE = 32
DENSITIES = (0.01, 0.03, 0.1, 0.3, 1.0)
KERNELS = rungs_of("spmspm", "cpu")
TOO_SLOW = {("sequential", 0.3), ("sequential", 1.0)}
"""Seconds a run: the ratio is clear from the sparser rows."""


@pytest.fixture(scope="module")
def layer() -> SparseLinear:
    """Unstructured: each output reads 32 random inputs with random weights."""
    rng = np.random.default_rng(7)
    weights = np.zeros((WIDTH, WIDTH), np.float32)
    for column in weights.T:
        column[rng.choice(WIDTH, DEGREE, replace=False)] = rng.normal(size=DEGREE)
    return SparseLinear.from_scipy(from_dense(weights).to_scipy(), -0.1, ReLU())


def features(density: float) -> CSR:
    rng = np.random.default_rng(11)
    return from_dense(rng.random((ROWS, WIDTH), dtype=np.float32) * (rng.random((ROWS, WIDTH)) < density))


@pytest.fixture(scope="module")
def table(new_table):
    table = new_table(
        "spmspm",
        f"One sparse layer on the CPU: {ROWS:,} rows, {WIDTH} × {WIDTH} weights, {DEGREE} random ones for each output",
        [
            ("density", "density of the rows", "{:.0%}"),
            ("kernel", "kernel"),
            ("milliseconds", "median (ms)", "{:.2f}"),
            ("spread_milliseconds", "spread (ms)", "{:.2f}"),
            ("speedup", "× scipy", "{:.1f}"),
            ("edge_rate", "multiply-adds done (10⁹/s)", "{:.2f}"),
        ],
        {"rows": ROWS, "width": WIDTH, "degree": DEGREE, "threads": thread_count(), "precision": "float32"},
    )
    yield table
    table.relate("speedup", lambda row, other: other["kernel"] == "scipy" and other["density"] == row["density"])
    table.notes = ["Every kernel is checked against the float64 reference first. Spread: interquartile range."]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("entry", KERNELS, ids=lambda entry: entry.name)
def bench_layer(benchmark, table, layer, entry, density):
    if (entry.name, density) in TOO_SLOW:
        pytest.skip("takes seconds a run")
    backend = backends.backend_for("cpu")
    rows = backend.place(features(density))
    stack = backend.prepare([layer], [np.ones(WIDTH, np.int64)])
    step = StepInput(stack, 0, 1, rows, np.ones(ROWS, np.int64), 1)
    check(entry.launch(step), layer, rows)
    output = benchmark(entry.launch, step)
    row = table.add(benchmark, density=density, kernel=entry.name)
    row["milliseconds"], row["spread_milliseconds"] = 1e3 * row["seconds"], 1e3 * row["spread"]
    row["edge_rate"] = output.counts[0].performed_edges / row["seconds"] / 1e9


def check(output, layer: SparseLinear, rows: CSR) -> None:
    expected = forward(layer, rows.to_scipy().astype(np.float64)).toarray()
    found = output.features.to_scipy().toarray() if isinstance(output.features, CSR) else output.features
    np.testing.assert_allclose(output.row_map.scatter(found), expected, rtol=1e-4, atol=1e-4)
