"""The pytest plugin of tools/check_gpu: each worker of pytest-xdist sees one GPU, and reports are written as they come.

The environment says which: CHECK_GPU_GPUS, names as CUDA_VISIBLE_DEVICES has them, and CHECK_GPU_REPORTS, a file that
gets a line of JSON for the tests that were chosen, and for each report of one. A run that is ended has its lines, too.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

LOST = pytest.StashKey[bool]()
"""Set where a test left the worker's GPU in an error that only a new process ends."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose the GPU of a worker, before anything asks CUDA for one; those of the process itself see the first."""
    gpus = os.environ["CHECK_GPU_GPUS"].split(",")
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def write(line: dict[str, Any]) -> None:
    with Path(os.environ["CHECK_GPU_REPORTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    write({"chosen": ids})


def pytest_collection_finish(session: pytest.Session) -> None:
    if not is_worker(session.config) and session.items:
        write({"chosen": [item.nodeid for item in session.items]})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that started the worker writes
    if report.skipped and isinstance(report.longrepr, tuple):
        message = str(report.longrepr[2])
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(crash.message if crash else report.longrepr or "")
    skipped = report.skipped or hasattr(report, "wasxfail")
    outcome = "failed" if report.failed else "skipped" if skipped else "passed"
    line = {"test": report.nodeid, "when": report.when, "outcome": outcome, "seconds": report.duration}
    write(line | {"message": message.strip().partition("\n")[0][:200]})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    if report.failed and is_worker(item.config) and "cupy" in sys.modules:
        try:
            sys.modules["cupy"].cuda.runtime.deviceSynchronize()
        except Exception:
            item.stash[LOST] = True
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End a worker whose GPU is in an error, which would fail all further tests; another one takes its place."""
    if item.stash.get(LOST, False):
        os._exit(1)


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
