"""Tables of several devices and of files of rows: bits are those of one device, and constants foretell a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_devices
import table_row_files
from recordings import Recorded, Recorder
from results_file import read_results
from table_row_files import Constants

from sparsenn import Session
from sparsenn.backends.cpu import CPUBackend

CASES = ("random", "challenge")


@pytest.fixture
def devices(recorder: Recorder) -> Callable[..., Recorded]:
    """Record small cases: on the CPU as one device and as two, or on one GPU."""

    def run(*cases: str, device: str = "cpu", most: int = 2) -> Recorded:
        sizes = ("--neurons", "1024", "--layers", "4", "--rows", "70")
        return recorder("devices", "--devices", device, "--most", str(most), "--runs", "2", *sizes, "--only", *cases)

    return run


def test_each_case_has_its_times_with_one_device_and_two(devices: Callable[..., Recorded]) -> None:
    found = devices(*CASES)
    assert not found.failures
    assert [row["key"] for row in found.rows] == [f"{case}-{count}" for case in CASES for count in (1, 2)]
    assert [row["rows"] for row in found.rows] == [70, 70, 70, 70]
    for one, two in zip(found.rows[::2], found.rows[1::2], strict=True):
        for name in ("run", "compute", *(("call",) if one["case"] == "random" else ())):
            assert one[f"{name}_speedup"] == 1
            assert two[f"{name}_speedup"] == pytest.approx(one[f"{name}_milliseconds"] / two[f"{name}_milliseconds"])


@pytest.mark.parametrize("categories", [True, False])
def test_a_wrong_answer_of_computing_alone_is_not_recorded(
    devices: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch, categories: bool
) -> None:
    run_rows = Session._run_rows

    def corrupted(self: Session, inputs: Any, first: int, last: int, *others: Any) -> Any:
        result = run_rows(self, inputs, first, last, *others)
        if inputs.count < inputs.total:  # a device's share of the rows
            if categories:
                return replace(result, categories=result.categories[1:])
            result.batches[0].on_host().features[-1, -1] = np.nan
        return result

    monkeypatch.setattr(Session, "_run_rows", corrupted)
    found = devices("challenge-2")
    assert found.result is None
    assert found.failures == ("the bits differ from those of one device",)


def test_outputs_of_rows_on_gpus_are_compared_before_they_are_timed(
    devices: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    def called(shares: Any, outputs: Any, run: Any, add: float = 0.0) -> float:
        calls.append(len(shares))
        return time_calls([(session, share + add) for session, share in shares], outputs, run)

    time_calls = table_devices._calls
    monkeypatch.setattr(CPUBackend, "in_host_memory", False)
    monkeypatch.setattr(table_devices, "_on_device", lambda session, rows, first, last: rows[first:last])
    monkeypatch.setattr(table_devices, "_calls", called)
    assert not devices("random").failures
    assert calls == [1, 2]
    monkeypatch.setattr(table_devices, "_calls", partial(called, add=1.0))
    assert set(devices("random").failures) == {"the bits differ from those of one device"}


@pytest.mark.gpu
@pytest.mark.alone
def test_rows_of_all_cases_are_placed_on_a_gpu(devices: Callable[..., Recorded]) -> None:
    found = devices(*CASES, device="cuda", most=1)
    assert not found.failures
    assert [row["case"] for row in found.rows] == list(CASES)
    assert all(row["compute_milliseconds"] > 0 for row in found.rows)


# ---- Files of rows ----------------------------------------------------------------------------------------------

CONSTANTS = Constants(0.5, 0.25, 1.0, 50.0, reading=2e6, computing=1e6, gathering=8e6, latency_milliseconds=3.0)


@pytest.fixture
def files(recorder: Recorder, tmp_path: Path) -> Callable[..., Recorded]:
    """Record a small file of rows."""

    def run(device: str = "cpu", table: str = "row-files") -> Recorded:
        sizes = ("--rows", "9000", "--memory-limit", "0.2", "--runs", "2", "--folder", str(tmp_path))
        return recorder(table, "--devices", device, "--most", "1", *sizes)

    return run


def test_devices_share_computing_and_chunks_and_nothing_else() -> None:
    once = 0.5 + 0.25 + 1 / 50
    assert CONSTANTS.expected_seconds(6_000_000, 8, 1) == pytest.approx(once + 6 + 8 * 0.003)
    assert CONSTANTS.expected_seconds(6_000_000, 8, 4) == pytest.approx(once + 3 + 2 * 0.003)
    slow = replace(CONSTANTS, upload=None, gathering=1e5)
    assert slow.expected_seconds(6_000_000, 9, 4) == pytest.approx(0.75 + 60 + 3 * 0.003)


def test_both_tables_are_recorded_and_the_file_is_dropped_before_each_read_from_disk(
    files: Callable[..., Recorded], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(table_row_files, name)
        return lambda *arguments, **options: (done.append(name), real(*arguments, **options))[1]

    for name in ("_drop", "_hold", "stream"):
        monkeypatch.setattr(table_row_files, name, watched(name))
    assert not files().failures
    assert sorted(path.name for path in recorder.folder.iterdir()) == ["row-files-cpu.json", "scaling-cpu.json"]
    rows = read_results(recorder.folder / "scaling-cpu.json").rows
    assert [row["place"] for row in rows] == ["disk", "memory"]
    for row in rows:
        constants = Constants(**{name: row[name] for name in Constants.__annotations__})
        assert row["expected_seconds"] == constants.expected_seconds(9000, row["pieces"], 1)
        assert row["pieces"] >= 2
        assert row["upload"] is row["prepared_gigabytes"] is None
    disk = done[: done.index("_hold")]
    assert (
        list(itertools.pairwise(disk)).count(("_drop", "stream")) == 4
    )  # two runs, one before them, and one for its memory
    assert done.count("_drop") == disk.count("_drop")


def test_wrong_categories_of_a_file_are_not_recorded(
    files: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any, **options: Any) -> Any:
        result = stream(*arguments, **options)
        return replace(result, categories=np.append(result.categories, 8999))

    stream = table_row_files.stream
    monkeypatch.setattr(table_row_files, "stream", wrong)
    found = files()
    assert found.result is None
    assert "the categories differ" in found.failures[0]


@pytest.mark.gpu
@pytest.mark.alone
def test_copies_to_a_gpu_are_timed(files: Callable[..., Recorded]) -> None:
    for row in files("cuda", "scaling").rows:
        assert row["upload"] > 0 < row["prepared_gigabytes"]
