from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from strategies import coo_matrices

from sparsenn.errors import FileFormatError, InputError, ResourceError
from sparsenn.formats import COO, CSR, coo_to_csc, coo_to_csr
from sparsenn.io.arrays.matrix_market import read_matrix_market, read_matrix_market_rows, write_matrix_market

Corrupted = Callable[..., Path]
Same = Callable[[Any, Any], None]

BANNER = "%%MatrixMarket matrix coordinate real general\n"


def dense(path: Path) -> np.ndarray:
    return read_matrix_market(path).validate().to_scipy().toarray()


@given(coo_matrices())
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_round_trip(tmp_path_factory, same_matrix: Same, name: str, matrix: COO) -> None:
    path = tmp_path_factory.mktemp("mtx") / name
    for convert in (lambda triples: triples, coo_to_csr, coo_to_csc):
        write_matrix_market(path, convert(matrix))
        same_matrix(coo_to_csr(read_matrix_market(path)), coo_to_csr(matrix))


@given(coo_matrices(shape=(7, 7)))
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_reads_what_scipy_writes(tmp_path_factory, symmetry: str, field: str, matrix: COO) -> None:
    if (symmetry, field) == ("skew-symmetric", "pattern"):
        return
    path = tmp_path_factory.mktemp("mtx") / "m.mtx"
    half = sp.tril(matrix.to_scipy(), -1).astype(np.float64 if field == "real" else np.int64)
    half.data += 3
    whole = half if symmetry == "general" else half + half.T if symmetry == "symmetric" else half - half.T
    scipy.io.mmwrite(path, sp.coo_array(whole), field=field, symmetry=symmetry, comment="made\nby a test")
    np.testing.assert_array_equal(dense(path), scipy.io.mmread(path).toarray().astype(np.float32))


@given(coo_matrices())
def test_scipy_reads_what_is_written(tmp_path_factory, matrix: COO) -> None:
    path = tmp_path_factory.mktemp("mtx") / "m.mtx"
    write_matrix_market(path, matrix)
    np.testing.assert_array_equal(scipy.io.mmread(path).toarray().astype(np.float32), matrix.to_scipy().toarray())
    assert path.read_text().startswith(BANNER)


def test_comments_blanks_and_line_ends_of_any_kind(corrupted: Corrupted) -> None:
    header = "\ufeff%%MATRIXMARKET Matrix Coordinate REAL General\r\n% note\r\n%\r\n\r\n 2\t3  2 \r\n"
    text = header + "\r\n 1 3\t2.5 \r\n2 1 -1\r\n"
    np.testing.assert_array_equal(dense(corrupted(text.encode(), "m.mtx")), [[0, 0, 2.5], [-1, 0, 0]])


def test_no_entries(corrupted: Corrupted) -> None:
    assert dense(corrupted(f"{BANNER}2 3 0\n".encode(), "m.mtx")).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert dense(corrupted(f"{BANNER}0 0 0\n".encode(), "m.mtx")).shape == (0, 0)


def test_patterns_have_ones(corrupted: Corrupted) -> None:
    matrix = read_matrix_market(corrupted(f"{BANNER.replace('real', 'pattern')}2 2 2\n1 2\n2 2\n".encode(), "m.mtx"))
    assert matrix.values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "not Matrix Market"),
        ("%MatrixMarket matrix coordinate real general\n1 1 0\n", 1, "not Matrix Market"),
        ("1\t1\t1\n", 1, "not Matrix Market"),
        ("\x89HDF\r\n", 1, "not Matrix Market"),
        (BANNER.replace("coordinate", "array"), 1, "a 'array' matrix cannot be read; only coordinate can"),
        (
            BANNER.replace("real", "complex"),
            1,
            "a 'complex' matrix cannot be read; only real, double, integer, pattern",
        ),
        (BANNER.replace("general", "hermitian"), 1, "a 'hermitian' matrix cannot be read"),
        (BANNER, 2, "the line of rows, columns and entries is missing: truncated"),
        (BANNER + "% only\n% comments\n", 4, "is missing"),
        (BANNER + "2 2\n", 2, "three whole numbers"),
        (BANNER + "2 2 1 1\n", 2, "three whole numbers"),
        (BANNER + "2 -2 1\n", 2, "three whole numbers"),
        (BANNER + "2 2.0 1\n", 2, "three whole numbers"),
        (BANNER + "2 " + "9" * 30 + " 1\n", 2, "three whole numbers"),
        (BANNER + "3000000000 2 1\n1 1 1\n", 2, "is beyond 2,147,483,647 rows or columns"),
        (BANNER + "2 2 5\n1 1 1\n", 2, "declares 5 entries; 2 x 2 has fewer positions"),
        (BANNER + "2 2 2\n1 1 1\n", 2, "declares 2 entries, but holds only 1"),
        (BANNER + "2 2 1\n1 1 1\n2 2 2\n", 2, "declares 1 entries, but holds more"),
        (BANNER + "2 2 1\n", 3, "is empty"),
        (BANNER + "2 2 1\n0 1 1\n", 3, "row 0 is outside 1..2"),
        (BANNER + "2 2 1\n1 3 1\n", 3, "column 3 is outside 1..2"),
        (BANNER + "2 2 1\n%c\n1 3 1\n", 3, "'%c' has 1 of 3 columns"),
        (BANNER + "2 2 1\n\n1.5 1 1\n", 4, "row 1.5 is not a whole number"),
        (BANNER + "2 2 1\n1 1\n", 3, "has 2 of 3 columns"),
        (
            BANNER + "2 2 1\n1 1 1 1\n",
            3,
            "has 4 of 3 columns; a line must hold row, column, value, separated by blanks",
        ),
        (BANNER.replace("real", "pattern") + "2 2 1\n1 1 1\n", 3, "has 3 of 2 columns"),
        (BANNER + "2 2 1\n1 1 x\n", 3, "value 'x' is not a number"),
        (BANNER + "2 2 1\n1 1 nan\n", 3, "value nan is not finite"),
        (BANNER + "2 2 1\n1 1 1e400\n", 3, "beyond float32"),
        (BANNER + "2 2 1\n1 1 1", 3, "has no line end"),
        (BANNER + "2 2 3\n1 1 1\n\n1 2 1\n1 1 2\n", 6, "row 1, column 1 occurs twice"),
        (
            BANNER.replace("general", "symmetric") + "2 2 2\n2 1 1\n1 2 1\n",
            4,
            "stores only what is on or below the diagonal",
        ),
        (BANNER.replace("general", "skew-symmetric") + "2 2 2\n2 1 1\n1 1 1\n", 4, "only what is below the diagonal"),
        (BANNER.replace("general", "symmetric") + "2 3 1\n2 1 1\n", 2, "a symmetric matrix is square"),
    ],
)
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_faulty_files(corrupted: Corrupted, refused_at: Any, name: str, text: str, line: int, message: str) -> None:
    data = text.encode("latin-1")
    path = corrupted(gzip.compress(data) if name.endswith("gz") else data, name)
    refused_at(read_matrix_market, path, line, re.escape(message))


def test_integers_must_be_whole(corrupted: Corrupted) -> None:
    path = corrupted(f"{BANNER.replace('real', 'integer')}2 2 2\n1 1 3\n2 2 1.5\n".encode(), "m.mtx")
    with pytest.raises(FileFormatError, match=r"m\.mtx:4: value 1\.5 is not a whole number"):
        read_matrix_market(path)


def test_header_without_end(corrupted: Corrupted) -> None:
    with pytest.raises(FileFormatError, match="within 10,000 lines"):
        read_matrix_market(corrupted((BANNER + "%\n" * 20_000).encode(), "m.mtx"))


def test_enormous_shape_with_few_entries(corrupted: Corrupted) -> None:
    with pytest.raises(FileFormatError, match="2,147,483,647 rows or columns for 1 entries"):
        read_matrix_market(corrupted(f"{BANNER}2147483647 2 1\n1 1 1\n".encode(), "m.mtx"))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_matrix_market(tmp_path / "m.mtx")


def test_rows_are_dense_where_the_file_is(tmp_path: Path) -> None:
    table = np.array([[1, 0, -2.5], [0, 0, 1e-3]], np.float32)
    for suffix in ("", ".gz"):
        text = b"%%MatrixMarket matrix array real general\n% a comment\n\n2 3\n1\n0\n0\r\n0\n-2.5\n1e-3\n"
        path = tmp_path / f"a.mtx{suffix}"
        path.write_bytes(gzip.compress(text) if suffix else text)
        np.testing.assert_array_equal(read_matrix_market_rows(path), table)
    write_matrix_market(tmp_path / "b.mtx", CSR.from_scipy(sp.csr_array(table)))
    found = read_matrix_market_rows(tmp_path / "b.mtx")
    assert isinstance(found, CSR)
    np.testing.assert_array_equal(found.to_scipy().toarray(), table)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("%%MatrixMarket matrix array complex general\n1 1\n1 2\n", 1, "cannot be read; of arrays, only real general"),
        ("%%MatrixMarket matrix array real symmetric\n1 1\n1\n", 1, "of arrays, only real general can"),
        ("%%MatrixMarket matrix array real general\n", 2, "two whole numbers"),
        ("%%MatrixMarket matrix array real general\n%\n1 x\n1\n", 3, "two whole numbers"),
        ("%%MatrixMarket matrix array real general\n1 2\n1\n", 2, "declares 1 x 2 numbers, but holds 1"),
        ("%%MatrixMarket matrix array real general\n1 2\n1\n2\n3\n", 2, "declares 1 x 2 numbers, but holds 3"),
        ("%%MatrixMarket matrix array real general\n1 2\n1\nx\n", 4, "'x' is not a finite"),
        ("%%MatrixMarket matrix array real general\n1 1\n\n", 2, "holds 0"),
        ("%%MatrixMarket matrix coordinate real general\n1 1\n1\n", 2, "three whole numbers"),
    ],
)
def test_arrays_that_are_refused(corrupted: Corrupted, refused_at: Any, text: str, line: int, told: str) -> None:
    refused_at(read_matrix_market_rows, corrupted(text.encode(), "a.mtx"), line, told)


def test_an_array_larger_than_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix array real general\n9999999999 9999999999\n1\n")
    with pytest.raises(ResourceError, match="9,999,999,999 x 9,999,999,999"):
        read_matrix_market_rows(tmp_path / "a.mtx")
