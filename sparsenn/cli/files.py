"""Files that a verb reads and writes: checked before the work begins, so that no long computation is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from sparsenn.errors import InputError, ResourceError, SparseNNError, UsageError
from sparsenn.io.files import kind_of
from sparsenn.runtime.storage import is_stream, replacing, same_file

HDF5_SUFFIXES = (".h5", ".hdf5")

STDOUT = Path("-")
"""Stands for stdout where a verb takes a file for its JSON."""

_SUFFIXES = {"--trace": (".json", ".json.gz"), "--report": (".html", ".htm"), "--plot": (".png", ".svg", ".pdf")}

Source = str | Path | None


def check_files(
    read: Mapping[str, Source], written: Mapping[str, Path | None], suffixes: Collection[str] | None = None
) -> None:
    """Refuse files that are missing, could not be written, or would be overwritten, however their names are spelt.

    read : files by the option or argument that names them, None where it is absent; a text may also name a dataset.
    written : files to be written, likewise. `DST` may be a folder, and `-` after `--json` is stdout.
    suffixes : endings that `--output` or `DST` may have; any if empty; None for a dataset, an HDF5 file or a folder.
    """
    places = {option: path for option, path in written.items() if path is not None}
    if places.get("--json") == STDOUT:
        del places["--json"]
    for option, path in places.items():
        if option == "DST" and suffixes is None and (path.is_dir() or not (path.suffix or path.exists())):
            _check_folder(option, path, path if path.is_dir() else path.parent)
        else:
            own = HDF5_SUFFIXES if suffixes is None else suffixes
            _check_target(option, path, own if option in ("--output", "DST") else _SUFFIXES.get(option, ()))
        if option == "--plot":
            with drawing(path):
                from sparsenn.report.plots import new_figure

                new_figure(1, 1)  # fails where the library that draws is missing
    _check_apart(read, places)
    for source in read.values():
        if source is not None and _is_missing(source):
            raise InputError(f"{source}: no such file" + (" or folder" if isinstance(source, str) else ""))


def _is_missing(source: str | Path) -> bool:
    """Whether the path does not exist; dataset names and other faults are left to the reader."""
    if isinstance(source, str) and kind_of(source) is None and Path(source).name == source:
        return False
    with suppress(OSError, ValueError):
        try:
            os.stat(source)  # noqa: PTH116  not Path.exists, for which a folder without permission is a missing file
        except (FileNotFoundError, NotADirectoryError):
            return True
    return False


def _check_target(option: str, path: Path, suffixes: Collection[str]) -> None:
    if suffixes and not path.name.lower().lstrip(".").endswith(tuple(suffixes)):
        found = f"{path.suffix!r} does not name a known file type" if path.suffix else "no suffix names the file type"
        raise UsageError(f"{option} {path}: {found}; use {', '.join(suffixes)}")
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise ResourceError(f"{option} {path}: is not open, or no permission to write to it")
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path}: is a {'folder' if path.is_dir() else 'socket or a disk'}, not a file")
    _check_folder(option, path, path.parent)


def _check_folder(option: str, path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise ResourceError(f"{option} {path}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ResourceError(f"{option} {path}: no permission to write into the folder {folder}")


def _check_apart(read: Mapping[str, Source], written: Mapping[str, Path]) -> None:
    results = list(written.items())
    for number, (option, path) in enumerate(results):
        for source_option, source in read.items():
            if source is not None and any(_overwrites(path, place) for place in _places(source)):
                raise UsageError(
                    f"{option} {path} would overwrite {source_option} {source}, which is read; name another file"
                )
        for other_option, other in results[:number]:
            if same_file(path, other):
                raise UsageError(f"{other_option} {other} and {option} {path} are one file; name two files")


def _places(source: str | Path) -> tuple[Path, ...]:
    """Return where a source may lie: a dataset's name stands for files in the cache folder."""
    if isinstance(source, Path) or Path(source).name != source or Path(source).suffix:
        return (Path(source),)
    from sparsenn.datasets.named import cached_files
    from sparsenn.datasets.names import NAMES

    return cached_files(source) if source in NAMES else (Path(source),)


def _overwrites(path: Path, source: Path) -> bool:
    if same_file(path, source):
        return True
    real = Path(os.path.realpath(path))
    if not (real.is_file() and source.is_dir() and Path(os.path.realpath(source)) in real.parents):
        return False
    from sparsenn.io.challenge.layout import is_official_name

    return is_official_name(real.name)


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Turn any failure to draw a picture into one line: a picture is drawn last, and costs no result."""
    try:
        yield
    except (SparseNNError, ImportError):
        raise
    except Exception as error:
        raise ResourceError(
            f"cannot draw {path}: {' '.join(str(error).split()) or type(error).__name__}; everything else is done"
        ) from error


def is_hdf5(path: Path) -> bool:
    """Return whether a file's name says that it is HDF5."""
    return path.suffix.lower() in HDF5_SUFFIXES


def write_document(path: Path, document: str) -> None:
    """Write JSON or HTML to a file, replaced only when complete, or to stdout or another stream."""
    if path == STDOUT:
        sys.stdout.write(document)
        return
    with replacing(path) as temporary:
        temporary.write_text(document, encoding="utf-8")


def tracing(path: Path | None) -> AbstractContextManager[None]:
    """Return the context of `sparsenn.trace` for a file; one that does nothing for None."""
    if path is None:
        return nullcontext()
    from sparsenn.backends.trace import trace

    return trace(path)
