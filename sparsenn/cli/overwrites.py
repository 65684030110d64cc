"""Files that would be lost: a result written over what was read, or over another result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sparsenn.cli.targets import STDOUT
from sparsenn.errors import UsageError
from sparsenn.runtime.storage import same_file

__all__ = ["check_apart"]

Files = Mapping[str, str | Path | None]


def check_apart(read: Files, written: Files) -> None:
    """Refuse to write a file that is read, or two results to one file, however their names are spelt.

    Parameters
    ----------
    read : a file, a folder in the official layout or a dataset's name, by the option or argument that names it; None
        where it was not given.
    written : files, or a folder that a dataset goes into; `-` is stdout and no file.

    Raises
    ------
    UsageError
        Two are one file, also through links; the message names both options.
    """
    results = [(option, Path(path)) for option, path in written.items() if path is not None and Path(path) != STDOUT]
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
    if Path(source).name != str(source) or Path(source).suffix:
        return (Path(source),)  # no dataset is called so
    from sparsenn.datasets.named import cached_files
    from sparsenn.datasets.names import NAMES

    return cached_files(str(source)) if source in NAMES else (Path(source),)


def _overwrites(path: Path, source: Path) -> bool:
    """Whether writing to `path` replaces the source, or one of its files if it is a folder."""
    if same_file(path, source):
        return True
    real = Path(os.path.realpath(path))
    if not (real.is_file() and source.is_dir() and Path(os.path.realpath(source)) in real.parents):
        return False
    from sparsenn.io.challenge.layout import is_official_name

    return is_official_name(real.name)
