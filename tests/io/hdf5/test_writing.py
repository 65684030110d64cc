"""Writing HDF5 when the disk is full, or under interrupts: one error, wherever in the file it strikes."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from children import interrupts_obeyed

from sparsenn.io.hdf5.writing import created


def test_an_error_of_the_writer_comes_through(tmp_path: Path) -> None:
    def interrupted(path: Path) -> None:
        with created(path) as file:
            file["x"] = [1]
            raise KeyboardInterrupt

    (tmp_path / "a.h5").touch()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "a.h5")


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
