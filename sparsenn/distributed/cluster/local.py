"""A cluster of this machine: a worker a GPU, or so many processes that share its cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker
from typing import Any

from sparsenn.distributed.cluster.library import distributed_library, require_dask
from sparsenn.errors import UsageError, WorkerError
from sparsenn.formats.arrays import size
from sparsenn.runtime.workers import thread_count

__all__ = ["local_cluster"]

_HOST = "127.0.0.1"
"""No other machine reaches the cluster, and no other user of this one has its key."""

_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What limits the threads of libraries; numba and this package's own have NUMBA_NUM_THREADS."""

_NEEDED = (
    "distributed.nanny",
    "sparsenn.distributed.cluster.gathering",
    "sparsenn.io.hdf5.dataset",
    "numba.np.arraymath",
)
"""Modules that workers need."""


@contextmanager
def local_cluster(workers: int | None = None, *, device: str = "auto") -> Iterator[Any]:
    """Start a cluster of this machine, and yield its client; the block's end ends the cluster.

    Workers are processes that are started anew: a script that calls this must do so under
    ``if __name__ == "__main__":``. One that is killed is started again. Only this process and the workers have the key
    that connecting to the cluster takes.

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
    require_dask()
    gpus = _gpus() if device in ("auto", "cuda") else []
    count = max(1, len(gpus)) if workers is None else size(workers, "the number of workers")
    if gpus and count > len(gpus):
        raise UsageError(f"there are {len(gpus)} GPUs for {count} workers; use that many, or device cpu")
    threads = max(1, thread_count() // count)
    settings = _start_forks(threads)
    library = distributed_library()
    import dask

    from sparsenn.distributed.cluster.keyed import SCHEME

    no_page = {"dashboard": False, "dashboard_address": f"{_HOST}:0"}
    scheduler = {"cls": library.Scheduler, "options": {"host": _HOST, "protocol": SCHEME, **no_page}}
    spec = {number: _worker(library, gpus[number : number + 1], threads) for number in range(count)}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        try:
            cluster = library.SpecCluster(spec, scheduler, silence_logs=logging.CRITICAL)
            client = library.Client(stack.enter_context(cluster), direct_to_workers=True)
        except (OSError, TimeoutError) as error:
            raise WorkerError(f"no cluster could be started on this machine ({error})") from error
        yield stack.enter_context(client)


def _worker(library: Any, gpus: list[str], threads: int) -> dict[str, Any]:
    """Return what SpecCluster starts a worker by; it takes two tasks, so that one reads while the other computes."""
    from sparsenn.distributed.cluster.keyed import SCHEME, KeyedWorker, key_settings

    own = {"CUDA_VISIBLE_DEVICES": gpus[0]} if gpus else {"NUMBA_NUM_THREADS": str(threads)}
    options = {
        "host": _HOST,
        "protocol": SCHEME,
        "worker_class": KeyedWorker,
        "config": key_settings(),
        "nthreads": 2,
        "env": {**os.environ, **own},
        "memory_limit": 0,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
    }
    return {"cls": library.Nanny, "options": options}


def _start_forks(threads: int) -> dict[str, Any]:
    """Have a process begin to import what workers need, of which they will be forks; return Dask's settings for that.

    Nothing else runs in it, and interrupts reach neither it nor them: this process ends them. It starts while this
    process still imports Dask. Where the system knows no such thing, workers are started one by one.
    """
    limits = dict.fromkeys(_LIBRARIES, str(threads))
    settings: dict[str, Any] = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in limits.items()}
    if "forkserver" in multiprocessing.get_all_start_methods():
        settings["distributed.worker.multiprocessing-method"] = "forkserver"
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(_NEEDED))
        before = {name: os.environ.get(name) for name in limits}
        os.environ.update(limits)
        resource_tracker.ensure_running()  # which changes the mask
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which a terminal sends to all processes
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return settings


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
