"""Recorded runs of several devices: bits are those of one, and computing is timed by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record_devices
from results_file import read_results

from sparsenn import Session
from sparsenn.backends.cpu import CPUBackend

Record = Callable[..., int]

CASES = ("random", "challenge", "challenge-plain")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Record small cases: on the CPU as one device and as two, or on one GPU."""
    monkeypatch.setattr(
        record_devices, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )

    def run(*cases: str, device: str = "cpu", most: int = 2) -> int:
        sizes = ("--neurons", "1024", "--layers", "4", "--rows", "70", "--plain-layers", "2", "--plain-rows", "31")
        given = ("--devices", device, "--most", str(most), "--runs", "2", "--machine", "lab")
        return record_devices.main([*given, *sizes, "--only", *cases])

    return run


def test_each_case_has_its_times_with_one_device_and_two(record: Record, tmp_path: Path) -> None:
    assert record(*CASES) == 0
    result = read_results(tmp_path / "lab" / "devices-cpu.json")
    assert [(row["case"], row["device_count"]) for row in result.rows] == [
        (case, count) for case in CASES for count in (1, 2)
    ]
    assert [row["rows"] for row in result.rows] == [70, 70, 70, 70, 31, 31]
    for one, two in zip(result.rows[::2], result.rows[1::2], strict=True):
        for part in ("run", "compute", *(("call",) if one["case"] == "random" else ())):
            assert one[f"{part}_speedup"] == 1
            assert two[f"{part}_speedup"] == pytest.approx(one[f"{part}_milliseconds"] / two[f"{part}_milliseconds"])
    assert "2 layers and 31 rows" in " ".join(result.notes)


@pytest.mark.parametrize("categories", [True, False])
def test_a_wrong_answer_of_computing_alone_is_not_recorded(
    record: Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    categories: bool,
) -> None:
    run_rows = Session._run_rows

    def corrupted(self: Session, given: Any, first: int, last: int, *others: Any) -> Any:
        result = run_rows(self, given, first, last, *others)
        if given.count < given.total:  # a device's share of the rows
            if categories:
                return replace(result, categories=result.categories[1:])
            result.batches[0].on_host().features[-1, -1] = np.nan
        return result

    monkeypatch.setattr(Session, "_run_rows", corrupted)
    assert record("challenge") == 1
    assert "challenge: the bits differ from those of one device" in capsys.readouterr().err
    assert not (tmp_path / "lab" / "devices-cpu.json").exists()


def test_outputs_of_rows_on_gpus_are_compared_before_they_are_timed(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = list[int]()

    def called(shares: Any, right: Any, options: Any, add: float = 0.0) -> float:
        calls.append(len(shares))
        return time_calls([(session, share + add) for session, share in shares], right, options)

    time_calls = record_devices._calls
    monkeypatch.setattr(CPUBackend, "in_host_memory", False)
    monkeypatch.setattr(record_devices, "_on_device", lambda session, rows, first, last: rows[first:last])
    monkeypatch.setattr(record_devices, "_calls", called)
    assert record("random") == 0
    assert calls == [1, 2]
    monkeypatch.setattr(record_devices, "_calls", partial(called, add=1.0))
    (tmp_path / "lab" / "devices-cpu.json").unlink()
    assert record("random") == 1
    assert "random: the bits differ from those of one device" in capsys.readouterr().err
    assert not (tmp_path / "lab" / "devices-cpu.json").exists()


@pytest.mark.gpu
@pytest.mark.alone
def test_rows_of_all_cases_are_placed_on_a_gpu(record: Record, tmp_path: Path) -> None:
    assert record(*CASES, device="cuda", most=1) == 0
    rows = read_results(tmp_path / "lab" / "devices.json").rows
    assert [row["case"] for row in rows] == list(CASES)
    assert all(row["compute_milliseconds"] > 0 for row in rows)
