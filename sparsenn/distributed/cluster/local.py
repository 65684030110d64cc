"""A cluster of this machine: a worker a GPU, or so many processes that share its cores."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sparsenn.distributed.cluster.library import distributed_library
from sparsenn.errors import UsageError, WorkerError
from sparsenn.formats.arrays import size
from sparsenn.workers import thread_count

__all__ = ["local_cluster"]

_HOST = "127.0.0.1"
"""No other machine reaches the cluster."""

_LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What limits the threads of libraries; numba and this package's own have NUMBA_NUM_THREADS."""


@contextmanager
def local_cluster(workers: int | None = None, *, device: str = "auto") -> Iterator[Any]:
    """Start a cluster of this machine, and yield its client; the block's end ends the cluster.

    Workers are processes that are started anew: a script that calls this must do so under
    ``if __name__ == "__main__":``. One that is killed is started again.

    Parameters
    ----------
    workers : how many; by default one a GPU, or one where there is none.
    device : what they are for: `auto` and `cuda` give each worker a GPU of its own (CUDA_VISIBLE_DEVICES), where there
        are some; for others, and where there is none, the machine's threads are divided.

    Raises
    ------
    UsageError
        Dask is not installed; `workers` is no integer of at least 1, or there are fewer GPUs.
    WorkerError
        The workers do not start.
    """
    library = distributed_library()
    gpus = _gpus() if device in ("auto", "cuda") else []
    count = max(1, len(gpus)) if workers is None else size(workers, "the number of workers")
    if gpus and count > len(gpus):
        raise UsageError(f"there are {len(gpus)} GPUs for {count} workers; take so many, or the device cpu")
    threads = max(1, thread_count() // count)
    spec = {number: _worker(library, gpus[number : number + 1], threads) for number in range(count)}
    scheduler = {"cls": library.Scheduler, "options": {"host": _HOST, "dashboard": False, "dashboard_address": None}}
    with ExitStack() as stack:
        try:
            with _threads_of_libraries(threads):
                cluster = library.SpecCluster(spec, scheduler, silence_logs=logging.CRITICAL)
            client = library.Client(stack.enter_context(cluster))
        except (OSError, TimeoutError) as error:
            raise WorkerError(f"no cluster could be started on this machine ({error})") from error
        yield stack.enter_context(client)


def _worker(library: Any, gpus: list[str], threads: int) -> dict[str, Any]:
    """Return what SpecCluster starts a worker by: of one thread, for a session takes all that it may."""
    env = {"CUDA_VISIBLE_DEVICES": gpus[0]} if gpus else {"NUMBA_NUM_THREADS": str(threads)}
    options = {
        "host": _HOST,
        "nthreads": 1,
        "env": env,
        "memory_limit": 0,
        "dashboard": False,
        "silence_logs": logging.CRITICAL,
    }
    return {"cls": library.Nanny, "options": options}


def _threads_of_libraries(threads: int) -> Any:
    """Have processes that are started within the block leave other threads to the libraries than Dask's usual one."""
    import dask

    return dask.config.set({f"distributed.nanny.pre-spawn-environ.{name}": threads for name in _LIBRARIES})


def _gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES calls each GPU that this process may use; none where there is no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, line in enumerate(line for line in found.splitlines() if line.startswith("GPU "))]
