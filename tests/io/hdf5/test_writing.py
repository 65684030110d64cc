"""Writing HDF5 when the disk is full, or under interrupts: one error, wherever in the file it strikes."""

from __future__ import annotations

import errno
import gc
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from children import interrupts_obeyed

from sparsenn.io import write_model
from sparsenn.io.hdf5 import writing
from sparsenn.io.hdf5.writing import created
from sparsenn.layers import Linear
from sparsenn.model import Model
from sparsenn.network import Network

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


CALLBACKS = ("write", "seek", "truncate", "readinto", "tell")
"""What the HDF5 library calls of a file."""


@pytest.mark.parametrize("callback", CALLBACKS)
def test_an_interrupt_in_any_call_of_the_library_is_that_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], callback: str
) -> None:
    calls = chosen = 0
    real = getattr(writing._Target, callback)

    def interrupting(self: object, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == chosen:
            signal.raise_signal(signal.SIGINT)
        return real(self, *arguments)

    monkeypatch.setattr(writing._Target, callback, interrupting)
    model = Model(Network((Linear(np.ones((30, 20))), Linear(np.ones((20, 3))))), "mse", False)
    write_model(tmp_path / "a.h5", model)
    with interrupts_obeyed():
        for number in range(1, calls + 1):
            calls, chosen = 0, number
            monkeypatch.setattr(writing._Target, callback, interrupting)  # Python forgets what the class has
            with pytest.raises(KeyboardInterrupt):
                write_model(tmp_path / "b.h5", model)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_after_an_interrupt_nothing_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.touch()

    def interrupted() -> None:
        with created(path) as file:
            signal.raise_signal(signal.SIGINT)
            file["large"] = np.arange(1_000_000)

    with interrupts_obeyed(), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.stat().st_blocks * 512 < 1_000_000


def test_other_threads_hold_nothing_back(tmp_path: Path) -> None:
    thread = threading.Thread(target=write, args=(tmp_path / "a.h5",))
    thread.start()
    thread.join()
    with h5py.File(tmp_path / "a.h5") as file:
        assert "group" in file
