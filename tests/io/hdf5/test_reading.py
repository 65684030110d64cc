"""Files made to do harm, or by somebody else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sparsenn.errors import FileFormatError, InputError, ResourceError
from sparsenn.io import Dataset
from sparsenn.io.hdf5.dataset import read_dataset, write_dataset
from sparsenn.io.hdf5.reading import opened


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


def linked_group(file: h5py.File) -> None:
    file.move("network", "elsewhere")
    file["network"] = h5py.SoftLink("/elsewhere")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (82,), np.uint16, external=[("other.h5", 0, 164)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((82,), np.uint16)
    layout[:] = h5py.VirtualSource("other.h5", "secret", (82,))
    file.create_virtual_dataset("network/indices16", layout)


def chunked(file: h5py.File) -> None:
    file.create_dataset("network/indices16", data=np.zeros(82, np.uint16), chunks=(82,))


def compressed(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (1 << 40,), np.uint16, compression="gzip")


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((82,))
    h5py.h5d.create(file["network"].id, b"indices16", h5py.h5t.NATIVE_UINT16, space, properties)


def never_written(file: h5py.File) -> None:
    file.create_dataset("network/indices16", (1 << 40,), np.uint16)


def huge_values(file: h5py.File) -> None:
    never_written(file)
    del file["inputs/indptr"]
    file.create_dataset("inputs/indptr", (1 << 50,), np.int64)


def group(file: h5py.File) -> None:
    file.create_group("network/indices16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external_link, "network/indices16: indices16 is an ExternalLink; links are not followed"),
        (soft_link, "network/indices16: indices16 is a SoftLink; links are not followed"),
        (linked_group, "network/layers: network is a SoftLink; links are not followed"),
        (external_storage, "stored outside the file; only contiguous data is read"),
        (virtual, "network/indices16 is chunked, compressed, virtual"),
        (chunked, "network/indices16 is chunked"),
        (compressed, "network/indices16 is chunked, compressed, .*: h5repack -f NONE -l CONTI OLD NEW"),
        (compact, "only contiguous data is read"),
        (never_written, "declares 2,199,023,255,552 bytes, which are not in the file"),
        (huge_values, "bytes, which are not in the file"),
        (group, "network/indices16 is missing"),
    ],
)
def test_hostile_files(path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    with h5py.File(path, "r+") as file:
        del file["network/indices16"]
        change(file)
    with pytest.raises(FileFormatError, match=message):
        read_dataset(path)


def test_size_in_the_file_but_beyond_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.h5"
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((1 << 41,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U16LE, space, properties)
    with (
        opened(path) as source,
        pytest.raises(ResourceError, match=r"big\.h5: x needs 4,398\.0 GB of memory; .* are available; close"),
    ):
        source.vector("x", "<u2")


@pytest.mark.parametrize(
    "value",
    ["text", np.arange(3), h5py.Empty("i8"), 1.5, np.array([b"a", b"b"])],
    ids=["variable length", "vector", "empty", "float", "vector of strings"],
)
def test_attributes_of_other_kinds_are_as_if_absent(tmp_path: Path, value: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["a"] = value
    with opened(tmp_path / "a.h5") as source:
        assert source.attribute("a") is None
        assert source.attribute("b") is None


def test_parts_of_a_sound_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["s"], file.attrs["n"] = np.bytes_(b"text"), 5
        file["g/v"], file["g/none"], file["t"] = np.arange(4), np.arange(0), np.bytes_("é".encode())
    with opened(tmp_path / "a.h5") as source:
        assert (source.attribute("s"), source.attribute("n")) == ("text", 5)
        assert (source.has("g/v"), source.has("g"), source.has("g/x"), source.has("g/v/x")) == (
            True,
            True,
            False,
            False,
        )
        assert source.length("g/v") == 4
        assert source.text("t") == "é"
        assert source.vector("g/v", "<i8").tolist() == [0, 1, 2, 3]
        assert source.vector("g/v", "<i8", count=2, length=4).tolist() == [0, 1]
        assert source.vector("g/none", "<i8").tolist() == []
        with pytest.raises(FileFormatError, match="g/v has 4 elements; 5 are needed"):
            source.vector("g/v", "<i8", count=5)
        with pytest.raises(FileFormatError, match="g/v has 4 elements; 3 are needed"):
            source.vector("g/v", "<i8", count=2, length=3)


@pytest.mark.parametrize("data", [b"", b"1\t1\t1\n", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04" * 1000])
def test_foreign_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"a\.h5: not HDF5, or damaged"):
        read_dataset(tmp_path / "a.h5")


def test_hdf5_of_another_program(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["weights"] = np.ones((3, 3))
    with pytest.raises(FileFormatError, match="not a sparsenn dataset"):
        read_dataset(tmp_path / "a.h5")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_dataset(tmp_path / "a.h5")
    with pytest.raises(InputError, match="is a folder"):
        read_dataset(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    with pytest.raises(InputError, match="device or a pipe"):
        read_dataset(tmp_path / "a.h5")
