"""The exceptions that sparsenn raises on purpose.

::

    SparseNNError                 every error below; the command line turns it into one message and exit code 2
    ├── InputError                what was given is wrong
    │   ├── FileFormatError       a file that does not hold what its format promises (path, line)
    │   ├── OpenSizesError        sizes of an ONNX model's inputs that nothing fixes (sizes)
    │   ├── MatrixError           a sparse matrix that breaks its format's invariants
    │   │   └── UnsortedError     positions of a row or column that do not rise, or that are given twice
    │   └── ShapeError            shapes that do not fit together (layer)
    ├── UsageError                an option, kernel, dataset or device that does not exist or cannot be combined
    ├── DeviceError               the device asked for is not there or cannot do it
    ├── NumericError              a computation that left the finite numbers, such as a training that diverged
    └── ResourceError             memory, disk space or permissions do not suffice
        ├── OutOfMemoryError      memory does not suffice for so many rows at a time (fitting)
        └── WorkerError           a cluster, or a worker of one, is lost or cannot do what was asked

A message says what was found, where, what is allowed, and what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike, fspath

from sparsenn.printable import printable

__all__ = [
    "DeviceError",
    "FileFormatError",
    "InputError",
    "MatrixError",
    "NumericError",
    "OpenSizesError",
    "OutOfMemoryError",
    "ResourceError",
    "ShapeError",
    "SparseNNError",
    "UnsortedError",
    "UsageError",
    "WorkerError",
    "prefix_errors",
    "unknown_name",
]


class SparseNNError(Exception):
    """Base of all errors that sparsenn raises on purpose."""


class InputError(SparseNNError):
    """What was given is wrong."""


class FileFormatError(InputError):
    """A file does not hold what its format promises.

    Parameters
    ----------
    path : file that was read; leads the message.
    message : what was found, what is allowed, what to do. What is no printable character is escaped, for messages
        repeat what files hold.
    line : 1-based line number where the fault is, if the file is text and the line is known.
    """

    def __init__(self, path: str | PathLike[str], message: str, line: int | None = None) -> None:
        self.path = fspath(path)
        self.line = line
        self.message = printable(message)
        place = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{place}: {self.message}")

    def __reduce__(self) -> tuple[type[FileFormatError], tuple[str, str, int | None]]:
        return type(self), (self.path, self.message, self.line)  # so that it crosses to another process


class OpenSizesError(InputError):
    """Inputs of an ONNX model have open sizes besides the number of rows.

    Parameters
    ----------
    message : which, and how to fix them.
    sizes : of the axes of each input by its name, None where they are open; None where the axes are not known.
    """

    def __init__(self, message: str, sizes: Mapping[str, tuple[int | None, ...] | None]) -> None:
        self.sizes = sizes
        super().__init__(message)

    def __reduce__(self) -> tuple[type[OpenSizesError], tuple[str, Mapping[str, tuple[int | None, ...] | None]]]:
        return type(self), (str(self), self.sizes)  # so that it crosses to another process


class MatrixError(InputError):
    """A sparse matrix breaks an invariant of its format."""


class UnsortedError(MatrixError):
    """Positions of a row or column do not rise, or one is given twice: sorting, and adding up, would mend it."""


class ShapeError(InputError):
    """Shapes that must agree do not."""


class UsageError(SparseNNError):
    """An option, kernel, dataset or device does not exist or cannot be combined with another."""


class DeviceError(SparseNNError):
    """The device asked for is not there, or cannot do what was asked."""


class NumericError(SparseNNError):
    """A computation left the finite numbers."""


class ResourceError(SparseNNError):
    """Memory, disk space or permissions do not suffice."""


class OutOfMemoryError(ResourceError):
    """Memory does not suffice for what is computed at a time; with fewer rows it may.

    Parameters
    ----------
    message : what was being done, what is there, what to do.
    fitting : rows that are estimated to fit; 0 where none does or that is not known.
    """

    def __init__(self, message: str, fitting: int = 0) -> None:
        self.fitting = fitting
        super().__init__(message)

    def __reduce__(self) -> tuple[type[OutOfMemoryError], tuple[str, int]]:
        return type(self), (str(self), self.fitting)  # so that it crosses to another process


class WorkerError(ResourceError):
    """A cluster, or a worker of one, is lost or cannot do what was asked."""


def unknown_name(kind: str, name: str, known: Iterable[str], meant: str | None = None) -> UsageError:
    """Return the error for a name that is not in `known`: it lists all choices, and what is meant or nearest."""
    choices = sorted(known, key=_numeric_order)
    near = [meant] if meant else get_close_matches(name, choices, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint} (known: {', '.join(choices) or 'none'})")


def _numeric_order(name: str) -> list[str | int]:
    """Return a key that sorts numbers within names by value: 4096 before 16384."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"([0-9]+)", name))]


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Have errors begin with the part of a model that they are about; it is no usage that the model is what it is."""
    try:
        yield
    except FileFormatError:
        raise
    except SparseNNError as error:
        kind = InputError if isinstance(error, UsageError) else type(error)
        raise kind(f"{place}: {error}") from error
