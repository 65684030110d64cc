"""What a run may write and remove, and what it is known by: the files of others stay, and no output is of two runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparsenn import Linear, Network
from sparsenn.distributed import stream, streaming
from sparsenn.errors import UsageError
from sparsenn.formats.scaling import Scaling
from sparsenn.layers import Identity


@pytest.fixture
def network() -> Network:
    return Network((Linear(np.eye(3, 2, dtype=np.float32), activation=Identity()),))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.arange(900, dtype=np.float32).reshape(300, 3))
    return tmp_path / "rows.npy"


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(streaming, "LEAST_ROWS", 50)
    return tmp_path / "found.npy"


class CutError(Exception):
    """Ends a run."""


def cut(task: str, done: int, total: int) -> None:
    """End a run when its first piece is done."""
    if done:
        raise CutError


def begin(network: Network, rows: Path, output: Path, **options: Any) -> None:
    with pytest.raises(CutError):
        stream(network, rows, output, progress=cut, **options, device="cpu")
    assert output.with_name("found.npy.pieces").is_dir()


# ---- What is done to rows first --------------------------------------------------------------------------------------


def scaling(factor: float = 1, mean: float = 0, deviation: float = 1) -> Callable[[Any], Any]:
    return Scaling(np.array([factor]), np.array([mean]), np.array([deviation])).apply


@pytest.mark.parametrize("other", [None, scaling(2.0), scaling(3.0, 1.0), scaling(3.0, 0.0, 2.0)])
def test_a_run_with_another_scaling_is_not_resumed(network: Network, rows: Path, output: Path, other: Any) -> None:
    begin(network, rows, output, prepare=scaling(3.0))
    with pytest.raises(UsageError, match=r"belongs to a run of another network.* or with another scaling"):
        stream(network, rows, output, prepare=other, resume=True, device="cpu")
    stream(network, rows, output, prepare=scaling(3.0), resume=True, device="cpu")
    assert np.array_equal(np.load(output), 3 * np.load(rows)[:, :2])


def double(rows: Any) -> Any:
    return 2 * rows


@pytest.mark.parametrize("earlier", [None, double, scaling(2.0)])
def test_functions_are_not_resumed_with(network: Network, rows: Path, output: Path, earlier: Any) -> None:
    begin(network, rows, output, prepare=earlier)
    with pytest.raises(UsageError, match="cannot resume with a function as prepare"):
        stream(network, rows, output, prepare=double, resume=True, device="cpu")


# ---- Files of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["thesis.txt"], ["run.jsonl", "sub/more"], ["output.npy"]])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_no_run_made_is_refused(
    network: Network, rows: Path, output: Path, names: list[str], resume: bool
) -> None:
    places = [output.with_name("found.npy.pieces") / name for name in names]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("mine")
    with pytest.raises(UsageError, match=r"found\.npy\.pieces holds \S+, which no run wrote"):
        stream(network, rows, output, resume=resume, device="cpu")
    assert [place.read_text() for place in places] == ["mine"] * len(places)


# ---- The input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", ["itself", "link", "hard link", "spelling"])
def test_rows_are_not_written_over(network: Network, rows: Path, tmp_path: Path, lead: str) -> None:
    before, output = rows.read_bytes(), tmp_path / "again.npy"
    if lead == "link":
        output.symlink_to(rows)
    elif lead == "hard link":
        os.link(rows, output)
    else:
        output = rows if lead == "itself" else tmp_path / "none" / ".." / "rows.npy"
    with pytest.raises(UsageError, match=r"would overwrite \S+rows\.npy, which is read"):
        stream(network, rows, output, device="cpu")
    assert rows.read_bytes() == before
    assert not list(tmp_path.glob("*.pieces"))


def test_a_file_that_holds_the_rows_is_not_written_over(network: Network, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["inputs"] = np.ones((5, 3), np.float32)
    with pytest.raises(UsageError, match=r"would overwrite \S+rows\.h5"):
        stream(network, tmp_path / "rows.h5", tmp_path / "rows.h5", device="cpu")


# ---- Outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npy", ".h5", ".tsv"])
@pytest.mark.parametrize("kind", [".npy", ".h5", ".parquet"])
@pytest.mark.parametrize("resume", [False, True])
def test_no_rows(network: Network, tmp_path: Path, kind: str, suffix: str, resume: bool) -> None:
    rows, output = tmp_path / f"rows{kind}", tmp_path / f"found{suffix}"
    none = np.zeros((0, 3), np.float32)
    if kind == ".npy":
        np.save(rows, none)
    elif kind == ".h5":
        with h5py.File(rows, "w") as file:
            file["inputs"] = none
    else:
        parquet.write_table(pa.table(dict.fromkeys("abc", none[:, 0])), rows)
    found = stream(network, rows, output, resume=resume, device="cpu")
    assert (found.inputs, found.categories.size) == (0, 0)
    if suffix == ".npy":
        assert np.load(output).shape == (0, 2)
    elif suffix == ".h5":
        with h5py.File(output) as file:
            assert file["outputs"].shape == (0, 2)
            assert file["outputs"].dtype == np.float32
    else:
        assert output.read_text() == ""
    assert not list(tmp_path.glob("*.pieces"))
