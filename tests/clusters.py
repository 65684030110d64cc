"""Clusters whose scheduler and workers are processes of their own, which tests may kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["External", "external_cluster"]

LONGEST = 60.0
"""Seconds that a scheduler may take to start."""


class External:
    """A scheduler and workers.

    Attributes
    ----------
    address : of the scheduler.
    scheduler : its process.
    workers : processes, each of one thread, that nobody starts again.
    """

    def __init__(
        self, address: str, scheduler: subprocess.Popen[bytes], start: Callable[[], subprocess.Popen[bytes]]
    ) -> None:
        self.address, self.scheduler, self._start = address, scheduler, start
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        self.workers.append(self._start())
        return self.workers[-1]


@contextmanager
def external_cluster(folder: Path, workers: int = 1) -> Iterator[External]:
    """Start a cluster, and end it with the block.

    Parameters
    ----------
    folder : where its processes write what they have to.
    workers : how many.
    """
    told = folder / "scheduler.json"
    with ExitStack() as stack:
        words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told))
        scheduler = stack.enter_context(_process(folder, "scheduler", *words))
        end = time.monotonic() + LONGEST
        while not told.exists() or not told.read_text().rstrip().endswith("}"):
            assert scheduler.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.01)
        address = json.loads(told.read_text())["address"]
        told.unlink()
        how = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder))
        cluster = External(address, scheduler, lambda: stack.enter_context(_process(folder, "worker", address, *how)))
        for _ in range(workers):
            cluster.start_worker()
        yield cluster


@contextmanager
def _process(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "dask", *words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
