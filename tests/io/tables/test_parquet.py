"""Parquet: columns of every kind that is read, and files that are refused before memory is taken for them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparsenn.errors import FileFormatError
from sparsenn.io.tables.files import open_table, read_table


def written(folder: Path, columns: dict[str, Any], **how: Any) -> Path:
    path = folder / "a.parquet"
    parquet.write_table(pa.table(columns), path, **how)
    return path


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1, 2, 3], pa.int64()), [1, 2, 3]),
        (pa.array([1, None, 3], pa.uint8()), [1, np.nan, 3]),
        (pa.array([0.5, None, np.nan], pa.float64()), [0.5, np.nan, np.nan]),
        (pa.array(np.array([0.5, -1, 2], np.float16)), [0.5, -1, 2]),
        (pa.array([True, False, None]), [1, 0, np.nan]),
        (pa.array([Decimal("1.25"), None, Decimal("-3")], pa.decimal128(9, 2)), [1.25, np.nan, -3]),
        (pa.array([5, None, 5]).dictionary_encode(), [5, np.nan, 5]),
    ],
)
def test_numbers(tmp_path: Path, values: pa.Array, expected: list[float]) -> None:
    found = read_table(written(tmp_path, {"x": values}))
    assert (found.names, found.rows, found.first_line) == (("x",), 3, None)
    assert found.numbers(0).dtype == np.float32
    np.testing.assert_array_equal(found.numbers(0), np.float32(expected))


@pytest.mark.parametrize("kind", ["plain", "dictionary", "large", "unused"])
def test_texts(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenn.io.tables.parquet._ROWS", 2)
    texts = ["b", None, "a", "b", "c"]
    values = pa.array(texts, pa.large_string() if kind == "large" else pa.string())
    if kind == "dictionary":
        values = values.dictionary_encode()
    elif kind == "unused":
        values = pa.DictionaryArray.from_arrays(pa.array([1, None, 2, 1, 3]), ["never", "b", "a", "c"])
    found = read_table(written(tmp_path, {"x": values}, row_group_size=3)).texts(0)
    assert [None if code < 0 else found.values[code] for code in found.codes] == texts
    assert sorted(found.values) == ["a", "b", "c"]


def test_what_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path, {"x": [1.0, 2.0], "y": ["a", "b"]}).read_bytes()
    path = tmp_path / "b.parquet"
    for data in (b"", b"PAR1", whole[:-4], whole[4:], whole[: len(whole) // 2], b"a,b\n1,2\n"):
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="not Parquet, or damaged"):
            read_table(path)
    named = written(tmp_path, {"colour": ["green"]}, use_dictionary=False, compression="none").read_bytes()
    for word in (b"colour", b"green"):
        path.write_bytes(named.replace(word, b"\xff" * len(word)))
        with pytest.raises(FileFormatError, match="not Parquet, or damaged"):
            read_table(path)
    with pytest.raises(FileFormatError, match=r"row 2, column 'x' holds a number that is not finite"):
        read_table(written(tmp_path, {"x": [1.0, 1e39]}))


def test_blocks_from_any_row_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenn.io.tables.parquet._ROWS", 3)
    path = written(tmp_path, {"x": np.arange(20), "id": [f"r{number}" for number in range(20)]}, row_group_size=8)
    for first in (0, 1, 7, 8, 19):
        with open_table(path) as file:
            blocks = list(file.blocks([0], copied=1, first=first))
        assert np.concatenate([block.table.matrix() for block in blocks]).ravel().tolist() == list(range(first, 20))
        assert next(text for block in blocks for text in block.copied.to_pylist()) == f"r{first}"
        assert (blocks[0].table.first_row, blocks[-1].position, file.size) == (first, 20, 20)
