"""Tasks that a cluster computes, and requests to it; whatever Dask raises becomes an error of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.rows import Rows
from sparsenn.distributed.cluster.work import Sizes, Work, piece_of, sizes_of
from sparsenn.errors import SparseNNError, WorkerError
from sparsenn.network import Network

WAIT_SECONDS = 30.0  # for a worker, where a cluster has none

AHEAD = 3
"""Tasks that are with the cluster for each thread of its workers: one is computed, one waits, one is on its way."""

RETRIES = 3  # further attempts of a task that fails


def hold(client: Any, work: Work) -> tuple[Any, Sizes]:
    """Have a cluster hold the network of some work, of which a worker opens a session.

    Returns a future of the work, or the work itself, which is small, if it names a file; and the network's sizes.
    """
    place = address_of(client)
    with _one_line_errors(client), dask_module("dask").config.set(_LARGE):
        try:
            client.wait_for_workers(1, timeout=WAIT_SECONDS)
        except TimeoutError as error:
            raise WorkerError(f"the cluster at {place} has no workers; start some: dask worker {place}") from error
        held: Any = work
        if isinstance(work.source, Network):  # the result of a task: Dask makes it anew where its workers are lost
            held = client.submit(_same, work, pure=False, retries=RETRIES)
        return held, client.submit(sizes_of, held, pure=False, retries=RETRIES).result()


_LARGE = {"distributed.admin.large-graph-warning-threshold": "1TB"}  # a network is sent once


def _same(work: Work) -> Work:
    return work


def computed(client: Any, work: Any, rows: Rows, wanted: str, parts: dict[int, tuple[int, int]]) -> Iterator[Any]:
    """Yield the number of each part with what `piece_of` returns for it, as they are done, in any order.

    Only as many tasks are with the cluster at a time as keep its workers busy. Dask computes those of a lost worker
    elsewhere, and failed ones again.
    """
    delayed = dask_module("dask").delayed(piece_of, pure=False)
    numbers: dict[Any, int] = {}
    finished, left = dask_module("distributed").as_completed(loop=client.loop), iter(parts.items())

    def fill() -> None:
        most = AHEAD * max(1, sum(client.nthreads().values()))
        for number, edge in islice(left, max(0, most - len(numbers))):
            if rows.chunked is None:
                future = client.submit(piece_of, rows.part(*edge), work, wanted, pure=False, retries=RETRIES)
            else:
                future = client.compute(delayed(rows.part(*edge), work, wanted), retries=RETRIES)
            numbers[future] = number
            finished.add(future)

    try:
        with _one_line_errors(client):
            fill()
            for future in finished:
                number, made = numbers.pop(future), future.result()
                future.release()
                yield number, made
                fill()
    finally:
        with suppress(Exception):
            client.cancel(list(numbers))


@contextmanager
def _one_line_errors(client: Any) -> Iterator[None]:
    """Have whatever Dask raises in the block become an error of this package."""
    place = address_of(client)
    try:
        yield
    except SparseNNError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        raise WorkerError(_explain(error, place, client.scheduler is None)) from error


def _explain(error: BaseException, place: str, is_lost: bool) -> str:
    kind = type(error).__name__
    if kind == "KilledWorker":
        return (
            f"the workers that computed some rows were lost, the last at {error.last_worker.address}, "  # type: ignore[attr-defined]
            "perhaps for lack of memory; use fewer rows at a time (piece)"
        )
    if is_lost or "Cancelled" in kind or isinstance(error, OSError | asyncio.CancelledError):
        return f"the scheduler at {place} is lost; what has been written is kept: --resume continues from there"
    return f"a worker of the cluster at {place} failed: {kind}: {_one_line(error)}"


def address_of(client: Any) -> str:
    """Return the address of a client's scheduler."""
    return str(getattr(client.scheduler, "address", None) or client)


def worker_count(client: Any) -> int:
    """Return how many workers a cluster has."""
    with _one_line_errors(client):
        return len(client.nthreads())


def connected(scheduler: str) -> Any:
    """Return a client of the scheduler at an address."""
    try:
        return dask_module("distributed").Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(f"there is no scheduler at {scheduler} ({_one_line(error)})") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
