"""Tables of whole commands, of files, of trainings, and of what a profiler sees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_commands
import table_training
from idx_files import write_idx
from recordings import Recorder

from sparsenn.datasets import generate
from sparsenn.io import write_dataset

# ---- Whole commands ---------------------------------------------------------------------------------------------

PHASES = {"read": 1.0, "plan": 0.5, "prepare": 0.25, "transfer": 0.125, "compile": 2.0, "compute": 4.0}


def canned(wall: float) -> dict[str, Any]:
    seconds = {**PHASES, "total": sum(PHASES.values())}
    plan = {"kernel": "panel", "steps": [{"first": 1, "last": 2, "kernel": "panel"}], "streams": False}
    problem = {"neurons": 1024, "layers": 2, "inputs": 20}
    return {"wall": wall, "seconds": seconds, "plan": plan, "verified": True, "device": "cpu", **problem}


@pytest.mark.parametrize(("device", "variable"), [("cpu", "NUMBA_CACHE_DIR"), ("cuda", "CUPY_CACHE_DIR")])
def test_caches_are_new_for_each_first_run_and_full_for_the_others(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, device: str, variable: str
) -> None:
    path = tmp_path / "problem.h5"
    path.write_bytes(b"problem")
    folders: list[str] = []
    walls = iter([20.0, 40.0, 10.0, 11.0, 12.0, 13.0, 14.0])

    def infer(dataset: Path, on: str, environment: Mapping[str, str]) -> dict[str, Any]:
        assert (dataset, on, list(environment)) == (path, device, [variable])
        if environment[variable] not in folders:
            assert list(Path(environment[variable]).iterdir()) == []
        folders.append(environment[variable])
        return canned(next(walls))

    monkeypatch.setattr(table_commands, "infer", infer)
    found = recorder("end-to-end", str(path), "--device", device, "--first-runs", "2", "--runs", "5")
    assert (len(folders), folders[0] != folders[1], set(folders[2:])) == (7, True, {folders[1]})
    assert not any(Path(folder).exists() for folder in folders)
    first, again = found.rows
    assert (first["wall"], first["spread"], first["runs"]) == (30.0, None, 2)
    assert (again["wall"], again["spread"], again["runs"]) == (12.0, 3.0, 5)
    assert {phase: again[phase] for phase in PHASES} == PHASES
    assert again["rest"] == 12.0 - sum(PHASES.values())


@pytest.mark.slow
def test_a_run_is_a_process_of_its_own_with_its_phases(tmp_path: Path) -> None:
    path = tmp_path / "problem.h5"
    write_dataset(generate(1024, 2, inputs="digits", images=20), path)
    found = table_commands.infer(path, "cpu", {})
    assert set(found["seconds"]) == {*table_commands.PHASES, "total"}
    assert 0 < found["seconds"]["total"] < found["wall"]
    assert (found["inputs"], found["verified"]) == (20, True)
    with pytest.raises(RuntimeError, match=r"sparsenn infer .* ended with 2"):
        table_commands.infer(tmp_path / "missing.h5", "cpu", {})


# ---- Trainings --------------------------------------------------------------------------------------------------


def test_every_trainer_has_its_row(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_training, "HIDDEN", (20, 20))
    monkeypatch.setitem(table_training.ABALONE, "hidden", (20, 20))
    monkeypatch.setattr(table_training, "has_gpu", lambda: False)
    rng = np.random.default_rng(6)
    for name in ("train", "test"):
        inputs = rng.random((200, 10)).astype(np.float32)
        lines = (f"{' '.join(map(str, row))}\n{row.mean()}" for row in inputs)
        (tmp_path / f"abalone.{name}").write_text("\n".join(["200 10 1", *lines, ""]))
    for name in ("train", "t10k"):
        labels = rng.integers(0, 10, 100).astype(np.uint8)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", labels)
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", np.repeat(25 * labels, 16).reshape(100, 4, 4))
    folder = str(tmp_path)
    found = recorder("training", "--abalone", folder, "--abalone-epochs", "3", "--mnist", folder, "--mnist-epochs", "2")
    assert not found.failures
    own = {row["method"]: row for row in found.rows if row["method"].startswith("sparsenn")}
    assert list(own) == ["sparsenn, numpy (cpu)", "sparsenn, numba (cpu)"]
    for row in found.rows:
        assert len(row["losses"]) == len(row["seconds"]) == row["epochs"] == (2 if "MNIST" in row["problem"] else 3)
        assert row["losses"][-1] < row["losses"][0] or "FANN" in row["method"]
        assert (row["accuracy"] is None) == ("MNIST" not in row["problem"])
    others = {row["method"] for row in found.rows} - set(own)
    missing = [note for note in found.result.notes if "left out" in note]  # type: ignore[union-attr]
    assert len(others) + len(missing) == 2  # scikit-learn and FANN: measured, or said to be missing
    assert recorder("training").result is not None  # of the run before: nothing to record leaves it
