"""Finding structure, and merging, in networks of about ten million weights: with some, with none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sparsenn import find_structure
from sparsenn.datasets import radixnet
from sparsenn.layers import SparseLinear
from sparsenn.network import Network
from sparsenn.runtime.workers import thread_count
from sparsenn.structure.merging import merge_equal_outputs

LIMIT = 1.0
"""Seconds for ten million weights."""


@pytest.fixture(scope="module")
def table(new_table):
    table = new_table(
        "structure",
        f"Looking for structure in weights, on {thread_count()} cores",
        [
            ("network", "network"),
            ("weights", "weights", "{:,}"),
            ("method", "method"),
            ("milliseconds", "median (ms)", "{:.0f}"),
            ("spread_milliseconds", "spread (ms)", "{:.0f}"),
        ],
        {"limit_seconds": LIMIT},
    )
    yield table
    table.notes = ["Spread: interquartile range. Compiled before."]


def layers(count: int, places: Callable[[np.random.Generator], Any]) -> Network:
    """Layers with weights at random in the places that are drawn."""
    rng = np.random.default_rng(5)
    made = []
    for _ in range(count):
        matrix = sparse.csc_array(places(rng), dtype=np.float32)
        matrix.data[:] = rng.normal(size=matrix.nnz)
        made.append(SparseLinear.from_scipy(matrix))
    return Network(tuple(made))


NETWORKS: dict[str, Callable[[], Network]] = {
    "24 × 1024, 40 % at random": lambda: layers(24, lambda rng: rng.random((1024, 1024)) < 0.4),
    "1 × 8192, 15 % at random": lambda: layers(1, lambda rng: rng.random((8192, 8192), np.float32) < 0.15),
    "24 × 1024, 40 % of 16 × 16 blocks": lambda: layers(
        24, lambda rng: np.kron(rng.random((64, 64)) < 0.4, np.ones((16, 16)))
    ),
    "24 × 6400, 100 blocks": lambda: layers(24, lambda _: sparse.block_diag([np.ones((64, 64))] * 100)),
    "RadiX-Net 4096 × 77": lambda: radixnet(4096, 77),
    "RadiX-Net 1024 × 120": lambda: radixnet(1024, 120),
}


@pytest.mark.parametrize("work", [find_structure, merge_equal_outputs], ids=lambda work: work.__name__)
@pytest.mark.parametrize("name", NETWORKS)
def bench_structure(benchmark, table, name: str, work: Callable[[Network], Any]) -> None:
    network = NETWORKS[name]()
    benchmark(work, network)
    row = table.add(benchmark, network=name, weights=network.edges, method=work.__name__)
    row["milliseconds"], row["spread_milliseconds"] = 1e3 * row["seconds"], 1e3 * row["spread"]
    assert row["seconds"] < LIMIT * max(1, network.edges / 1e7)
