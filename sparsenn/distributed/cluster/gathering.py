"""Parts computed by a cluster as workers become free, and done again elsewhere where one is lost or cannot do them."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sparsenn.distributed.cluster.library import distributed_library
from sparsenn.distributed.cluster.parts import FilePart
from sparsenn.distributed.cluster.sessions import NetworkName, Sizes, open_session, session_of
from sparsenn.distributed.digests import rows_digest
from sparsenn.distributed.pieces import Piece
from sparsenn.engine import Session
from sparsenn.engine.options import Options
from sparsenn.errors import SparseNNError, WorkerError
from sparsenn.formats import Array
from sparsenn.network import Network

__all__ = [
    "Submit",
    "Task",
    "address_of",
    "ask_again",
    "computed",
    "connected",
    "look_at_workers",
    "send_network",
    "told_in_a_line",
    "worker_count",
]

WAIT_SECONDS = 30.0
"""For a worker, where a cluster has none, or none any more."""

LOOK_SECONDS = 1.0
"""While nothing is done, between two looks at whether there are workers."""

AHEAD = 3
"""Parts that are with the cluster for each thread of its workers: one is computed, one waits, one is on its way."""

ATTEMPTS = 4
"""Number of times that a chunk is sent to a cluster, or its workers are asked, before the error is raised."""

VERSION = "__import__('sparsenn').__version__"
"""What a worker is asked first, through `eval`: nothing of sparsenn can be called where it is missing."""

Submit: TypeAlias = Callable[..., Any]
"""Gives a part to a cluster, with the keyword arguments `workers` and `allow_other_workers`, and returns its future."""

T = TypeVar("T")

_sent: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


@contextmanager
def told_in_a_line(client: Any) -> Iterator[None]:
    """Have whatever Dask raises in the block become an error of this package."""
    place = address_of(client)
    try:
        yield
    except SparseNNError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        raise _explained(error, place) from error


def worker_count(client: Any) -> int:
    """Return how many workers a cluster has.

    Raises
    ------
    WorkerError
        The scheduler is lost.
    """
    with told_in_a_line(client):
        return len(client.nthreads())


def ask_again(client: Any, ask: Callable[[], T]) -> T:
    """Return the answer to what all workers are asked, and ask again where one of them is lost meanwhile.

    Raises
    ------
    WorkerError
        One is lost each time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return ask()
        except OSError as error:
            client.nthreads()  # raises where it is the scheduler that is lost
            lost = error
        if attempt < ATTEMPTS:
            time.sleep(LOOK_SECONDS)  # in which the scheduler forgets it, and another may come
    raise WorkerError(
        f"a worker of the cluster at {address_of(client)} was lost each time that the network was sent to all, "
        f"{ATTEMPTS} in all ({_one_line(lost)}), perhaps for lack of memory"
    ) from lost


def send_network(client: Any, name: NetworkName, network: Network) -> None:
    """Send a network to all workers of a cluster, once; also to those that come later."""
    from sparsenn.distributed.cluster.plugin import NetworkPlugin

    sent = _sent.setdefault(client, set())
    if name.digest not in sent:
        client.register_plugin(NetworkPlugin(name.digest, network))
        sent.add(name.digest)


def look_at_workers(client: Any, name: NetworkName, options: Options) -> tuple[Sizes, frozenset[str]]:
    """Have every worker open its session for a network, and tell which of them cannot, also in a warning.

    Returns
    -------
    The sizes of the network, and the addresses of workers that cannot run it.

    Raises
    ------
    WorkerError
        There is no worker, or none that can; the message names them and says why.
    SparseNNError
        None can, for a reason that is no worker's own, such as an unknown kernel.
    OSError
        One that might have could not answer, as it is lost, and no other can.
    """
    place = address_of(client)
    try:
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except TimeoutError as error:
        raise WorkerError(f"the cluster at {place} has no workers; start some: dask worker {place}") from error
    faults: dict[str, Any] = {}
    versions = client.run(eval, VERSION, on_error="return")
    for worker, found in versions.items():
        if isinstance(found, OSError):
            faults[worker] = found
        elif found != name.version:
            told = f"sparsenn {found}" if isinstance(found, str) else f"no sparsenn ({_one_line(found)})"
            faults[worker] = WorkerError(f"it has {told}; sparsenn {name.version} is here: install the same version")
    same = [worker for worker in versions if worker not in faults]
    answers = client.run(_open_there, name, options, workers=same, on_error="return") if same else {}
    sizes = None
    for worker, found in answers.items():
        if isinstance(found, BaseException):
            faults[worker] = found
        else:
            sizes = found
    lost = [fault for fault in faults.values() if isinstance(fault, OSError)]
    if sizes is None:
        raise lost[0] if lost else _unfit(name, place, faults)
    for worker, fault in faults.items():
        if fault in lost:
            continue
        warnings.warn(f"worker {worker} is left out: {_one_line(fault)}", stacklevel=3)
    return sizes, frozenset(faults)


@dataclass(frozen=True)
class Task:
    """What a worker does with a part of the rows.

    Parameters
    ----------
    name, options : of the session.
    prepare : what is done to rows first; None for nothing.
    """

    name: NetworkName
    options: Options
    prepare: Callable[[Any], Any] | None = None

    def block(self, part: Any, form: str) -> Any:
        """Return the outputs of a part, as Dask's arrays hold them.

        Parameters
        ----------
        part : the rows, or what reads them.
        form : dense, a NumPy array; or csr, SciPy's.

        Raises
        ------
        WorkerError
            This worker cannot; the message names it.
        SparseNNError
            As `Session.__call__` does.
        """
        session, rows = self._begun(part)
        given = self._prepared(rows)
        if form == "dense":
            return session(given, form=form)
        return session.run(given, statistics=False).outputs.to_scipy()  # rows of zeros are never made

    def piece(self, part: Any, wanted: str) -> tuple[Piece, Array | None]:
        """Return what is noted of a part, and its outputs.

        Parameters
        ----------
        part : the rows, or what reads them.
        wanted : of the outputs: `all`; `classes`, the number of the largest of each row; or `none`.

        Raises
        ------
        WorkerError, SparseNNError
            As `block` does.
        """
        session, rows = self._begun(part)
        result = session.run(self._prepared(rows), statistics=False)
        outputs = None if wanted == "none" else result.dense
        if outputs is not None and wanted == "classes":
            outputs = outputs.argmax(axis=1)
        return Piece(result.inputs, rows_digest(rows), result.categories.tolist()), outputs

    def _begun(self, part: Any) -> tuple[Session, Any]:
        try:
            return session_of(self.name, self.options), part.read() if isinstance(part, FilePart) else part
        except WorkerError as error:
            raise WorkerError(f"worker {_here()}: {error}") from error

    def _prepared(self, rows: Any) -> Any:
        return rows if self.prepare is None else self.prepare(rows)


def computed(client: Any, unfit: Collection[str], parts: Iterator[tuple[int, Submit]]) -> Iterator[tuple[int, Any]]:
    """Yield what was made of parts as they are done, in any order, each once.

    Only so many parts are with the cluster at a time that its workers stay busy.

    Parameters
    ----------
    client : of the cluster.
    unfit : workers that are given none, as long as there are others.
    parts : the number of each, and what gives it to the cluster.

    Raises
    ------
    WorkerError
        The scheduler is lost, too many workers are lost while they compute a part, or none can compute it.
    SparseNNError
        As computing does.
    """
    given: dict[Any, tuple[int, Submit, int]] = {}
    avoided, most, looked = set(unfit), 0, -LOOK_SECONDS
    done: SimpleQueue[Any] = SimpleQueue()

    def give(number: int, submit: Submit, attempt: int) -> None:
        there = [worker for worker in client.nthreads() if worker not in avoided] if avoided else []
        future = submit(workers=there or None, allow_other_workers=bool(there))
        given[future] = number, submit, attempt
        future.add_done_callback(done.put)

    def fill() -> None:
        nonlocal most, looked
        if time.monotonic() >= looked + LOOK_SECONDS:
            most, looked = AHEAD * max(1, sum(client.nthreads().values())), time.monotonic()
        while len(given) < most and (following := next(parts, None)) is not None:
            give(*following, 1)

    try:
        with told_in_a_line(client):
            fill()
            while given:
                future = _next_done(client, done)
                number, submit, attempt = given.pop(future)
                try:
                    made = future.result()
                except WorkerError as error:
                    if attempt == ATTEMPTS:
                        raise
                    avoided.add(str(error).removeprefix("worker ").partition(": ")[0])
                    future.release()
                    give(number, submit, attempt + 1)
                else:
                    future.release()
                    yield number, made
                    fill()
    finally:
        with suppress(Exception):
            client.cancel(list(given))


def _next_done(client: Any, done: SimpleQueue[Any]) -> Any:
    """Wait for a future that is done.

    Raises
    ------
    WorkerError
        Meanwhile the cluster has had no worker for long.
    """
    alone = 0.0
    while True:
        with suppress(Empty):
            return done.get(timeout=LOOK_SECONDS)
        alone = 0.0 if client.nthreads() else alone + LOOK_SECONDS
        if alone >= WAIT_SECONDS:
            raise WorkerError(
                f"the cluster at {address_of(client)} has lost all its workers; start some, and resume the run"
            )


def address_of(client: Any) -> str:
    """Return the address of a client's scheduler."""
    return str(getattr(client.scheduler, "address", None) or client)


def connected(scheduler: str) -> Any:
    """Return a client of the scheduler at an address.

    Raises
    ------
    WorkerError
        There is none.
    """
    try:
        return distributed_library().Client(scheduler, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise WorkerError(f"there is no scheduler at {scheduler} ({_one_line(error)})") from error


async def _open_there(name: NetworkName, options: Options) -> Sizes | SparseNNError:
    """Have a worker open a session, beside the loop that answers the cluster."""
    return await asyncio.to_thread(open_session, name, options)


def _unfit(name: NetworkName, place: str, faults: dict[str, BaseException]) -> SparseNNError:
    """Return the error for a cluster of which no worker is fit: the first one's, and how many more there are."""
    worker, fault = next(iter(faults.items()))
    if isinstance(fault, SparseNNError) and not isinstance(fault, WorkerError):
        return fault
    others = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
    return WorkerError(f"no worker of the cluster at {place} can run {name}: worker {worker}{others}: {fault}")


def _explained(error: BaseException, place: str) -> WorkerError:
    """Return what Dask raised as one line."""
    kind = type(error).__name__
    if kind == "KilledWorker":
        last = getattr(error, "last_worker", None)
        where = f", the last at {last.address}" if last is not None else ""
        times = getattr(error, "allowed_failures", 3) + 1
        return WorkerError(
            f"the workers that computed some rows were lost, {times} in all{where}, perhaps for lack of "
            f"memory; use fewer rows at a time (piece)"
        )
    if "Cancelled" in kind or isinstance(error, OSError | TimeoutError | asyncio.CancelledError):
        return WorkerError(
            f"the scheduler at {place} is lost; what has been written is kept: --resume continues from there"
        )
    return WorkerError(f"a worker of the cluster at {place} failed: {kind}: {_one_line(error)}")


def _here() -> str:
    """Return the address of the worker that this is."""
    with suppress(ValueError):
        return str(distributed_library().get_worker().address)
    return "in this process"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
