"""The work of a cluster's workers: a session in each process, and what it makes of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from sparsenn import __version__
from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.cluster.rows import FileRows
from sparsenn.distributed.digests import content_digest, file_digest, rows_digest
from sparsenn.distributed.pieces import Piece
from sparsenn.engine import Session
from sparsenn.engine.options import Options
from sparsenn.errors import InputError, UsageError, WorkerError
from sparsenn.formats import Array
from sparsenn.network import Network
from sparsenn.printable import kind_of

MOST_SESSIONS = 4
"""Sessions that a process caches; the least recently used one goes first."""

_lock = Lock()


class Sizes(NamedTuple):
    """Widths, number of layers, multiply-adds of one input, and whether a network is computed in float64 by default."""

    inputs: int
    outputs: int
    layers: int
    edges: int
    needs_float64: bool = False


@dataclass(frozen=True)
class Work:
    """A network with the options of its sessions; Dask holds it as the result of a task, and brings it to workers.

    digest : of the network, or of its file.
    source : the network, or the absolute path of a file that each process reads.
    prepare : what is done to rows first; None for nothing.
    version : of sparsenn where tasks are made; workers must have the same, lest they compute otherwise.
    """

    digest: str
    options: Options
    source: Network | str = field(compare=False)
    prepare: Callable[[Any], Any] | None = field(default=None, compare=False)
    version: str = __version__

    def begin(self, part: Any = None) -> tuple[Session, Any, str]:
        """Return this process's session, and the rows of a part, read from a file, prepared, and their digest."""
        with _worker_named():
            with _lock:
                session = _session_of(self)
            rows = part.read() if isinstance(part, FileRows) else part
        digest = "" if rows is None else rows_digest(rows)  # preparing may change the rows themselves
        return session, rows if self.prepare is None or rows is None else self.prepare(rows), digest


def work_for(
    network: Network | str | os.PathLike[str], options: Options, prepare: Callable[[Any], Any] | None = None
) -> Work:
    """Return the work of a network, which may be the file of a model or a dataset."""
    if isinstance(network, Network):
        return Work(content_digest(network), options, network, prepare)
    if not isinstance(network, str | os.PathLike):
        raise UsageError(f"the network is {kind_of(network)}; give a sparsenn.Network, or the path of a file")
    path = Path(os.path.abspath(network))  # noqa: PTH100  not resolved: workers may have other links
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file (challenge convert makes one), or sparsenn.load(…).network")
    return Work(file_digest(path), options, os.fspath(path), prepare)


def sizes_of(work: Work) -> Sizes:
    """Open a session, and return the sizes of its network."""
    network = work.begin()[0].network
    return Sizes(network.inputs, network.outputs, len(network), network.multiply_adds, network.needs_float64)


def block_of(part: Any, work: Work, form: str) -> Any:
    """Return the outputs of rows: dense, or csr of SciPy."""
    session, rows, _ = work.begin(part)
    if form == "dense":
        return session(rows, form=form)
    return session.run(rows, statistics=False).outputs.to_scipy()  # rows of zeros are never made


def piece_of(part: Any, work: Work, wanted: str) -> tuple[Piece, Array | None]:
    """Return the record of rows, and of their outputs `all`, `classes` (the largest of each row), or `none`."""
    session, rows, digest = work.begin(part)
    result = session.run(rows, statistics=False)
    outputs = None if wanted == "none" else result.dense
    if outputs is not None and wanted == "classes":
        outputs = outputs.argmax(axis=1)
    return Piece(result.inputs, digest, result.categories.tolist()), outputs


@lru_cache(maxsize=MOST_SESSIONS)
def _session_of(work: Work) -> Session:
    if work.version != __version__:
        raise WorkerError(
            f"sparsenn is {__version__} there, and {work.version} where the tasks are made; install the same version "
            "on both"
        )
    network = work.source if isinstance(work.source, Network) else _read(Path(work.source), work.digest)
    return Session._anew(network, work.options, in_order=True)


def _read(path: Path, digest: str) -> Network:
    try:
        found = file_digest(path)
    except InputError as error:
        raise WorkerError(f"{error}; copy the file there, or put it on a shared disk") from error
    if found != digest:
        raise WorkerError(f"{path}: is a different file there (SHA-256 {found[:12]}…, not {digest[:12]}…); copy it")
    from sparsenn.io import is_model, read_dataset, read_model

    read: Any = read_model(path) if is_model(path) else read_dataset(path, limit_inputs=1)
    network: Network = read.network
    return network


@contextmanager
def _worker_named() -> Iterator[None]:
    """Have what keeps a worker from its work name the worker."""
    try:
        yield
    except WorkerError as error:
        place = "in this process"
        with suppress(ValueError):
            place = dask_module("distributed").get_worker().address
        raise WorkerError(f"worker {place}: {error}") from error
