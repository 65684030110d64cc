"""The test-suite's own switches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gpu import MOST_PROCESSES, processes, why_no_gpu


class NoDriverError(Exception):
    pass


def cupy_with(count: int | Exception) -> Any:
    def get_device_count() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    runtime = SimpleNamespace(getDeviceCount=get_device_count, CUDARuntimeError=NoDriverError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def test_without_cupy_the_reason_says_what_to_install() -> None:
    def importer(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    assert "No module named 'cupy'" in (why_no_gpu(importer) or "")
    assert "sparsenn[cuda12]" in (why_no_gpu(importer) or "")


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (0, "no NVIDIA GPU: CUDA finds no device"),
        (NoDriverError("driver too old"), "no NVIDIA GPU: driver too old"),
        (1, None),
        (8, None),
    ],
)
def test_with_cupy_the_devices_decide(count: int | Exception, reason: str | None) -> None:
    assert why_no_gpu(lambda name: cupy_with(count)) == reason


@pytest.mark.parametrize(
    ("no_gpu", "processors", "expected"),
    [("no driver", 1, 1), ("no driver", 2, 2), ("no driver", 1000, MOST_PROCESSES), (None, 2, 0), (None, 1000, 0)],
)
def test_tests_share_the_processors_but_no_gpu(no_gpu: str | None, processors: int, expected: int) -> None:
    assert processes(no_gpu, processors) == expected


@pytest.mark.gpu
def test_gpu_tests_run_only_where_there_is_a_gpu() -> None:
    assert why_no_gpu() is None
