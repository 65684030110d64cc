"""Outputs in a folder, piece by piece: each is written whole or not at all, once, and a later run can go on.

::

    run.json                              what the pieces are of: digests of network, options and rows, and the edges
    000000000000-000000016384.npy         dense outputs of rows 0 to 16,383
    000000000000-000000016384.npz         or sparse ones, as scipy.sparse.save_npz writes them

One process writes at a time: it holds a lock on the folder, which its end gives back, however it ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.distributed.cluster.sessions import Sizes
from sparsenn.errors import FileFormatError, ResourceError, UsageError
from sparsenn.formats import Array
from sparsenn.io.npy import read_npy, read_npz, sparse_rows
from sparsenn.storage import replacing

try:
    import fcntl
except ImportError:  # Windows: two runs into one folder are not told apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["Pieces", "Run", "writing_pieces"]

_FORMAT, _VERSION = "sparsenn pieces", 1
_MANIFEST = "run.json"
_SUFFIX = {"dense": ".npy", "csr": ".npz"}
_SAME = ("network", "options", "rows", "form")
"""What must be the same in a run that goes on with the pieces of another."""


@dataclass(frozen=True)
class Run:
    """What pieces are of.

    Parameters
    ----------
    network, options, rows : digests.
    form : of the outputs, dense or csr.
    sizes : of the network.
    """

    network: str
    options: str
    rows: str
    form: str
    sizes: Sizes


class Pieces:
    """Outputs in a folder, in pieces.

    Iterating gives the pieces in order: the number of the first row, and the outputs, a NumPy array or SciPy's CSR.

    Attributes
    ----------
    folder : where they are.
    run : what they are of.
    edges : rows of each piece, (first, last), `last` excluded.
    resumed : rows that were there before this run.
    """

    def __init__(self, folder: Path, run: Run, edges: list[tuple[int, int]]) -> None:
        self.folder, self.run, self.edges = folder, run, edges
        self.resumed = 0

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return self.edges[-1][1] if self.edges else 0

    def __len__(self) -> int:
        return len(self.edges)

    def __repr__(self) -> str:
        return f"Pieces({os.fspath(self.folder)!r}, {self.rows:,} rows in {len(self):,} pieces)"

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for number, (first, _) in enumerate(self.edges):
            yield first, self.read(number)

    def length(self, number: int) -> int:
        """Return how many rows a piece has."""
        first, last = self.edges[number]
        return last - first

    def path(self, number: int) -> Path:
        """Return the file of a piece."""
        first, last = self.edges[number]
        return self.folder / f"{first:012d}-{last:012d}{_SUFFIX[self.run.form]}"

    def missing(self) -> list[int]:
        """Return the numbers of the pieces that are not there."""
        there = {path.name for path in self.folder.iterdir()}
        return [number for number in range(len(self)) if self.path(number).name not in there]

    def read(self, number: int) -> Any:
        """Read a piece.

        Raises
        ------
        FileFormatError, InputError, ResourceError
            It is damaged, not there, or cannot be read.
        """
        path, (first, last) = self.path(number), self.edges[number]
        if self.run.form == "dense":
            found: Any = read_npy(path)
        else:
            rows = sparse_rows(path, read_npz(path))
            if rows is None:
                raise FileFormatError(path, "holds no sparse matrix; remove it, and resume the run")
            found = rows.to_scipy()
        if found.shape != (last - first, self.run.sizes.outputs):
            raise FileFormatError(path, f"holds outputs of shape {found.shape}; remove it, and resume the run")
        return found

    def write(self, number: int, outputs: Any) -> None:
        """Write a piece, a NumPy array or `CSR`, whole or not at all.

        Raises
        ------
        ResourceError
            It cannot be written.
        """
        from scipy.sparse import save_npz

        with replacing(self.path(number)) as temporary, temporary.open("wb") as file:
            if self.run.form == "dense":
                np.save(file, outputs, allow_pickle=False)
            else:
                save_npz(file, outputs.to_scipy(), compressed=False)

    def categories(self) -> Array:
        """Return the rows with an output that is not zero: sorted, int64, counted from 0."""
        found = [first + np.flatnonzero(_has_nonzero(outputs)) for first, outputs in self]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def outputs(self) -> Any:
        """Return all outputs: a NumPy array, or SciPy's CSR."""
        parts = [outputs for _, outputs in self]
        if self.run.form == "csr":
            from scipy.sparse import csr_array, vstack

            return (
                csr_array(vstack(parts, "csr")) if parts else csr_array((0, self.run.sizes.outputs), dtype=np.float32)
            )
        return np.concatenate(parts) if parts else np.zeros((0, self.run.sizes.outputs), np.float32)


@contextmanager
def writing_pieces(
    folder: str | os.PathLike[str],
    run: Run,
    edges: Callable[[], list[tuple[int, int]]],
    any_edges: bool,
    resume: bool,
) -> Iterator[Pieces]:
    """Yield the pieces of a run, to be written into a folder that no other process writes into meanwhile.

    Parameters
    ----------
    folder : made if it is not there; its own folder must be.
    run : what they are of.
    edges : returns those that new pieces have.
    any_edges : whether pieces of other edges may be gone on with.
    resume : whether to go on with the pieces that are there.

    Raises
    ------
    UsageError
        The folder holds pieces, and none are to be gone on with; or something else.
    ResourceError
        They are of another run; another process is writing; or the folder cannot be written to.
    """
    place = Path(folder)
    with _locked(place):
        manifest = place / _MANIFEST
        if manifest.exists():
            if not resume:
                raise UsageError(f"{place} holds pieces already; go on with them (resume), or choose another folder")
            known = _read_manifest(manifest)
            for part in _SAME:
                if known.get(part) != getattr(run, part):
                    raise ResourceError(f"{place} holds pieces of a run whose {part} differed; choose another folder")
            pieces = Pieces(place, run, [(first, last) for first, last in known["edges"]])
            if not any_edges and pieces.edges != edges():
                raise ResourceError(f"{place} holds pieces of other lengths; leave out how many rows a piece has")
        else:
            if any(not entry.name.startswith(".") for entry in place.iterdir()):
                raise UsageError(f"{place} holds something else than pieces; choose another folder")
            pieces = Pieces(place, run, edges())
            document = {"format": _FORMAT, "version": _VERSION, **_told(run), "edges": pieces.edges}
            with replacing(manifest) as temporary:
                temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
        yield pieces


def _told(run: Run) -> dict[str, Any]:
    return {**asdict(run), "sizes": run.sizes._asdict()}


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(path, f"cannot be read ({error}); choose another folder") from error
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (_FORMAT, _VERSION):
        raise FileFormatError(path, f"does not tell of {_FORMAT} of version {_VERSION}; choose another folder")
    edges = found.get("edges")
    if not isinstance(edges, list) or not all(_is_edge(edge) for edge in edges):
        raise FileFormatError(path, "does not tell which rows the pieces hold; choose another folder")
    return found


def _is_edge(edge: Any) -> bool:
    return isinstance(edge, list) and len(edge) == 2 and all(isinstance(row, int) and row >= 0 for row in edge)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it is not there."""
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ResourceError(f"cannot write pieces to {folder}: {error.strerror or error}") from error
    try:
        if fcntl is not None:
            _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ResourceError(f"another process is writing pieces to {folder}; wait for it") from error
    except OSError:  # a file system without locks
        return


def _has_nonzero(outputs: Any) -> Array:
    """Return for each row whether an output is not zero."""
    found: Array = np.asarray(outputs.any(axis=1) if isinstance(outputs, np.ndarray) else np.diff(outputs.indptr))
    return found
