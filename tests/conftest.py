"""Fixtures and settings that all tests share."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
from compiled import folder, prune
from gpu import processes, why_no_gpu
from hypothesis import HealthCheck, settings

# Tests have the cache folder elsewhere; what numba compiles stays where it is, lest it be compiled in each of them, as
# does matplotlib's list of fonts.
BESIDE = folder() or Path(gettempdir(), "tests")
os.environ.setdefault("NUMBA_CACHE_DIR", str(BESIDE.with_name("numba-of-tests")))
os.environ.setdefault("MPLCONFIGDIR", str(BESIDE.with_name("matplotlib-of-tests")))
os.environ.setdefault("KERAS_BACKEND", "torch")  # the one that the extra test-frameworks installs

REPOSITORY = Path(__file__).resolve().parents[1]
SLOW_LEFT_OUT = "tests marked slow are left out (--all runs them)"
NEED_A_GPU = pytest.StashKey[str]()
"""Why tests marked gpu are left out, and how many they are."""

# The first example of a test may wait for numba, hence no deadline and no complaint about slow data.
settings.register_profile("local", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Give how many processes run tests where --numprocesses auto is asked for; 0 is this one alone."""
    return processes(why_no_gpu(), os.cpu_count() or 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all."""
    parser.addoption("--all", action="store_true", help="run the tests marked slow, too")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove what has long been of no use from the cache of what tests compile; once, not in each process.

    Matplotlib lists fonts here, lest it does so for the first time where a test allows it little.
    """
    if hasattr(session.config, "workerinput"):
        return
    prune()
    if not any(Path(os.environ["MPLCONFIGDIR"]).glob("fontlist-*.json")):
        subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True, timeout=240)


def pytest_report_header(config: pytest.Config) -> str:
    """Say which tests are run."""
    return f"tier: {'all tests' if config.getoption('--all') else SLOW_LEFT_OUT}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write one line per reason why tests were skipped or left out."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped: {count:,} × {reason}")
    if need_a_gpu := config.stash.get(NEED_A_GPU, None):
        terminalreporter.write_line(f"note: {need_a_gpu}")
    if not config.getoption("--all"):
        terminalreporter.write_line(f"note: {SLOW_LEFT_OUT}")


def _reason(report: pytest.TestReport) -> str:
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return message.removeprefix("Skipped: ")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked slow unless all are asked for, and those marked gpu where there is no GPU."""
    slow = [] if config.getoption("--all") else [item for item in items if _is_slow(item)]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := why_no_gpu()):
        config.stash[NEED_A_GPU] = f"tests marked gpu are left out, {len(on_gpu):,} of them: {reason}"
    else:
        on_gpu = []
    if left_out := {*slow, *on_gpu}:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_slow(item: pytest.Item) -> bool:
    """Tests marked gpu are none of them: with a GPU they are wanted."""
    return item.get_closest_marker("slow") is not None and item.get_closest_marker("gpu") is None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a worker of xdist left out to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["need_a_gpu"] = session.config.stash.get(NEED_A_GPU, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of xdist left out: each of them collects all tests."""
    if need_a_gpu := getattr(node, "workeroutput", {}).get("need_a_gpu"):
        node.config.stash[NEED_A_GPU] = need_a_gpu


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data; tests that ask for it are skipped where it is missing.

    It lies beside the repository, or where the environment variable SPARSENN_TEST_DATA points.
    """
    return _present(Path(os.environ.get("SPARSENN_TEST_DATA") or REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def official_folder(shared_data: Path) -> Path:
    """The official 1024 x 120 network with its first 1,200 images, in its archives."""
    return _present(shared_data / "challenge-1024x120-first1200")


@pytest.fixture(scope="session")
def mnist_folder(shared_data: Path) -> Path:
    """The four IDX files of MNIST, compressed."""
    return _present(shared_data / "mnist")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20190924)


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, for tests marked gpu."""
    import cupy

    return cupy


def _present(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: no folder {folder}")
    return folder


@pytest.fixture(autouse=True, scope="module")
def _freed_memory_returned() -> Iterator[None]:
    """Return memory that a module's tests have freed to the system: a process runs hundreds of modules."""
    yield
    with suppress(AttributeError):  # elsewhere than in the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def _priors_decide(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have priors choose kernels, which are the same in every run; tests of measuring ask for `measuring_kernels`."""
    from sparsenn.engine.compiled_network import CompiledNetwork
    from sparsenn.engine.plan_cache import PlanCache

    with pytest.MonkeyPatch.context() as patch:
        if "measuring_kernels" not in request.fixturenames:
            patch.setattr(PlanCache, "measure", lambda *arguments: None)
            patch.setattr(CompiledNetwork, "stored_choice", lambda *arguments: None)
        yield


@pytest.fixture
def measuring_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions time kernels, with an empty cache folder."""
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
