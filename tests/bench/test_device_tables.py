"""The table of several devices: bits are those of one device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import table_devices
from recordings import Recorded, Recorder

CASES = ("random", "challenge")


@pytest.fixture
def devices(recorder: Recorder) -> Callable[..., Recorded]:
    """Record small cases: on the CPU as one device and as two, or on one GPU."""

    def run(*cases: str, device: str = "cpu", most: int = 2) -> Recorded:
        sizes = ("--neurons", "1024", "--layers", "4", "--rows", "70")
        return recorder("devices", "--device", device, "--most", str(most), "--runs", "2", *sizes, "--only", *cases)

    return run


def test_each_case_has_its_times_with_one_device_and_two(devices: Callable[..., Recorded]) -> None:
    found = devices(*CASES)
    assert not found.failures
    assert [row["key"] for row in found.rows] == [f"{case}-{count}" for case in CASES for count in (1, 2)]
    assert [row["rows"] for row in found.rows] == [70, 70, 70, 70]
    for one, two in zip(found.rows[::2], found.rows[1::2], strict=True):
        for name in ("run", *(("call", "compute") if one["case"] == "random" else ())):
            assert one[f"{name}_speedup"] == 1
            assert two[f"{name}_speedup"] == pytest.approx(one[f"{name}_milliseconds"] / two[f"{name}_milliseconds"])


def test_a_wrong_answer_is_not_recorded(devices: Callable[..., Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_devices, "answer_of_one", lambda *of: np.zeros(1))
    found = devices(*CASES)
    assert found.result is None
    assert set(found.failures) == {"the bits differ from those of one device"}


@pytest.mark.gpu
@pytest.mark.alone
def test_rows_of_all_cases_are_placed_on_a_gpu(devices: Callable[..., Recorded]) -> None:
    found = devices(*CASES, device="cuda", most=1)
    assert not found.failures
    assert [row["case"] for row in found.rows] == list(CASES)
    assert found.rows[0]["compute_milliseconds"] > 0
