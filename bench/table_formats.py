"""Conversions between formats beside SciPy's, and reading a problem from each of its formats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Sources, add_data_option
from ceilings import ceilings
from record import Row, Run, Table, WrongAnswerError
from table_network import official

from sparsenn.datasets import mnist_inputs
from sparsenn.formats import COO, CSR, coo_to_csc, coo_to_csr, csr_to_csc
from sparsenn.io import Dataset
from sparsenn.io.challenge.folder import read_official, write_official
from sparsenn.io.hdf5.dataset import read_dataset, write_dataset

SECONDS = 1.0
"""Of timed calls of a conversion or a reader, at least."""

# ---- Conversions ------------------------------------------------------------------------------------------------


def scipy_to(form: str) -> Callable[[Any], Any]:
    """Return SciPy's conversion, indices sorted."""

    def convert(matrix: Any) -> Any:
        result = getattr(matrix, f"to{form.lower()}")()
        result.sort_indices()
        return result

    return convert


CONVERSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "COO → CSR": ("CSR", coo_to_csr),
    "COO → CSC": ("CSC", coo_to_csc),
    "CSR → CSC": ("CSC", csr_to_csc),
}
"""The form that results, and our function."""


def shuffled(inputs: CSR) -> COO:
    """Return the non-zeros in random order, each with a value of its own."""
    matrix = inputs.to_scipy().tocoo()
    order = np.random.default_rng(3).permutation(matrix.nnz)
    values = np.arange(1, matrix.nnz + 1, dtype=np.float32)
    return COO.from_arrays(matrix.shape, matrix.row[order], matrix.col[order], values)


def conversion_rows(name: str, run: Run) -> list[Row]:
    """Compare a conversion with SciPy's, and time both in turn."""
    folder = Sources(run.options.data).needed("mnist")
    inputs = run.shared_value("inputs", lambda: mnist_inputs(1024, folder=folder))
    matrix = run.shared_value("shuffled", lambda: shuffled(inputs)) if name.startswith("COO") else inputs
    form, convert = CONVERSIONS[name]
    by_scipy, ours = scipy_to(form), matrix.to_scipy()
    expected, found = by_scipy(ours), convert(matrix).to_scipy()
    if (found != expected).nnz or not np.array_equal(found.indices, expected.indices):
        raise WrongAnswerError(f"{name}: the result is not SciPy's")
    timings = run.timer.in_turn([lambda: convert(matrix), lambda: by_scipy(ours)], runs=20)
    return [
        {
            "key": f"{name}, {method}",
            "conversion": name,
            "method": method,
            "milliseconds": timing.median,
            "spread_milliseconds": timing.spread,
            "runs": timing.runs,
            "speedup": timings[1].median / timing.median,
        }
        for method, timing in zip(("sparsenn", "SciPy"), timings, strict=True)
    ]


CONVERSION = Table(
    title="Conversions on one core: the 6,374,505 non-zeros of the official inputs, 60,000 × 1024",
    columns=[
        ("conversion", "conversion"),
        ("method", "method"),
        ("milliseconds", "median (ms)", "{:.1f}"),
        ("spread_milliseconds", "spread (ms)", "{:.1f}"),
        ("speedup", "× SciPy", "{:.1f}"),
    ],
    cells=lambda options: CONVERSIONS,
    measure=conversion_rows,
    notes=["Results are compared before they are timed. Spread: interquartile range."],
    options=add_data_option,
    configuration=lambda run: {"rows": 60_000, "columns": 1024, "nonzeros": 6_374_505},
)

# ---- Readers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A format: how a problem is written and read."""

    name: str
    write: Callable[[Dataset, Path], Any]
    read: Callable[[Path], Dataset]

    def __str__(self) -> str:
        return self.name


def _official(**options: bool) -> Callable[[Dataset, Path], Any]:
    return lambda dataset, path: write_official(dataset, path, **options)


FORMATS = (
    Format("HDF5", write_dataset, read_dataset),
    Format("official layout, TSV", _official(), read_official),
    Format("official layout, TSV in .gz", _official(compress=True), read_official),
    Format("official layout, network as .tar.gz", _official(archive=True, compress=True), read_official),
)


def reader_row(cell: Format, run: Run) -> Row:
    """Compare a problem read with the one written, and time reading."""
    dataset = run.shared_value("official", lambda: official(Sources(run.options.data)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("problem.h5" if cell.name == "HDF5" else "problem")
        cell.write(dataset, path)
        found = cell.read(path)
        if not _is_same(found, dataset):
            raise WrongAnswerError(f"{cell}: the problem that is read is not the one that was written")
        timing = run.timer.time(lambda: cell.read(path), runs=20, least_seconds=SECONDS)
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        megabytes = sum(file.stat().st_size for file in files) / 1e6
    data = found.inputs.nbytes + sum(layer.weights.nbytes for layer in found.network)
    return {
        "format": cell.name,
        "megabytes": megabytes,
        "milliseconds": timing.median,
        "spread_milliseconds": timing.spread,
        "runs": timing.runs,
        "gigabytes_per_second": data / timing.median / 1e6,
    }


def _is_same(found: Dataset, expected: Dataset) -> bool:
    pairs: list[tuple[Any, Any]] = [(found.inputs, expected.inputs)]
    pairs += [(a.weights, b.weights) for a, b in zip(found.network, expected.network, strict=True)]
    return all(
        np.array_equal(one.indices, other.indices)
        and np.array_equal(one.indptr[: other.indptr.size], other.indptr[: one.indptr.size])
        for one, other in pairs
    )


READERS = Table(
    title="Reading network and inputs of 1024 × 120 with 60,000 inputs, from the page cache",
    columns=[
        ("format", "format"),
        ("megabytes", "files (MB)", "{:.1f}"),
        ("milliseconds", "median (ms)", "{:.1f}"),
        ("spread_milliseconds", "spread (ms)", "{:.1f}"),
        ("gigabytes_per_second", "matrix data (GB/s)", "{:.2f}"),
    ],
    cells=lambda options: FORMATS,
    measure=reader_row,
    notes=lambda options, rows: [
        "Matrix data: bytes of all offsets, indices and values in memory, checked in full, per second. A plain copy in "
        f"memory moves {ceilings().copy_bandwidth / 1e9:.0f} GB/s, read and written bytes counted. "
        "Spread: interquartile range."
    ],
    options=add_data_option,
    configuration=lambda run: {"neurons": 1024, "layers": 120, "inputs": 60_000},
)

TABLES = {"conversion": CONVERSION, "readers": READERS}
