"""Tables of several devices and of files of rows: bits are those of one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import Recorded, Recorder

from sparsenn import Session

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


@pytest.mark.gpu
@pytest.mark.alone
def test_rows_of_all_cases_are_placed_on_a_gpu(devices: Callable[..., Recorded]) -> None:
    found = devices(*CASES, device="cuda", most=1)
    assert not found.failures
    assert [row["case"] for row in found.rows] == list(CASES)
    assert all(row["compute_milliseconds"] > 0 for row in found.rows)


# ---- Files of rows ----------------------------------------------------------------------------------------------


@pytest.fixture
def files(recorder: Recorder, tmp_path: Path) -> Callable[..., Recorded]:
    """Record a small file of rows."""

    def run() -> Recorded:
        sizes = ("--rows", "9000", "--memory-limit", "0.2", "--runs", "2", "--folder", str(tmp_path))
        return recorder("row-files", "--devices", "cpu", "--most", "1", *sizes)

    return run


def test_both_tables_of_a_file_are_recorded(files: Callable[..., Recorded], recorder: Recorder) -> None:
    assert not files().failures
    assert sorted(path.name for path in recorder.folder.iterdir()) == ["row-files-cpu.json", "scaling-cpu.json"]
