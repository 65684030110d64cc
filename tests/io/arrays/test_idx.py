from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from file_comparisons import Corrupted
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from idx_files import write_idx

from sparsenn.errors import FileFormatError
from sparsenn.io.arrays.idx import read_idx

TYPES = ["u1", "i1", "<i2", ">i2", "<i4", ">i4", "<f4", ">f4", "<f8", ">f8"]
SMALL = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])


@given(
    st.sampled_from(TYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    ),
    st.sampled_from(["a.idx", "a.idx.gz"]),
)
def test_round_trip(tmp_path_factory, array: np.ndarray, name: str) -> None:
    path = tmp_path_factory.mktemp("idx") / name
    write_idx(path, array)
    found = read_idx(path)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_bytes_of_the_format(tmp_path: Path) -> None:
    write_idx(tmp_path / "a", np.arange(1, 7, dtype=np.uint8).reshape(2, 3))
    assert (tmp_path / "a").read_bytes() == SMALL


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not IDX: begins with nothing"),
        (b"\x89HDF", "not IDX: begins with 89 48 44 46"),
        (SMALL[:3], "not IDX"),
        (bytes([0, 0, 10, 1, 0, 0, 0, 0]), "not IDX"),
        (bytes([0, 0, 8, 0]), "not IDX"),
        (SMALL[:9], "ends before the last of its 2 lengths"),
        (SMALL[:-1], r"ends before that|holds 5 bytes of the 6 that uint8 of shape \(2, 3\) take"),
        (SMALL + b"x", "more than the 18 bytes"),
    ],
)
def test_faulty_files(corrupted: Corrupted, data: bytes, message: str, compressed: bool) -> None:
    path = corrupted(gzip.compress(data) if compressed else data, "a.gz" if compressed else "a")
    with pytest.raises(FileFormatError, match=message):
        read_idx(path)


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_huge_declared_shape_is_refused_before_allocating(corrupted: Corrupted, name: str) -> None:
    data = bytes([0, 0, 14, 4]) + struct.pack(">4I", *[2**32 - 1] * 4) + b"data"
    with pytest.raises(FileFormatError, match="bytes, but ends before that"):
        read_idx(corrupted(gzip.compress(data) if name.endswith("gz") else data, name))


def test_mnist(mnist_folder: Path) -> None:
    images = read_idx(mnist_folder / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(mnist_folder / "t10k-labels-idx1-ubyte.gz")
    assert (images.dtype, images.shape, labels.shape) == (np.uint8, (10_000, 28, 28), (10_000,))
    assert labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert images.max() == 255
