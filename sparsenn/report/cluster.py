"""What a cluster of sessions ran, as text and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.backends.trainer import Evaluation
from sparsenn.formats import Array
from sparsenn.report.quantities import count, duration, rate
from sparsenn.report.records import plain
from sparsenn.report.tables import fact_table
from sparsenn.report.training import evaluation_text
from sparsenn.report.verification import Verification

__all__ = ["ClusterRun", "dataset_record", "dataset_summary", "model_record", "model_summary"]

_TEXT_WIDTH = 100
"""Columns at which a long text is broken."""


@dataclass(frozen=True)
class ClusterRun:
    """How a cluster ran some rows.

    Parameters
    ----------
    scheduler : its address.
    workers : how many there were at the end.
    rows, pieces : how many there are in all.
    resumed : rows that an earlier run had computed.
    edges : multiply-adds of a row.
    seconds : from the first task to the last piece written; without what starts a cluster, and reads the dataset.
    """

    scheduler: str
    workers: int
    rows: int
    pieces: int
    resumed: int
    edges: int
    seconds: float

    @property
    def computed(self) -> int:
        """Rows that this run computed."""
        return self.rows - self.resumed

    @property
    def edges_per_second(self) -> float:
        """The challenge's rate: rows × edges / seconds, dead rows included."""
        return self.computed * self.edges / self.seconds if self.seconds else 0.0


def dataset_summary(
    name: str, run: ClusterRun, neurons: int, layers: int, categories: int, verdict: Verification | str
) -> Table:
    """Return the summary of a dataset's run.

    Parameters
    ----------
    name : what the dataset is called.
    run : how it was run.
    neurons, layers : of the network.
    categories : how many were found.
    verdict : the verification, or the reason why there is none.
    """
    shown = f"{count(run.rows)} inputs × {count(neurons)} neurons × {count(layers)} layers, {count(run.edges)} edges"
    style = "" if isinstance(verdict, str) else "bold green" if verdict.passed else "bold red"
    return fact_table(
        [
            ("dataset", name),
            ("problem", shown),
            *_facts(run),
            ("rate", f"{rate(run.edges_per_second)} (inputs × edges / time)"),
            ("categories", f"{count(categories)} of {count(run.rows)} inputs; files and JSON count inputs from 1"),
            ("verification", Text(str(verdict), style=style)),
        ],
        _TEXT_WIDTH,
    )


def model_summary(model: str, data: str, run: ClusterRun, evaluation: Evaluation | None) -> Table:
    """Return the summary of a model's run on data.

    Parameters
    ----------
    model, data : what the two files are called.
    run : how it was run.
    evaluation : loss and accuracy; None where they are not known.
    """
    facts = [
        ("model", model),
        ("data", f"{data}, {count(run.rows)} rows"),
        *_facts(run),
        ("result", "no targets to compare with" if evaluation is None else evaluation_text(evaluation)),
    ]
    return fact_table(facts, _TEXT_WIDTH)


def dataset_record(
    run: ClusterRun, neurons: int, layers: int, categories: Array, verified: bool | None
) -> dict[str, Any]:
    """Return a dataset's run as a dictionary of plain Python values, fit for JSON.

    The keys are neurons, layers, those of `ClusterRun`, edges_per_second, categories (counted from 1) and verified.
    """
    record = {"neurons": neurons, "layers": layers, **asdict(run), "edges_per_second": run.edges_per_second}
    values: dict[str, Any] = plain(record | {"categories": (categories + 1).tolist(), "verified": verified})
    return values


def model_record(
    model: str, data: str, run: ClusterRun, evaluation: Evaluation | None, predicted: Array | None
) -> dict[str, Any]:
    """Return a model's run as a dictionary of plain Python values, fit for JSON.

    The keys are model, inputs, those of `ClusterRun`, loss, value, accuracy and predicted (the class of each row,
    counted from 0; None for a model that does not tell classes apart).
    """
    record = {
        "model": model,
        "inputs": data,
        **asdict(run),
        "loss": evaluation and evaluation.loss,
        "value": evaluation and evaluation.value,
        "accuracy": evaluation and evaluation.accuracy,
        "predicted": None if predicted is None else predicted.tolist(),
    }
    values: dict[str, Any] = plain(record)
    return values


def _facts(run: ClusterRun) -> list[tuple[str, str | Text]]:
    resumed = f"; {count(run.resumed)} rows were there already" if run.resumed else ""
    workers = f"{count(run.workers)} worker{'' if run.workers == 1 else 's'}"
    rows = f", {count(round(run.computed / run.seconds))} rows/s" if run.seconds else ""
    return [
        ("cluster", f"{workers}, scheduler at {run.scheduler}"),
        ("pieces", f"{count(run.pieces)}{resumed}"),
        ("time", f"{duration(run.seconds)}{rows}"),
    ]
