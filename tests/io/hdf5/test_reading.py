"""Files made to do harm, or by somebody else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from sparsenn.errors import FileFormatError
from sparsenn.io import Dataset
from sparsenn.io.hdf5.dataset import read_dataset, write_dataset


@pytest.fixture
def path(tmp_path: Path, mixed: Dataset) -> Path:
    write_dataset(mixed, tmp_path / "mixed.h5")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.zeros(82, np.uint16)
    return tmp_path / "mixed.h5"


def external_link(file: h5py.File) -> None:
    file["network/indices16"] = h5py.ExternalLink("other.h5", "/secret")


def soft_link(file: h5py.File) -> None:
    file["copy"] = np.zeros(82, np.uint16)
    file["network/indices16"] = h5py.SoftLink("/copy")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (82,), np.uint16, external=[("other.h5", 0, 164)])


def compressed(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (1 << 40,), np.uint16, compression="gzip")


def never_written(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (1 << 40,), np.uint16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external_link, "network/indices16: indices16 is an ExternalLink; links are not followed"),
        (soft_link, "network/indices16: indices16 is a SoftLink; links are not followed"),
        (external_storage, "stored outside the file; only contiguous data is read"),
        (compressed, "network/indices16 is chunked, compressed, .*: h5repack -f NONE -l CONTI OLD NEW"),
        (never_written, "declares 2,199,023,255,552 bytes, which are not in the file"),
    ],
)
def test_hostile_files(path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    with h5py.File(path, "r+") as file:
        del file["network/indices16"]
        change(file)
    with pytest.raises(FileFormatError, match=message):
        read_dataset(path)


@pytest.mark.parametrize("data", [b"", b"1\t1\t1\n", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04" * 1000])
def test_foreign_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"a\.h5: not HDF5, or damaged"):
        read_dataset(tmp_path / "a.h5")
