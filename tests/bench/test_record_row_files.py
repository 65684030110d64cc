"""Rows of a file, recorded: constants of the model that foretells them, and what it makes of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record_row_files
from record_row_files import Constants
from results_file import read_results

CONSTANTS = Constants(0.5, 0.25, 1.0, 50.0, reading=2e6, computing=1e6, gathering=8e6, latency_milliseconds=3.0)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Record a small file of rows."""
    monkeypatch.setattr(record_row_files, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")

    def run(device: str = "cpu") -> int:
        sizes = ("--rows", "9000", "--memory-limit", "0.2", "--runs", "2", "--folder", str(tmp_path))
        return record_row_files.main(["--devices", device, "--most", "1", *sizes])

    return run


def test_devices_share_computing_and_pieces_and_nothing_else() -> None:
    once = 0.5 + 0.25 + 1 / 50
    assert CONSTANTS.expected_seconds(6_000_000, 8, 1) == pytest.approx(once + 6 + 8 * 0.003)
    assert CONSTANTS.expected_seconds(6_000_000, 8, 4) == pytest.approx(once + 3 + 2 * 0.003)
    slow = replace(CONSTANTS, upload=None, gathering=1e5)
    assert slow.expected_seconds(6_000_000, 9, 4) == pytest.approx(0.75 + 60 + 3 * 0.003)


def test_a_run_is_recorded_beside_what_is_expected(record: Callable[..., int], tmp_path: Path) -> None:
    assert record() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row-files-cpu.json", "scaling-cpu.json"]
    rows = read_results(tmp_path / "scaling-cpu.json").rows
    assert [row.pop("place") for row in rows] == ["disk", "memory"]
    for row in rows:
        constants = Constants(**{name: row[name] for name in Constants.__annotations__})
        assert row["expected_seconds"] == constants.expected_seconds(9000, row["pieces"], 1)
        assert row["pieces"] >= 2
        assert row["upload"] is row["prepared_gigabytes"] is None
        assert all(value > 0 for value in row.values() if value is not None)


def test_the_file_is_dropped_before_whatever_reads_it_from_disk(
    record: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def told(name: str) -> Callable[..., Any]:
        real = getattr(record_row_files, name)
        return lambda *given, **options: (done.append(name), real(*given, **options))[1]

    for name in ("_drop", "_measured", "stream"):
        monkeypatch.setattr(record_row_files, name, told(name))
    assert record() == 0
    disk = done[: done.index("_measured", 1)]
    assert list(itertools.pairwise(disk)).count(("_drop", "stream")) == 3  # two runs, and one before them
    assert done.count("_drop") == disk.count("_drop")


def test_a_wrong_answer_is_not_recorded(
    record: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*given: Any, **options: Any) -> Any:
        result = stream(*given, **options)
        return replace(result, categories=np.append(result.categories, 8999))

    stream = record_row_files.stream
    monkeypatch.setattr(record_row_files, "stream", wrong)
    assert record() == 1
    assert "rows of a file: the categories differ" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.gpu
@pytest.mark.alone
def test_copies_to_a_gpu_are_timed(record: Callable[..., int], tmp_path: Path) -> None:
    assert record("cuda") == 0
    for row in read_results(tmp_path / "scaling.json").rows:
        assert row["upload"] > 0 < row["prepared_gigabytes"]
