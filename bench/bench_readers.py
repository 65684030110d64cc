"""Reading the whole 1024 x 120 problem from each format, files in the page cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ceilings import ceilings

from sparsenn.io import Dataset
from sparsenn.io.challenge.folder import read_official, write_official
from sparsenn.io.hdf5.dataset import read_dataset, write_dataset


@pytest.fixture(scope="module")
def table(new_table):
    table = new_table(
        "readers",
        "Reading network and inputs of 1024 × 120 with 60,000 inputs, from the page cache",
        [
            ("format", "format"),
            ("megabytes", "files (MB)", "{:.1f}"),
            ("milliseconds", "median (ms)", "{:.1f}"),
            ("spread_milliseconds", "spread (ms)", "{:.1f}"),
            ("gigabytes_per_second", "matrix data (GB/s)", "{:.2f}"),
        ],
        {"neurons": 1024, "layers": 120, "inputs": 60_000},
    )
    yield table
    table.notes = [
        "Matrix data: bytes of all offsets, indices and values in memory, checked in full, per second. A plain copy in "
        f"memory moves {ceilings().copy_bandwidth / 1e9:.0f} GB/s, read and written bytes counted. "
        "Spread: interquartile range."
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("formats")
    yield place
    shutil.rmtree(place)


def compare(benchmark, table, official: Dataset, name: str, path: Path, read: Callable[[Path], Dataset]) -> None:
    found = read(path)
    same(found, official)
    benchmark(read, path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    row = table.add(benchmark, format=name, megabytes=sum(file.stat().st_size for file in files) / 1e6)
    row["milliseconds"], row["spread_milliseconds"] = 1e3 * row["seconds"], 1e3 * row["spread"]
    row["gigabytes_per_second"] = matrix_bytes(found) / row["seconds"] / 1e9


def matrix_bytes(dataset: Dataset) -> int:
    return dataset.inputs.nbytes + sum(layer.weights.nbytes for layer in dataset.network)


def same(found: Dataset, expected: Dataset) -> None:
    pairs: list[tuple[Any, Any]] = [(found.inputs, expected.inputs)]
    pairs += [(a.weights, b.weights) for a, b in zip(found.network, expected.network, strict=True)]
    for one, other in pairs:
        assert np.array_equal(one.indices, other.indices)
        assert np.array_equal(one.indptr[: other.indptr.size], other.indptr[: one.indptr.size])


def bench_hdf5(benchmark, table, official, folder):
    path = folder / "problem.h5"
    write_dataset(official, path)
    compare(benchmark, table, official, "HDF5", path, read_dataset)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("official layout, TSV", {}),
        ("official layout, TSV in .gz", {"compress": True}),
        ("official layout, network as .tar.gz", {"archive": True, "compress": True}),
    ],
)
def bench_official_layout(benchmark, table, official, folder, name, options):
    path = folder / "-".join(["official", *options])
    write_official(official, path, **options)
    compare(benchmark, table, official, name, path, read_official)
