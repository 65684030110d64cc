"""Writing HDF5 when the disk is full: one error, wherever in the file it strikes."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from sparsenn.io.hdf5_target import created

ROOMY = 1 << 30


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write(path: Path) -> None:
    path.touch()
    with created(path) as file:
        file.attrs["format"] = np.bytes_("test")
        group = file.create_group("group")
        group["large"] = np.arange(100_000)
        for number in range(20):
            file.create_group(f"group{number}")["small"] = np.arange(number)


def test_what_is_written_is_plain_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with file_limit(ROOMY):
        write(path)
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"test"
        assert np.array_equal(file["group/large"][:], np.arange(100_000))
        assert [file[f"group{number}/small"].size for number in range(20)] == list(range(20))


@pytest.mark.parametrize("size", [0, 10, 100, 1_000, 3_000, 10_000, 400_000, 810_000])
def test_a_file_that_cannot_grow_is_one_error(tmp_path: Path, size: int) -> None:
    with file_limit(size), pytest.raises(OSError) as caught:  # noqa: PT011
        write(tmp_path / "a.h5")
    assert caught.value.errno == errno.EFBIG


def test_an_error_of_the_writer_comes_through(tmp_path: Path) -> None:
    def interrupted(path: Path) -> None:
        with created(path) as file:
            file["x"] = [1]
            raise KeyboardInterrupt

    (tmp_path / "a.h5").touch()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.h5")
