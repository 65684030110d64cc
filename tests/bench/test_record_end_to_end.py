"""Recorded times of whole commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import record_end_to_end
from results_file import read_results

from sparsenn.datasets import generate
from sparsenn.io import write_dataset

PARTS = {"read": 1.0, "plan": 0.5, "prepare": 0.25, "transfer": 0.125, "compile": 2.0, "compute": 4.0}


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "problem.h5"
    write_dataset(generate(1024, 2, inputs="digits", images=20), path)
    return path


def canned(wall: float) -> dict[str, Any]:
    seconds = {**PARTS, "total": sum(PARTS.values())}
    plan = {"kernel": "panel", "steps": [{"first": 1, "last": 2, "kernel": "panel"}], "streams": False}
    problem = {"neurons": 1024, "layers": 2, "inputs": 20}
    return {"wall": wall, "seconds": seconds, "plan": plan, "verified": True, "device": "cpu", **problem}


@pytest.mark.parametrize(("device", "variable"), [("cpu", "NUMBA_CACHE_DIR"), ("cuda", "CUPY_CACHE_DIR")])
def test_caches_are_new_for_each_first_run_and_kept_for_the_others(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, variable: str
) -> None:
    folders: list[str] = []
    walls = iter([20.0, 40.0, 10.0, 11.0, 12.0, 13.0, 14.0])

    def run(dataset: Path, on: str, environment: Mapping[str, str]) -> dict[str, Any]:
        assert (dataset, on, list(environment)) == (problem, device, [variable])
        assert Path(environment[variable]).is_dir()
        if environment[variable] not in folders:
            assert list(Path(environment[variable]).iterdir()) == []
        folders.append(environment[variable])
        return canned(next(walls))

    monkeypatch.setattr(record_end_to_end, "run", run)
    monkeypatch.setattr(
        record_end_to_end, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    options = ["--device", device, "--first-runs", "2", "--runs", "5", "--machine", "lab"]
    assert record_end_to_end.main([str(problem), *options]) == 0
    assert len(folders) == 7
    assert folders[0] != folders[1]
    assert set(folders[2:]) == {folders[1]}
    assert not any(Path(folder).exists() for folder in folders)
    result = read_results(tmp_path / "lab" / "end-to-end.json")
    first, again = result.rows
    assert (first["wall"], first["spread"], first["runs"]) == (30.0, None, 2)
    assert (again["wall"], again["spread"], again["runs"]) == (12.0, 3.0, 5)
    assert {part: again[part] for part in PARTS} == PARTS
    assert again["rest"] == 12.0 - sum(PARTS.values())
    assert result.cells()[0][:2] == ["1024 × 2, 20 inputs", "compiled in the run"]


@pytest.mark.slow
def test_a_run_is_a_process_of_its_own_and_tells_its_parts(problem: Path) -> None:
    found = record_end_to_end.run(problem, "cpu", {})
    assert set(found["seconds"]) == {*record_end_to_end.PARTS, "total"}
    assert 0 < found["seconds"]["total"] < found["wall"]
    assert (found["inputs"], found["verified"]) == (20, True)


@pytest.mark.slow
def test_a_run_that_fails_ends_the_recording(tmp_path: Path) -> None:
    (tmp_path / "broken.h5").write_text("no HDF5")
    with pytest.raises(SystemExit, match=r"sparsenn infer .*broken\.h5 .* ended with 2: error: "):
        record_end_to_end.run(tmp_path / "broken.h5", "cpu", {})
