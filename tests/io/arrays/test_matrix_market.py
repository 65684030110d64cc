from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from file_comparisons import Corrupted, same_matrix
from hypothesis import given
from strategies import coo_matrices

from sparsenn.errors import FileFormatError
from sparsenn.formats import COO, CSR, coo_to_csc, coo_to_csr
from sparsenn.io.arrays.matrix_market import read_matrix_market, read_matrix_market_rows, write_matrix_market

BANNER = "%%MatrixMarket matrix coordinate real general\n"


def dense(path: Path) -> np.ndarray:
    return read_matrix_market(path).validate().to_scipy().toarray()


@given(coo_matrices())
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_round_trip(tmp_path_factory, name: str, matrix: COO) -> None:
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
    header = "%%MatrixMarket Matrix Coordinate REAL General\r\n% note\r\n%\r\n\r\n 2\t3  2 \r\n"
    text = header + "\r\n 1 3\t2.5 \r\n2 1 -1\r\n"
    np.testing.assert_array_equal(dense(corrupted(text.encode(), "m.mtx")), [[0, 0, 2.5], [-1, 0, 0]])


def test_patterns_have_ones(corrupted: Corrupted) -> None:
    matrix = read_matrix_market(corrupted(f"{BANNER.replace('real', 'pattern')}2 2 2\n1 2\n2 2\n".encode(), "m.mtx"))
    assert matrix.values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", ":1", "not Matrix Market"),
        (BANNER.replace("coordinate", "array") + "1 1\n1\n", ":1", "only coordinates"),
        (BANNER.replace("real", "complex") + "1 1 1\n1 1 1 1\n", ":1", "complex numbers cannot be read"),
        (BANNER + "2 2 2\n1 1 1\n", "", "Truncated"),
        (BANNER + "2 2 1\n1 1 1\n2 2 2\n", ":4", "Too many lines"),
        (BANNER + "2 2 1\n0 1 1\n", ":3", "Row index out of bounds"),
        (BANNER + "2 2 1\n1 1 x\n", ":3", "nvalid floating-point"),
        (BANNER + "2 2 1\n1 1 nan\n", "", "not finite in float32"),
        (BANNER + "2 2 3\n1 1 1\n\n1 2 1\n1 1 2\n", "", "row 1, column 1 occurs twice"),
        (BANNER.replace("general", "symmetric") + "2 2 2\n2 1 1\n1 2 1\n", "", "row 1, column 2 occurs twice"),
        (BANNER.replace("general", "symmetric") + "2 3 1\n2 1 1\n", "", "a symmetric matrix is square"),
    ],
)
@pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
def test_faulty_files(corrupted: Corrupted, name: str, text: str, place: str, message: str) -> None:
    data = text.encode("latin-1")
    path = corrupted(gzip.compress(data) if name.endswith("gz") else data, name)
    with pytest.raises(FileFormatError, match=rf"^{re.escape(str(path))}{place}: .*{message}"):
        read_matrix_market(path)


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
    "text",
    [
        "complex general\n1 1\n1 2\n",
        "real general\n",
        "real general\n%\n1 x\n1\n",
        "real general\n1 2\n1\n",
        "real general\n1 2\n1\n2\n3\n",
        "real general\n1 2\n1\nx\n",
        "real general\n1 2\n1\ninf\n",
        "real general\n0 2\n1\n",
        "real general\n1 3\n1\n2\n\x1a",
        "real general\n1 2\n1\n2\0\n",
    ],
)
def test_arrays_that_are_refused(corrupted: Corrupted, text: str) -> None:
    with pytest.raises(FileFormatError, match=r"a\.mtx"):
        read_matrix_market_rows(corrupted(f"%%MatrixMarket matrix array {text}".encode(), "a.mtx"))
