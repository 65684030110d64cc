"""The part of `sparsenn infer` that runs samples in pieces, as they come from a file: here, or on a cluster."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenn.cli.cluster import client_of, deliver_cluster_run
from sparsenn.cli.cluster_options import Cluster
from sparsenn.cli.console import console, reporting
from sparsenn.cli.targets import STDOUT, ResultTargets, drawing, write_json, write_page
from sparsenn.errors import UsageError
from sparsenn.runtime.spans import span

if TYPE_CHECKING:
    from sparsenn.distributed.cluster.api import ClusterRun
    from sparsenn.engine import Result
    from sparsenn.formats import Array
    from sparsenn.io import Dataset
    from sparsenn.network import Network
    from sparsenn.report import Verification
    from sparsenn.runtime.progress import Progress

__all__ = ["InPieces", "run_dataset_in_pieces", "run_model_in_pieces"]


@dataclass(frozen=True)
class InPieces:
    """How samples are run in pieces.

    Parameters
    ----------
    samples : the file that they are in; None for the inputs of a dataset that is no file, which a cluster runs.
    how : the options of `sparsenn.stream`, or of `sparsenn.distributed.infer`.
    files : where results go, besides the summary.
    resume : whether to resume an earlier run.
    cluster : what runs them; None for this process.
    progress : whether to report it on stderr; None only on a terminal.
    """

    samples: Path | None
    how: dict[str, Any]
    files: ResultTargets
    resume: bool
    cluster: Cluster | None
    progress: bool | None


def run_dataset_in_pieces(source: str, run: InPieces, what: dict[str, Any], verify: bool | None) -> bool:
    """Run a dataset's network on samples; return whether the categories are right, as far as they are known.

    Parameters
    ----------
    source : the dataset; of its inputs none but the first is read, unless they are the samples.
    run : how.
    what : the options of `sparsenn.load`.
    verify : whether to hold the categories against the truth; None where there is one.

    Raises
    ------
    SparseNNError
        As reading and running do; or the truth is to be looked at, and is not known.
    """
    from sparsenn.datasets import load
    from sparsenn.report import compare_categories

    with reporting(run.progress) as report:
        first = what if run.samples is None else {**what, "limit_inputs": 1}
        dataset = load(source, **first, progress=report)
        truth = _truth(source, dataset, run.samples)
        if verify and truth is None:
            raise UsageError(
                f"--verify: {run.samples or source} holds no truth to verify against; leave the option out"
            )
        samples = dataset.inputs if run.samples is None else run.samples
        result = _run(run, dataset.network, _is_whole(source, what), samples, report)
    verdict: Verification | str = "not done (--no-verify)" if truth is not None else "no truth to verify against"
    if truth is not None and verify is not False:
        verdict = compare_categories(result.categories, truth)
    _deliver(_named(dataset.name, run.samples), result, verdict, run.files)
    return isinstance(verdict, str) or verdict.passed


def run_model_in_pieces(source: str, run: InPieces) -> bool:
    """Run a model on samples; return True.

    Raises
    ------
    SparseNNError
        As reading and running do; or the model takes tables, whose columns have names and texts.
    """
    from sparsenn.io import read_model

    path = Path(source)
    model = read_model(path)
    if model.encoding is not None:
        raise UsageError(f"{path} was trained on a table, whose columns have names: run it on --inputs as a whole")
    scores = model.classes and model.network.outputs > 1
    classes = scores and run.files.output is not None and run.files.output.suffix.lower() == ".npy"
    prepare = None if model.scaling is None else model.scaling.apply
    with reporting(run.progress) as report:
        result = _run(run, model.network, path, run.samples, report, prepare=prepare, classes=classes)
    _deliver(_named(path.name, run.samples), result, "of datasets only", run.files)
    return True


def _run(
    run: InPieces,
    network: Network,
    file: Path | None,
    samples: Any,
    report: Progress,
    *,
    prepare: Callable[[Any], Any] | None = None,
    classes: bool = False,
) -> Result | ClusterRun:
    """Run samples here or on a cluster, whose workers read the network from its file, where it has one of its own."""
    options = {"resume": run.resume, "prepare": prepare, "classes": classes, "progress": report, **run.how}
    if run.cluster is None:
        from sparsenn.distributed import stream

        with span(f"stream {Path(samples).name}", "run"):
            return stream(network, samples, run.files.output, **options)
    from sparsenn.distributed import infer

    with (
        client_of(run.cluster, run.how["device"]) as client,
        tempfile.TemporaryDirectory(prefix="sparsenn-") as scratch,
    ):
        output = run.files.output or Path(scratch, "found.tsv")
        found: ClusterRun = infer(file or network, samples, client, output=output, piece=run.cluster.piece, **options)
        return found


def _is_whole(source: str, what: dict[str, Any]) -> Path | None:
    """Return the file that a dataset's network is that of, as it is; None where there is none."""
    path = Path(source)
    changed = any(value is not None for value in what.values())
    return path if path.is_file() and not changed else None


def _truth(source: str, dataset: Dataset, samples: Path | None) -> Array | None:
    """Return the true categories of the samples, which are known where they are the dataset's own."""
    if samples is None or dataset.truth is None:
        return dataset.truth
    from sparsenn.io.hdf5.dataset import read_categories

    place = Path(source)
    own = place.is_file() and samples.is_file() and place.samefile(samples)
    return read_categories(samples) if own else None


def _named(name: str, samples: Path | None) -> str:
    return name if samples is None else f"{name}, rows of {samples.name}"


def _deliver(name: str, result: Result | ClusterRun, verdict: Verification | str, files: ResultTargets) -> None:
    """Print the summary and write what was asked for, but the output, which is there."""
    from sparsenn.engine import Result
    from sparsenn.report import draw_layers, layer_table, summary, to_json, to_record

    if not isinstance(result, Result):
        deliver_cluster_run(name, result, verdict, files)
        return
    screen = console(sys.stderr if files.json == STDOUT else sys.stdout)
    screen.print(summary(name, result, verdict))
    if files.stats and result.statistics:
        screen.print(layer_table(result.statistics))
    if files.json is not None:
        write_json(files.json, to_json(to_record(result, None if isinstance(verdict, str) else verdict.passed)))
    if files.plot is not None and result.statistics:
        with drawing(files.plot):
            draw_layers(result.statistics, files.plot, name)
    if files.report is not None:
        from sparsenn.report.page import inference_page

        write_page(files.report, inference_page(name, result, verdict))
