"""Files to be written: checked before the work that fills them begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sparsenn.errors import ResourceError, SparseNNError, UsageError

__all__ = [
    "HDF5_SUFFIXES",
    "PAGE_SUFFIXES",
    "STDOUT",
    "TRACE_SUFFIXES",
    "ResultTargets",
    "check_dataset_target",
    "check_plot",
    "check_target",
    "drawing",
    "is_hdf5",
    "tracing",
    "write_json",
    "write_page",
]

HDF5_SUFFIXES = (".h5", ".hdf5")
TRACE_SUFFIXES = (".json", ".json.gz")
PAGE_SUFFIXES = (".html", ".htm")

STDOUT = Path("-")
"""What stands for stdout where a file is asked for."""


@dataclass(frozen=True)
class ResultTargets:
    """Where the results of `sparsenn infer` go, besides the summary."""

    output: Path | None
    json: Path | None
    plot: Path | None
    trace: Path | None
    stats: bool
    report: Path | None = None

    def check(self, model: bool, in_pieces: bool = False) -> None:
        """Refuse whatever could not be written, before anything is computed.

        Parameters
        ----------
        model : whether a model is run, whose outputs may be written in more forms than the categories of a dataset.
        in_pieces : whether outputs are written as they come.
        """
        if self.output is not None and in_pieces:
            check_target(
                "--output", self.output, (".npy", *HDF5_SUFFIXES) if model else (".tsv", ".npy", *HDF5_SUFFIXES)
            )
        elif self.output is not None:
            from sparsenn.io.tables.predictions import PREDICTION_SUFFIXES

            check_target("--output", self.output, PREDICTION_SUFFIXES if model else (".tsv", *HDF5_SUFFIXES))
        check_target("--json", None if self.json == STDOUT else self.json)
        check_target("--trace", self.trace, TRACE_SUFFIXES)
        check_target("--report", self.report, PAGE_SUFFIXES)
        check_plot(self.plot)


def check_target(option: str, path: Path | None, suffixes: Collection[str] = ()) -> None:
    """Refuse a file that could not be written at the end, so that no long computation is lost.

    Parameters
    ----------
    option : the option or argument that names the file, for the message.
    path : the file; None where the option was not given.
    suffixes : those that the file may end in; any if empty.

    Raises
    ------
    UsageError
        The suffix is not one of `suffixes`, or the path names a folder, a socket or a disk.
    ResourceError
        The folder does not exist or cannot be written to; or the path leads to a device, a pipe or an open file (such
        as /dev/stdout) that cannot be.
    """
    from sparsenn.runtime.storage import is_stream

    if path is None:
        return
    if suffixes and not path.name.lower().lstrip(".").endswith(tuple(suffixes)):
        found = repr(path.suffix) if path.suffix else "no suffix"
        raise UsageError(f"{option} {path}: {found} does not name a known file type; use {', '.join(suffixes)}")
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise ResourceError(f"{option} {path}: is not open, or no permission to write to it")
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path}: is a {'folder' if path.is_dir() else 'socket or a disk'}, not a file")
    _check_folder(option, path, path.parent)


def check_plot(path: Path | None) -> None:
    """Refuse a picture that could not be written, as `check_target`, or not be drawn, as the library for it is missing.

    Parameters
    ----------
    path : what `--plot` names; None where it was not given.
    """
    if path is not None:
        from sparsenn.report.plots import PLOT_SUFFIXES, new_figure

        check_target("--plot", path, PLOT_SUFFIXES)
        with drawing(path):
            new_figure(1, 1)


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Have whatever goes wrong while a picture is drawn be one line: it is the last thing done, and costs no result.

    Raises
    ------
    ResourceError
        It cannot be drawn, for a reason of the library that draws.
    """
    try:
        yield
    except (SparseNNError, ImportError):
        raise
    except Exception as error:
        raise ResourceError(
            f"cannot draw {path}: {' '.join(str(error).split()) or type(error).__name__}; everything else is done"
        ) from error


def check_dataset_target(option: str, path: Path) -> None:
    """Refuse a place that a dataset could not be written to: an HDF5 file, or a folder that exists or can be made.

    Raises
    ------
    UsageError
        The name is that of another kind of file.
    ResourceError
        As `check_target`.
    """
    if path.is_dir():
        _check_folder(option, path, path)
    elif path.suffix or path.exists():
        check_target(option, path, HDF5_SUFFIXES)
    else:
        _check_folder(option, path, path.parent)


def is_hdf5(path: Path) -> bool:
    """Return whether a file's name says that it is HDF5."""
    return path.suffix.lower() in HDF5_SUFFIXES


def write_json(path: Path, document: str) -> None:
    """Write a JSON document to a file, replaced only when complete, or to stdout or another stream."""
    from sparsenn.runtime.storage import replacing

    if path == STDOUT:
        sys.stdout.write(document)
        return
    with replacing(path) as temporary:
        temporary.write_text(document, encoding="utf-8")


def write_page(path: Path, document: str) -> None:
    """Write an HTML page to a file, replaced only when complete."""
    from sparsenn.runtime.storage import replacing

    with replacing(path) as temporary:
        temporary.write_text(document, encoding="utf-8")


def tracing(path: Path | None) -> AbstractContextManager[None]:
    """Return what traces a block to a file, as `sparsenn.trace` does; nothing where none is named."""
    if path is None:
        return nullcontext()
    from sparsenn.backends.trace import trace

    return trace(path)


def _check_folder(option: str, path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise ResourceError(f"{option} {path}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ResourceError(f"{option} {path}: no permission to write into the folder {folder}")
