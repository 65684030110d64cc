"""In each worker: a session for every network and options that tasks name, made once and kept.

Tasks name a network by its digest, and by a path if it is a file. So no task holds a network: a file must be on the
worker, under that path and with that content; a network that is an object is sent to every worker of a cluster once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from sparsenn import __version__
from sparsenn.distributed.digests import content_digest, file_digest
from sparsenn.engine import Session
from sparsenn.engine.options import Options
from sparsenn.errors import InputError, UsageError, WorkerError
from sparsenn.network import Network
from sparsenn.printable import kind_of

__all__ = ["NetworkName", "Sizes", "keep_network", "name_of", "session_of", "sizes_of"]

MOST_SESSIONS = 4
"""Sessions that a process keeps at a time; the one that was used least recently goes first."""


@dataclass(frozen=True)
class NetworkName:
    """What tasks know of a network.

    Parameters
    ----------
    digest : of the file, or of the network where it is an object.
    path : of the file, absolute; None for an object.
    version : of sparsenn, where the tasks are made; workers must have the same, lest they compute otherwise.
    """

    digest: str
    path: str | None
    version: str = __version__

    def __str__(self) -> str:
        return self.path or f"the network {self.digest[:12]}"


class Sizes(NamedTuple):
    """Widths, number of layers, multiply-adds of one input, and whether a network is computed in float64 by default."""

    inputs: int
    outputs: int
    layers: int
    edges: int
    needs_float64: bool = False


_networks: dict[str, Network] = {}
_sessions: OrderedDict[tuple[NetworkName, Options], Session] = OrderedDict()
_lock = Lock()


def name_of(network: Network | str | os.PathLike[str]) -> NetworkName:
    """Return the name of a network, which may be the file of a model or a dataset; an object is kept in this process.

    Raises
    ------
    UsageError
        It is neither a network nor a path.
    InputError
        The file is not there or cannot be read.
    """
    if isinstance(network, Network):
        digest = content_digest(network)
        keep_network(digest, network)
        return NetworkName(digest, None)
    if not isinstance(network, str | os.PathLike):
        raise UsageError(f"the network is {kind_of(network)}; give a sparsenn.Network, or the path of a file")
    path = Path(os.path.abspath(network))  # noqa: PTH100  not resolved: workers may have other links
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file (challenge convert makes one), or sparsenn.load(…).network")
    return NetworkName(file_digest(path), os.fspath(path))


def keep_network(digest: str, network: Network) -> None:
    """Keep a network in this process, for the tasks that name it."""
    _networks[digest] = network


def session_of(name: NetworkName, options: Options) -> Session:
    """Return this process's session for a network and options, made if there is none yet.

    Raises
    ------
    WorkerError
        This process cannot have it: it has no such file, or another one of that path, was not given the network, or
        runs another version of sparsenn.
    SparseNNError
        As reading and `Session` do.
    """
    with _lock:
        key = name, options
        if key not in _sessions:
            network = _network_of(name)
            while len(_sessions) >= MOST_SESSIONS:
                _sessions.popitem(last=False)
            _sessions[key] = Session._in_order(network, options)
        _sessions.move_to_end(key)
        return _sessions[key]


def sizes_of(network: Network) -> Sizes:
    """Return what those need to know of a network who do not have it."""
    return Sizes(network.inputs, network.outputs, len(network), network.multiply_adds, network.needs_float64)


def _network_of(name: NetworkName) -> Network:
    if name.version != __version__:
        raise WorkerError(
            f"sparsenn is {__version__} there, and {name.version} where the tasks are "
            f"made; install the same version on both"
        )
    if name.path is None:
        if name.digest not in _networks:
            raise WorkerError(f"{name} has not been sent there; create the tasks again, with the cluster's client")
        return _networks[name.digest]
    path = Path(name.path)
    try:
        found = file_digest(path)
    except InputError as error:
        raise WorkerError(f"{error}; copy the file there, or put it on a shared disk") from error
    if found != name.digest:
        raise WorkerError(
            f"{path}: is a different file there (SHA-256 {found[:12]}…, not {name.digest[:12]}…); copy it"
        )
    from sparsenn.io import is_model, read_dataset, read_model

    read: Any = read_model(path) if is_model(path) else read_dataset(path, limit_inputs=1)
    network: Network = read.network
    return network
