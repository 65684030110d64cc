"""The part of `sparsenn infer` that has a Dask cluster run the rows."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sparsenn.cli.cluster_options import Cluster
from sparsenn.cli.console import console, reporting
from sparsenn.cli.evaluate import Rows, data_for, model_for
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.targets import HDF5_SUFFIXES, STDOUT, ResultTargets, is_hdf5, write_json
from sparsenn.errors import UsageError

if TYPE_CHECKING:
    from sparsenn.distributed.cluster.pieces import Pieces
    from sparsenn.formats import Array
    from sparsenn.io import Model
    from sparsenn.progress import Progress
    from sparsenn.report.cluster import ClusterRun

__all__ = ["infer_on_cluster"]


def infer_on_cluster(
    source: str,
    what: Rows | dict[str, Any],
    how: dict[str, Any],
    verify: bool | None,
    files: ResultTargets,
    cluster: Cluster,
    progress: bool | None,
) -> None:
    """Have a cluster run a dataset, or a model on rows; print how it went, and write what is asked for.

    Parameters
    ----------
    source : the dataset or the model.
    what : the rows of a model; of a dataset the options of `sparsenn.load`.
    how : the options of `sparsenn.Session`.
    verify : whether the categories of a dataset are compared with the truth; None: where there is one.
    files : where results go, besides the summary.
    cluster : what runs the rows.
    progress : whether to report it on stderr; None only on a terminal.

    Raises
    ------
    SparseNNError
        As reading, `sparsenn.distributed.infer` and writing do.
    Exit
        The categories are not the true ones.
    """
    with reporting(progress) as report, _client(cluster, how["device"]) as client:
        if isinstance(what, Rows):
            _run_model(Path(source), what, _Running(client, cluster, how, files, report))
            return
        passed = _run_dataset(source, what, verify, _Running(client, cluster, how, files, report))
    if not passed:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


class _Running:
    """A cluster that is there, and what is to be done with it."""

    def __init__(
        self, client: Any, cluster: Cluster, how: dict[str, Any], files: ResultTargets, report: Progress
    ) -> None:
        self._client, self._cluster, self._how = client, cluster, how
        self.files, self.report = files, report

    @contextmanager
    def pieces(self, network: Any, rows: Any, form: str) -> Iterator[tuple[Pieces, ClusterRun]]:
        """Yield the outputs, and how they were computed; those that go into a file are removed at the end."""
        from sparsenn.distributed import infer
        from sparsenn.report.cluster import ClusterRun

        output = self.files.output
        with tempfile.TemporaryDirectory(prefix="sparsenn-", ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch, "pieces") if output is None else output
            joined = output is not None and bool(output.suffix)
            if joined:
                folder = folder.with_name(f"{folder.name}.pieces")
            start = time.perf_counter()
            found = infer(
                *(network, rows, self._client),
                output=folder,
                resume=self._cluster.resume,
                piece=self._cluster.piece,
                form=form,
                progress=self.report,
                **self._how,
            )
            seconds = time.perf_counter() - start
            workers, place = len(self._client.nthreads()), self._client.scheduler.address
            yield (
                found,
                ClusterRun(place, workers, found.rows, len(found), found.resumed, found.run.sizes.edges, seconds),
            )
            if joined:
                shutil.rmtree(folder, ignore_errors=True)

    def told(self, table: Any, record: dict[str, Any]) -> None:
        """Print a summary, and write the record where it is asked for."""
        from sparsenn.report import to_json

        console(sys.stderr if self.files.json == STDOUT else sys.stdout).print(table)
        if self.files.json is not None:
            write_json(self.files.json, to_json(record))


@contextmanager
def _client(cluster: Cluster, device: str) -> Iterator[Any]:
    """Yield the client of a cluster, which is started if it is one of this machine."""
    if cluster.scheduler is None:
        from sparsenn.distributed import local_cluster

        with local_cluster(cluster.workers, device=device) as client:
            yield client
        return
    from sparsenn.distributed.cluster.gathering import connected

    with connected(cluster.scheduler) as client:
        yield client


def _run_dataset(source: str, what: dict[str, Any], verify: bool | None, running: _Running) -> bool:
    """Run a dataset and deliver its categories; return whether they are the true ones, as far as that is known."""
    from sparsenn.report import compare_categories
    from sparsenn.report.cluster import dataset_record, dataset_summary

    name, network, rows, truth = _dataset(source, what, running.report)
    if verify and truth is None:
        raise UsageError(f"--verify: {name} holds no truth to verify against; leave the option out")
    with running.pieces(network, rows, "csr") as (pieces, run):
        found = pieces.categories()
        verdict = None if truth is None or verify is False else compare_categories(found, truth)
        if running.files.output is not None and running.files.output.suffix:
            _write_dataset_output(running.files.output, name, pieces, found)
        reason = "no truth to verify against" if truth is None else "not done (--no-verify)"
        sizes = pieces.run.sizes
        table = dataset_summary(name, run, sizes.inputs, sizes.layers, found.size, verdict or reason)
        passed = None if verdict is None else verdict.passed
        running.told(table, dataset_record(run, sizes.inputs, sizes.layers, found, passed))
    return passed is not False


def _dataset(source: str, what: dict[str, Any], report: Progress) -> tuple[str, Any, Any, Array | None]:
    """Return a dataset's name, network, rows and truth; the first two as the file's name where workers can read it."""
    from sparsenn.datasets import load
    from sparsenn.io.hdf5 import read_truth

    path = Path(source)
    if (
        path.suffix.lower() in HDF5_SUFFIXES
        and path.is_file()
        and not any(value is not None for value in what.values())
    ):
        return path.stem, path, path, read_truth(path)
    dataset = load(source, **what, progress=report)
    return dataset.name, dataset.network, dataset.inputs, dataset.truth


def _write_dataset_output(path: Path, name: str, pieces: Pieces, categories: Array) -> None:
    from sparsenn.formats import CSR
    from sparsenn.io import write_categories, write_result

    if is_hdf5(path):
        write_result(path, CSR.from_scipy(pieces.outputs()), categories, {"dataset": name})
    else:
        write_categories(path, categories)


def _run_model(path: Path, rows: Rows, running: _Running) -> None:
    """Run a model on rows, and deliver what it gives for them."""
    from sparsenn.errors import ShapeError
    from sparsenn.io.model_output import write_model_output
    from sparsenn.report.cluster import model_record, model_summary
    from sparsenn.training.inference import check_targets, judged, rows_for

    model = model_for(path, rows)
    try:
        data = data_for(model, rows)
        check_targets(model, data)
        given = rows_for(model, data)
    except ShapeError as error:
        raise ShapeError(f"{rows.inputs} does not fit {path}: {error}") from error
    changed = rows.prune is not None or rows.steps is not None
    with running.pieces(model.network if changed else path, given, "dense") as (pieces, run):
        outputs = pieces.outputs()
        evaluation = judged(model, data, outputs)
        predicted = outputs.argmax(axis=1) if model.classes else None
        output = running.files.output
        if output is not None and output.suffix:
            names = None if model.encoding is None else model.encoding.targets
            write_model_output(output, outputs, predicted, _notes(path, model), model.class_names, names)
        running.told(
            model_summary(path.name, rows.inputs.name, run, evaluation),
            model_record(str(path), str(rows.inputs), run, evaluation, predicted),
        )


def _notes(path: Path, model: Model) -> dict[str, str]:
    from sparsenn.io.model import PRUNED

    return {"model": path.name, **{key: told for key, told in model.provenance.items() if key == PRUNED}}
