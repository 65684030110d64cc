"""NumPy's files: what is read, and what is refused before memory is taken for it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import coo_array, csc_array, csr_array, save_npz

from sparsenn.errors import FileFormatError, InputError
from sparsenn.io.arrays.npy import read_npy, read_npz, sparse_rows

TYPES = (
    hnp.boolean_dtypes() | hnp.integer_dtypes(endianness="?") | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(hnp.arrays(TYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)), st.booleans())
def test_any_array(tmp_path: Path, array: np.ndarray, by_columns: bool) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(array) if by_columns else array)
    np.savez_compressed(tmp_path / "a.npz", some=array)
    for found in (read_npy(tmp_path / "a.npy"), read_npz(tmp_path / "a.npz")["some"]):
        assert found.dtype.isnative
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)


def test_only_named_arrays_of_several_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.ones(3), note=np.array("words"))
    assert list(read_npz(tmp_path / "a.npz", ("inputs",))) == ["inputs"]


@pytest.mark.parametrize("kind", [csr_array, csc_array, coo_array])
@pytest.mark.parametrize("compressed", [False, True])
def test_sparse_matrices(tmp_path: Path, kind: type, compressed: bool) -> None:
    dense = np.array([[0, 1.5, 0], [0, 0, 0], [-2, 0, 3]], np.float32)
    save_npz(tmp_path / "m.npz", kind(dense), compressed)
    found = sparse_rows(tmp_path / "m.npz", read_npz(tmp_path / "m.npz"))
    np.testing.assert_array_equal(found.to_scipy().toarray(), dense)


def saved(path: Path, **changes: object) -> Path:
    """A sparse matrix with some of its arrays replaced, or left out where None."""
    matrix = csr_array(np.array([[0, 1.5, 0], [0, 0, 0], [-2, 0, 3]], np.float32))
    arrays = {"format": np.array("csr"), "shape": np.array(matrix.shape)}
    arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    arrays |= {name: np.asarray(value) for name, value in changes.items()}
    np.savez(path, **{name: array for name, array in arrays.items() if changes.get(name, 0) is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "dia"}, "format 'dia'; known: csr, csc, coo"),
        ({"indptr": None}, "without 'indptr'"),
        ({"shape": [3, 2]}, "is invalid"),
        ({"indices": [1, 0, 9]}, "is invalid"),
        ({"indptr": [0, 2, 1, 3]}, "is invalid"),
        ({"indices": [1, 0]}, "is invalid"),
    ],
    ids=str,
)
def test_unsound_matrices(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    path = saved(tmp_path / "m.npz", **changes)
    with pytest.raises(FileFormatError, match=told):
        sparse_rows(path, read_npz(path))


def header_of(shape: tuple[int, ...]) -> bytes:
    """The beginning of a file of so many float32."""
    target = io.BytesIO()
    np.lib.format.write_array_header_1_0(target, {"shape": shape, "fortran_order": False, "descr": "<f4"})
    return target.getvalue()


@pytest.mark.parametrize("shape", [(1 << 60,), (10,), (1 << 40, 1 << 40)])
def test_declared_sizes_are_checked_first(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a.npy").write_bytes(header_of(shape) + bytes(36))
    with pytest.raises(FileFormatError, match="not in the file"):
        read_npy(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", header_of(shape) + bytes(36))
    with pytest.raises(FileFormatError, match="or damaged"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '\0'   ",
        b"\x93NUMPY\x01\x00\x40\x00{'descr': ',f4', 'fortran_order': False, 'shape': (1,), }\n",
        b"\x93NUMPY\x01\x00\xe8\x03" + b"[" * 1000,
    ],
    ids=["2 GB", "a zero byte", "a comma as type", "deep"],
)
def test_headers_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(FileFormatError, match="not NumPy's, or damaged"):
        read_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("read", [read_npy, read_npz])
def test_no_file(tmp_path: Path, read: object) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)
