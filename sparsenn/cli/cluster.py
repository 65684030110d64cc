"""The part of `sparsenn challenge run` that has a Dask cluster run the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsenn.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from sparsenn.distributed.cluster.api import ClusterRun
    from sparsenn.report import Verification

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
    """A Dask cluster that runs rows in place of a session.

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


@contextmanager
def client_of(cluster: Cluster, device: str) -> Iterator[Any]:
    """Yield the client of a cluster, which is started if it is one of this machine.

    Dask's own logs of lost connections are silenced: this program reports each loss in a line.
    """
    import dask

    from sparsenn.distributed import local_cluster
    from sparsenn.distributed.cluster.tasks import connected

    silent = dict.fromkeys(("distributed", "distributed.client", "distributed.comm"), "critical")
    with dask.config.set({"logging": silent}):  # read when distributed is imported
        scheduler = cluster.scheduler
        made = local_cluster(cluster.workers, device=device) if scheduler is None else connected(scheduler)
        with made as client:
            yield client


def cluster_summary(name: str, run: ClusterRun, verdict: Verification | str) -> Table:
    """Return the summary of a cluster's run as a table of two columns."""
    from rich.text import Text

    from sparsenn.report.quantities import count, duration, rate
    from sparsenn.report.tables import TEXT_WIDTH, fact_table

    shown = f"{count(run.rows)} samples × {count(run.inputs)} neurons × {count(run.layers)} layers"
    style = "" if isinstance(verdict, str) else "bold green" if verdict.passed else "bold red"
    resumed = f"; {count(run.resumed)} rows were done by an earlier run" if run.resumed else ""
    workers = f"{count(run.workers)} worker{'' if run.workers == 1 else 's'}"
    rows = f", {count(round((run.rows - run.resumed) / run.seconds))} rows/s" if run.seconds else ""
    return fact_table(
        [
            ("run", name),
            ("problem", f"{shown}, {count(run.edges)} edges"),
            ("cluster", f"{workers}, scheduler at {run.scheduler}"),
            ("pieces", f"{count(run.pieces)}{resumed}"),
            ("time", f"{duration(run.seconds)}{rows}"),
            ("rate", f"{rate(run.edges_per_second)} (samples × edges / time)"),
            ("categories", f"{count(run.categories.size)} of {count(run.rows)} samples; files count samples from 1"),
            ("verification", Text(str(verdict), style=style)),
        ],
        TEXT_WIDTH,
    )


def cluster_record(run: ClusterRun, verified: bool | None) -> dict[str, Any]:
    """Return a run for JSON: the values of `ClusterRun`, categories counted from 1, its rate, and verified."""
    shown = {"output": str(run.output), "categories": (run.categories + 1).tolist()}
    return asdict(run) | shown | {"edges_per_second": run.edges_per_second, "verified": verified}
