"""The part of `sparsenn challenge run` that has a Dask cluster run the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparsenn.cli.cluster_options import Cluster

if TYPE_CHECKING:
    from rich.table import Table

    from sparsenn.distributed.cluster.api import ClusterRun
    from sparsenn.report import Verification

__all__ = ["client_of", "cluster_record", "cluster_summary"]


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
    """Return a run as plain Python values: those of `ClusterRun`, categories counted from 1, its rate, and verified."""
    from sparsenn.report.records import plain

    record = asdict(run) | {"output": str(run.output), "categories": (run.categories + 1).tolist()}
    values: dict[str, Any] = plain(record | {"edges_per_second": run.edges_per_second, "verified": verified})
    return values
