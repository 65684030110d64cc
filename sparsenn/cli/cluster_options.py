"""The options that have rows run by a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import typer

from sparsenn.errors import UsageError

__all__ = ["Cluster", "Piece", "Scheduler", "Workers", "cluster_from"]


Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786; workers read files under the "
        "same paths.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Run on this many processes on this machine: each has its own GPU, if there are any, or else its "
        "share of the cores.",
    ),
]
Piece = Annotated[int | None, typer.Option(metavar="K", min=1, help="Samples given to a worker at a time.")]


@dataclass(frozen=True)
class Cluster:
    """What runs rows in place of a session.

    Parameters
    ----------
    scheduler : address of its scheduler; None for a cluster of this machine.
    workers : processes of this machine; None with a scheduler.
    piece : rows handed out at a time; None leaves it to the program.
    """

    scheduler: str | None
    workers: int | None
    piece: int | None


def cluster_from(scheduler: str | None, workers: int | None, piece: int | None) -> Cluster | None:
    """Return the cluster that the options ask for; None if they ask for none."""
    if scheduler is None and workers is None:
        if piece is not None:
            raise UsageError("--piece goes with --workers or --scheduler; leave it out")
        return None
    if scheduler is not None and workers is not None:
        raise UsageError("--scheduler names a cluster and --workers starts one on this machine; give one of them")
    if find_spec("distributed") is None:
        raise UsageError('clusters need the packages dask and distributed: pip install "dask[array]" distributed')
    return Cluster(scheduler, workers, piece)
