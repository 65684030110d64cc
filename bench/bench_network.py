"""The whole network: the engine, each of its exact shortcuts switched off, and the loop a SciPy user writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ceilings import bytes_moved, ceilings

from sparsenn import infer
from sparsenn.datasets import mnist_inputs, radixnet
from sparsenn.io import Dataset
from sparsenn.network import Network
from sparsenn.runtime.workers import thread_count

OFFICIAL_CATEGORIES = 1812

SWITCHES: dict[str, dict[str, bool]] = {
    "engine": {},
    "engine, equal outputs not merged": {"merging": False},
    "engine, equal rows not merged": {"deduplication": False},
    "engine, dead rows kept": {"compaction": False},
    "engine, dead and equal rows kept": {"compaction": False, "deduplication": False},
    "engine, nothing saved": {"compaction": False, "deduplication": False, "merging": False},
}
SLOW = {"SciPy loop": 20, "engine, nothing saved": 5}
"""Runs of what takes seconds; everything else runs at least 20 times."""


def scipy_weights(network: Network) -> list[Any]:
    return [layer.weights.to_scipy().tocsr() for layer in network]


def scipy_loop(weights: list[Any], inputs: Any, bias: float) -> np.ndarray:
    """CSR x CSR, bias on the non-zeros, clip, drop the zeros; returns the categories."""
    features = inputs
    for matrix in weights:
        features = features @ matrix
        features.data += np.float32(bias)
        np.clip(features.data, 0, 32, out=features.data)
        features.eliminate_zeros()
    return np.flatnonzero(np.diff(features.indptr))


@pytest.fixture(scope="module")
def table(new_table):
    table = new_table(
        "network",
        "The whole Sparse DNN Graph Challenge problem, 60,000 inputs, on the CPU",
        [
            ("problem", "neurons × layers"),
            ("method", "method"),
            ("seconds", "median (s)", "{:.3f}"),
            ("spread", "spread (s)", "{:.3f}"),
            ("speedup", "× SciPy loop", "{:.0f}"),
            ("rate", "rate (TeraEdges/s)", "{:.3f}"),
            ("performed", "multiply-adds done (10⁹)", "{:.2f}"),
            ("floor_share", "% of roofline", "{:.0%}"),
        ],
        {"inputs": 60_000, "threads": thread_count(), "precision": "float32"},
    )
    yield table
    table.relate("speedup", lambda row, other: other["method"] == "SciPy loop" and other["problem"] == row["problem"])
    limits = ceilings()
    table.configuration |= {
        "copy_bandwidth_gb_per_s": limits.copy_bandwidth / 1e9,
        "sgemm_multiply_adds_per_s": limits.multiply_adds["float32"],
    }
    table.notes = [
        "Inputs and weights are in memory; planning is included. Every method is checked before it is timed: "
        f"{OFFICIAL_CATEGORIES} categories for the official 1024 × 120, the SciPy loop's for the generated 4096 × 120.",
        f"Spread: interquartile range of at least 20 runs ({', '.join(f'{name}: {n}' for name, n in SLOW.items())}; "
        "3 and 5 for 4096). Floor: reading inputs and weights once at the measured copy bandwidth "
        f"({limits.copy_bandwidth / 1e9:.0f} GB/s), or the multiply-adds done at the measured rate of a dense matrix "
        f"product ({limits.multiply_adds['float32'] / 1e9:.0f} G/s), whichever is longer.",
    ]


@pytest.fixture(scope="module")
def larger(mnist_folder) -> Dataset:
    """4096 x 120: official inputs, generated network; its categories from the SciPy loop."""
    network = radixnet(4096, 120, bias=-0.35)
    return Dataset("radixnet-4096x120", network, mnist_inputs(4096, folder=mnist_folder))


def add(table, benchmark, dataset: Dataset, method: str, performed: int | None) -> None:
    row = table.add(benchmark, problem=f"{dataset.network.inputs} × {len(dataset.network)}", method=method)
    row["rate"] = dataset.inputs.shape[0] * dataset.network.edges / row["seconds"] / 1e12
    if performed is not None:
        row["performed"] = performed / 1e9
        floor = ceilings().floor(bytes_moved(dataset.network, dataset.inputs), performed)
        row |= {"floor_seconds": floor, "floor_share": floor / row["seconds"]}


def time_scipy(benchmark, table, dataset: Dataset, rounds: int, expected: np.ndarray | None) -> np.ndarray:
    weights, inputs = scipy_weights(dataset.network), dataset.inputs.to_scipy()
    bias = dataset.network[0].bias
    found = benchmark.pedantic(scipy_loop, (weights, inputs, bias), rounds=rounds, iterations=1)
    assert expected is None or np.array_equal(found, expected)
    add(table, benchmark, dataset, "SciPy loop", None)
    return found


def time_engine(benchmark, table, dataset: Dataset, method: str, rounds: int | None, expected: np.ndarray) -> None:
    result = infer(dataset.network, dataset.inputs, **SWITCHES[method])
    assert np.array_equal(result.categories, expected)
    if rounds:
        benchmark.pedantic(infer, (dataset.network, dataset.inputs), SWITCHES[method], rounds=rounds, iterations=1)
    else:
        benchmark(infer, dataset.network, dataset.inputs, **SWITCHES[method])
    add(table, benchmark, dataset, method, result.performed_edges)


@pytest.fixture(scope="module")
def categories(official) -> np.ndarray:
    found = infer(official.network, official.inputs, device="reference", merging=False).categories
    assert found.size == OFFICIAL_CATEGORIES
    return found


def bench_official_scipy(benchmark, table, official, categories):
    time_scipy(benchmark, table, official, SLOW["SciPy loop"], categories)


@pytest.mark.parametrize("method", SWITCHES)
def bench_official_engine(benchmark, table, official, categories, method):
    time_engine(benchmark, table, official, method, SLOW.get(method), categories)


@pytest.fixture(scope="module")
def larger_categories() -> dict[str, np.ndarray]:
    return {}


def bench_larger_scipy(benchmark, table, larger, larger_categories):
    larger_categories["scipy"] = time_scipy(benchmark, table, larger, 3, None)


@pytest.mark.parametrize("method", list(SWITCHES)[:2])
def bench_larger_engine(benchmark, table, larger, larger_categories, method):
    time_engine(benchmark, table, larger, method, 5 if SWITCHES[method] else None, larger_categories["scipy"])
