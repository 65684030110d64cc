"""The part of `sparsenn infer` that runs rows of a file which need not fit into memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsenn.cli.console import console, reporting
from sparsenn.cli.targets import STDOUT, ResultTargets, drawing, write_json
from sparsenn.errors import UsageError
from sparsenn.spans import span

if TYPE_CHECKING:
    from sparsenn.engine import Result
    from sparsenn.formats import Array
    from sparsenn.network import Network
    from sparsenn.report import Verification

__all__ = ["stream_dataset", "stream_model"]


def stream_dataset(
    source: str,
    rows: Path,
    *,
    what: dict[str, Any],
    how: dict[str, Any],
    files: ResultTargets,
    resume: bool,
    verify: bool | None,
    progress: bool | None,
) -> bool:
    """Run a dataset's network on the rows of a file; return whether the categories are right, as far as they are known.

    Parameters
    ----------
    source : the dataset; of its inputs none but the first is read, unless it is the file of rows.
    rows : a file of rows.
    what : the options of `sparsenn.load`.
    how : those of `sparsenn.distributed.stream`.
    files : where results go, besides the summary.
    resume : whether to go on with an earlier run.
    verify : whether to hold the categories against the truth; None where there is one.
    progress : whether to report it on stderr; None only on a terminal.

    Raises
    ------
    SparseNNError
        As reading and running do; or the truth is to be looked at, and is not known.
    """
    from sparsenn.datasets import load
    from sparsenn.report import compare_categories

    with reporting(progress) as report:
        dataset = load(source, **{**what, "limit_inputs": 1}, progress=report)
        truth = _truth(source, rows) if dataset.truth is not None else None
        if verify and truth is None:
            raise UsageError(f"--verify: {rows} holds no truth to verify against; leave the option out")
        result = _streamed(dataset.network, rows, how, files, resume, report)
    verdict: Verification | str = "not done (--no-verify)" if truth is not None else "no truth to verify against"
    if truth is not None and verify is not False:
        verdict = compare_categories(result.categories, truth)
    _deliver(f"{dataset.name}, rows of {rows.name}", result, verdict, files)
    return isinstance(verdict, str) or verdict.passed


def stream_model(
    source: str, rows: Path, *, how: dict[str, Any], files: ResultTargets, resume: bool, progress: bool | None
) -> bool:
    """Run a model on the rows of a file; return True. Parameters are those of `stream_dataset`.

    Raises
    ------
    SparseNNError
        As reading and running do; or the model takes tables, whose columns have names and texts.
    """
    from sparsenn.io import read_model

    path = Path(source)
    model = read_model(path)
    if model.encoding is not None:
        raise UsageError(f"{path} was trained on a table: leave out --stream; columns are then read by their names")
    scaling = model.scaling
    prepare = None if scaling is None else lambda found: scaling.apply(found, None)
    text = files.output is not None and files.output.suffix.lower() == ".npy"
    with reporting(progress) as report:
        more = {**how, "prepare": prepare, "classes": model.classes and text}
        result = _streamed(model.network, rows, more, files, resume, report)
    _deliver(f"{path.name}, rows of {rows.name}", result, "of datasets only", files)
    return True


def _streamed(
    network: Network, rows: Path, how: dict[str, Any], files: ResultTargets, resume: bool, report: Any
) -> Result:
    from sparsenn.distributed.streaming import stream

    with span(f"stream {rows.name}", "run"):
        return stream(network, rows, files.output, resume=resume, progress=report, **how)


def _truth(source: str, rows: Path) -> Array | None:
    """Return the true categories of a file of rows, which are known where it is the dataset itself."""
    from sparsenn.io.hdf5 import read_categories

    place = Path(source)
    return read_categories(rows) if place.is_file() and rows.is_file() and place.samefile(rows) else None


def _deliver(name: str, result: Result, verdict: Verification | str, files: ResultTargets) -> None:
    """Print the summary and write what was asked for, but the output, which is there."""
    from sparsenn.report import draw_layers, layer_table, summary, to_json, to_record

    screen = console(sys.stderr if files.json == STDOUT else sys.stdout)
    screen.print(summary(name, result, verdict))
    if files.stats and result.statistics:
        screen.print(layer_table(result.statistics))
    if files.json is not None:
        write_json(files.json, to_json(to_record(result, None if isinstance(verdict, str) else verdict.passed)))
    if files.plot is not None and result.statistics:
        with drawing(files.plot):
            draw_layers(result.statistics, files.plot, name)
