"""A cluster of this machine: one worker per GPU, or processes that share its cores."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.errors import UsageError, WorkerError
from sparsenn.formats.arrays import size
from sparsenn.runtime.workers import thread_count

_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Limits of the threads of libraries; numba and this package's own have NUMBA_NUM_THREADS."""


@contextmanager
def local_cluster(workers: int | None = None, *, device: str = "auto") -> Iterator[Any]:
    """Start a cluster of this machine, and yield its client; the block's end ends the cluster.

    Workers are processes that are started anew: a script that calls this must do so under
    ``if __name__ == "__main__":``. One that is killed is started again. Where the package `cryptography` is installed,
    connecting takes a certificate of this cluster; else every user of the machine can connect, and run code in it.

    Parameters
    ----------
    workers : int, optional
        How many; by default one a GPU, or one where there is none.
    device : str, default 'auto'
        What they are for: `auto` and `cuda` give each worker a GPU of its own (CUDA_VISIBLE_DEVICES), where there are
        some; for others, and where there is none, the machine's threads are divided.

    Yields
    ------
    distributed.Client
        That of the cluster.

    Raises
    ------
    UsageError
        Dask is not installed; `workers` is no integer of at least 1, or there are fewer GPUs.
    WorkerError
        The workers do not start.
    """
    library = dask_module("distributed")
    gpus = _gpus() if device in ("auto", "cuda") else []
    count = max(1, len(gpus)) if workers is None else size(workers, "the number of workers")
    if gpus and count > len(gpus):
        raise UsageError(f"there are {len(gpus)} GPUs for {count} workers; use that many, or device cpu")
    threads = str(max(1, thread_count() // count))
    is_secured = find_spec("cryptography") is not None  # which Dask makes certificates with
    options: dict[str, Any] = {
        "n_workers": count,
        "threads_per_worker": 2,  # two tasks at a time: one reads while the other computes
        "host": "127.0.0.1",  # no other machine reaches the cluster
        "security": library.Security.temporary() if is_secured else library.Security(),
        "protocol": "tls" if is_secured else "tcp",
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
        "memory_limit": 0,
        "env": {} if gpus else {"NUMBA_NUM_THREADS": threads},
        "silence_logs": logging.CRITICAL,
    }
    settings = {f"distributed.nanny.pre-spawn-environ.{name}": threads for name in _LIBRARIES}
    with dask_module("dask").config.set(settings):
        try:
            cluster = library.LocalCluster(**options)
        except (OSError, TimeoutError) as error:
            raise WorkerError(f"no cluster could be started on this machine ({error})") from error
        with cluster, library.Client(cluster, direct_to_workers=True) as client:
            client.register_plugin(_plugin(gpus))
            yield client


def _plugin(gpus: list[str]) -> Any:
    """Return Dask's plugin for workers that see one GPU each, and ignore an interrupt: this process ends them."""

    class Plugin(dask_module("distributed").WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker.name)]

    return Plugin()


def _gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES calls each GPU that this process may use; none without CuPy or a driver."""
    if find_spec("cupy") is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, line in enumerate(line for line in found.splitlines() if line.startswith("GPU "))]
