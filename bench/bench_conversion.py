"""Conversions between formats, beside SciPy's, on the official inputs of 1024 pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsenn.formats import COO, CSR, coo_to_csc, coo_to_csr, csr_to_csc


@pytest.fixture(scope="module")
def table(new_table):
    table = new_table(
        "conversion",
        "Conversions on one core: the 6,374,505 non-zeros of the official inputs, 60,000 × 1024",
        [
            ("conversion", "conversion"),
            ("method", "method"),
            ("milliseconds", "median (ms)", "{:.1f}"),
            ("spread_milliseconds", "spread (ms)", "{:.1f}"),
            ("speedup", "× SciPy", "{:.1f}"),
        ],
        {"rows": 60_000, "columns": 1024, "nonzeros": 6_374_505},
    )
    yield table
    table.relate("speedup", lambda row, other: other["method"] == "SciPy" and other["conversion"] == row["conversion"])
    table.notes = ["Results are compared before they are timed. Spread: interquartile range."]


@pytest.fixture(scope="module")
def shuffled(official_inputs: CSR) -> COO:
    """The non-zeros in random order, each with a value of its own."""
    matrix = official_inputs.to_scipy().tocoo()
    order = np.random.default_rng(3).permutation(matrix.nnz)
    values = np.arange(1, matrix.nnz + 1, dtype=np.float32)
    return COO.from_arrays(matrix.shape, matrix.row[order], matrix.col[order], values)


def scipy_csr(matrix: Any) -> Any:
    result = matrix.tocsr()
    result.sort_indices()
    return result


def scipy_csc(matrix: Any) -> Any:
    result = matrix.tocsc()
    result.sort_indices()
    return result


def compare(benchmark, table, name: str, work: tuple[Callable, Any], method: str, same: Callable[[Any], bool]) -> None:
    function, argument = work
    assert same(function(argument))
    benchmark(function, argument)
    row = table.add(benchmark, conversion=name, method=method)
    row["milliseconds"], row["spread_milliseconds"] = 1e3 * row["seconds"], 1e3 * row["spread"]


def equals(expected: Any) -> Callable[[Any], bool]:
    def same(found: Any) -> bool:
        found = found if hasattr(found, "tocoo") else found.to_scipy()
        return bool((found != expected).nnz == 0 and np.array_equal(found.indices, expected.indices))

    return same


@pytest.mark.parametrize("method", ["SciPy", "sparsenn"])
@pytest.mark.parametrize("target", ["CSR", "CSC"])
def bench_from_coo(benchmark, table, shuffled, target, method):
    scipy_function, function = {"CSR": (scipy_csr, coo_to_csr), "CSC": (scipy_csc, coo_to_csc)}[target]
    work = (scipy_function, shuffled.to_scipy()) if method == "SciPy" else (function, shuffled)
    compare(benchmark, table, f"COO → {target}", work, method, equals(scipy_function(shuffled.to_scipy())))


@pytest.mark.parametrize("method", ["SciPy", "sparsenn"])
def bench_csr_to_csc(benchmark, table, official_inputs, method):
    expected = scipy_csc(official_inputs.to_scipy())
    work = (scipy_csc, official_inputs.to_scipy()) if method == "SciPy" else (csr_to_csc, official_inputs)
    compare(benchmark, table, "CSR → CSC", work, method, equals(expected))
