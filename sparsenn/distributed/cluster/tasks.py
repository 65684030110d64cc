"""Tasks of workers with rows, and requests to a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.rows import FileRows, Rows
from sparsenn.distributed.cluster.sessions import NetworkName, Sizes, keep_network, session_of, sizes_of
from sparsenn.distributed.digests import rows_digest
from sparsenn.distributed.pieces import Piece
from sparsenn.engine import Session
from sparsenn.engine.options import Options
from sparsenn.errors import SparseNNError, WorkerError
from sparsenn.formats import Array
from sparsenn.network import Network

__all__ = [
    "Task",
    "address_of",
    "computed",
    "connected",
    "one_line_errors",
    "prepare_workers",
    "worker_count",
    "worker_plugin",
]

WAIT_SECONDS = 30.0  # for a worker, where a cluster has none

AHEAD = 3
"""Tasks that are with the cluster for each thread of its workers: one is computed, one waits, one is on its way."""

RETRIES = 3
"""Further attempts of a task that fails, and of a request to all workers where one of them is lost meanwhile."""


@dataclass(frozen=True)
class Task:
    """The work of a worker on rows.

    Parameters
    ----------
    name, options : of the session.
    prepare : what is done to rows first; None for nothing.
    """

    name: NetworkName
    options: Options
    prepare: Callable[[Any], Any] | None = None

    def block(self, part: Any, form: str) -> Any:
        """Return the outputs of rows: dense, or csr of SciPy."""
        session, rows = self._begin(part)
        prepared = self._prepare(rows)
        if form == "dense":
            return session(prepared, form=form)
        return session.run(prepared, statistics=False).outputs.to_scipy()  # rows of zeros are never made

    def piece(self, part: Any, wanted: str) -> tuple[Piece, Array | None]:
        """Return the record of rows, and of their outputs `all`, `classes` (the largest of each row), or `none`."""
        session, rows = self._begin(part)
        digest = rows_digest(rows)  # preparing may change the rows themselves
        result = session.run(self._prepare(rows), statistics=False)
        outputs = None if wanted == "none" else result.dense
        if outputs is not None and wanted == "classes":
            outputs = outputs.argmax(axis=1)
        return Piece(result.inputs, digest, result.categories.tolist()), outputs

    def _begin(self, part: Any) -> tuple[Session, Any]:
        """Return the session, and rows that a task was given, read if they are in a file."""
        try:
            return session_of(self.name, self.options), part.read() if isinstance(part, FileRows) else part
        except WorkerError as error:
            place = "in this process"
            with suppress(ValueError):
                place = dask_module("distributed").get_worker().address
            raise WorkerError(f"worker {place}: {error}") from error

    def _prepare(self, rows: Any) -> Any:
        return rows if self.prepare is None else self.prepare(rows)


def computed(client: Any, task: Task, rows: Rows, wanted: str, parts: dict[int, tuple[int, int]]) -> Iterator[Any]:
    """Yield the number of each part with what `Task.piece` returns for it, as they are done, in any order.

    Only as many tasks are with the cluster at a time as keep its workers busy. Dask computes those of a lost worker
    elsewhere, and failed ones again.

    Parameters
    ----------
    client : of the cluster.
    task, wanted : what is done with rows.
    rows : all of them.
    parts : by number, (first, last) of the rows.

    Raises
    ------
    WorkerError
        The scheduler is lost, too many workers are lost while they compute a part, or a worker cannot compute it.
    SparseNNError
        As computing does.
    """
    compute = partial(task.piece, wanted=wanted)
    delayed = dask_module("dask").delayed(compute, pure=False)
    numbers: dict[Any, int] = {}
    finished, left = dask_module("distributed").as_completed(loop=client.loop), iter(parts.items())

    def fill() -> None:
        most = AHEAD * max(1, sum(client.nthreads().values()))
        for number, edge in islice(left, max(0, most - len(numbers))):
            if rows.chunked is None:
                future = client.submit(compute, rows.part(*edge), pure=False, retries=RETRIES)
            else:
                future = client.compute(delayed(rows.part(*edge)), retries=RETRIES)
            numbers[future] = number
            finished.add(future)

    try:
        with one_line_errors(client):
            fill()
            for future in finished:
                number, made = numbers.pop(future), future.result()
                future.release()
                yield number, made
                fill()
    finally:
        with suppress(Exception):
            client.cancel(list(numbers))


def prepare_workers(client: Any, task: Task, network: Network | None) -> Sizes:
    """Send a network, if it is an object, to all workers, have each open its session, and return the sizes.

    Raises
    ------
    WorkerError
        There is no worker, or one cannot run the network; the message names it and says why.
    SparseNNError
        A reason that is no worker's own, such as an unknown kernel.
    """
    place = address_of(client)
    with one_line_errors(client):
        for attempt in range(RETRIES + 1):
            try:
                return _open_sessions(client, place, task, network)
            except OSError:  # a worker or the scheduler is lost
                if client.scheduler is None:
                    raise
            time.sleep(attempt)  # in which the scheduler forgets a lost worker, and another may come
    raise WorkerError(f"the cluster at {place} loses its workers, perhaps for lack of memory")


def _open_sessions(client: Any, place: str, task: Task, network: Network | None) -> Sizes:
    try:
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except TimeoutError as error:
        raise WorkerError(f"the cluster at {place} has no workers; start some: dask worker {place}") from error
    if network is not None:
        client.register_plugin(
            worker_plugin(f"sparsenn-{task.name.digest}", partial(keep_network, task.name.digest, network))
        )
    answers = client.run(_open_there, task.name, task.options, on_error="return")
    faults = {worker: found for worker, found in answers.items() if isinstance(found, BaseException)}
    for worker, fault in faults.items():
        if isinstance(fault, SparseNNError) and not isinstance(fault, WorkerError):
            raise fault
        if not isinstance(fault, OSError):  # a lost connection
            raise WorkerError(f"worker {worker} cannot run the network: {_one_line(fault)}")
    for found in answers.values():
        if isinstance(found, Sizes):
            return found
    raise OSError("all workers are lost")


async def _open_there(name: NetworkName, options: Options) -> Sizes:
    """Have a worker open a session, beside the loop that answers the cluster."""
    return sizes_of((await asyncio.to_thread(session_of, name, options)).network)


def worker_plugin(name: str, work: Callable[[], object]) -> Any:
    """Return Dask's plugin that has every worker do some work, also workers that come later."""

    class Plugin(dask_module("distributed").WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            work()

    plugin = Plugin()
    plugin.name = name
    return plugin


@contextmanager
def one_line_errors(client: Any) -> Iterator[None]:
    """Have whatever Dask raises in the block become an error of this package.

    Raises
    ------
    WorkerError
        Dask has raised; the message is one line.
    """
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
    """Return how many workers a cluster has.

    Raises
    ------
    WorkerError
        The scheduler is lost.
    """
    with one_line_errors(client):
        return len(client.nthreads())


def connected(scheduler: str) -> Any:
    """Return a client of the scheduler at an address.

    Raises
    ------
    WorkerError
        There is none.
    """
    try:
        return dask_module("distributed").Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(f"there is no scheduler at {scheduler} ({_one_line(error)})") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
