"""The test-suite's own switches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
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


# ---- Tiers ---------------------------------------------------------------------------------------------------------

TIERS = """\
import pytest

def test_fast(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.slow
@pytest.mark.gpu
def test_on_gpu(): pass

@pytest.mark.parametrize("number", range(3))
def test_skipped(number): pytest.skip("no data" if number else "no network")
"""


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    """A copy of the project with a few tests of its own."""
    (tmp_path / "tests").mkdir()
    for name in ("pyproject.toml", "tests/conftest.py", "tests/gpu.py", "tests/compiled.py"):
        shutil.copy(repository / name, tmp_path / name)
    (tmp_path / "tests" / "test_tiers.py").write_text(TIERS)
    return tmp_path


@pytest.mark.parametrize(
    ("more", "everything"), [((), True), (("tests/test_tiers.py",), False), (("--numprocesses", "1"), False)]
)
def test_slow_tests_run_only_where_all_are_asked_for(
    project: Path, repository: Path, more: tuple[str, ...], everything: bool
) -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *more, *["--all"][:everything]]
    environment = os.environ | {"PYTHONPATH": str(repository), "SPARSENN_CACHE": str(project / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=project, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout
    assert ("::test_slow" in done.stdout) == everything
    assert ("::test_on_gpu" in done.stdout) == (why_no_gpu() is None)
    header, _, rest = done.stdout.partition("::test_fast")
    assert ("tier: all tests" in header) == everything
    assert ("tier: tests marked slow are left out (--all runs them)" in header) == (not everything)
    notes = ["skipped: 2 × no data", "skipped: 1 × no network"]
    notes += [f"note: tests marked gpu are left out, 1 of them: {reason}" for reason in [why_no_gpu()] if reason]
    notes += ["note: tests marked slow are left out (--all runs them)"] * (not everything)
    *_, last = lines = rest.splitlines()
    assert lines[-1 - len(notes) : -1] == notes
    assert last.startswith("=====")
