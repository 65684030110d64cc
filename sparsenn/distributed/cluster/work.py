"""The work of Dask's workers: a session in each process, and its outputs for rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from sparsenn import __version__
from sparsenn.distributed.cluster.library import dask_module
from sparsenn.distributed.digests import content_digest
from sparsenn.engine import Session
from sparsenn.engine.options import Options
from sparsenn.errors import UsageError, WorkerError
from sparsenn.formats import CSR, Array
from sparsenn.io import is_model, read_dataset, read_model
from sparsenn.io.bounded import reading
from sparsenn.io.tables.row_source import checked, faults_reported, opened_rows
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.runtime.storage import file_sha256

MOST_SESSIONS = 4
"""Sessions that a process caches; the least recently used one goes first."""

_lock = Lock()


@dataclass(frozen=True)
class FileRows:
    """Rows of a file, by its absolute path, that a worker reads: from `first`, counted from 0, to before `last`."""

    path: str
    width: int
    first: int
    last: int

    def read(self) -> CSR | Array:
        """Return the rows."""
        _check_there(Path(self.path))
        with opened_rows(self.path, self.width) as source:
            if source.rows is None or source.rows < self.last:
                raise WorkerError(f"{self.path}: has {source.rows} rows there, not {self.last:,} or more; copy it")
            with faults_reported(self.path, self.first):
                return checked(next(source.pieces(self.last - self.first, self.first)))


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
    with reading(path):
        return Work(file_sha256(path), options, os.fspath(path), prepare)


def block_of(part: Any, work: Work, form: str) -> Any:
    """Return the outputs of rows, or of those that a part of a file holds: dense, or csr of SciPy."""
    try:
        with _lock:
            session = _session_of(work)
        rows: Any = part.read() if isinstance(part, FileRows) else part
    except WorkerError as error:
        place = "in this process"
        with suppress(ValueError):
            place = dask_module("distributed").get_worker().address
        raise WorkerError(f"worker {place}: {error}") from error
    rows = rows if work.prepare is None else work.prepare(rows)
    if form == "dense":
        return session(rows, form=form)
    return session.run(rows, statistics=False).outputs.to_scipy()  # rows of zeros are never made


@lru_cache(maxsize=MOST_SESSIONS)
def _session_of(work: Work) -> Session:
    if work.version != __version__:
        raise WorkerError(
            f"sparsenn is {__version__} there, and {work.version} where the tasks are made; install the same version "
            "on both"
        )
    return Session._anew(network_of(work), work.options, in_order=True)


def network_of(work: Work) -> Network:
    """Return the network of some work, which may be that of a file."""
    if isinstance(work.source, Network):
        return work.source
    path = Path(work.source)
    _check_there(path)
    with reading(path):
        found = file_sha256(path)
    if found != work.digest:
        raise WorkerError(
            f"{path}: is a different file there (SHA-256 {found[:12]}…, not {work.digest[:12]}…); copy it"
        )
    read: Any = read_model(path) if is_model(path) else read_dataset(path, limit_inputs=1)
    network: Network = read.network
    return network


def _check_there(path: Path) -> None:
    if not path.exists():
        raise WorkerError(f"{path}: no such file there; copy it there, or put it on a shared disk")
