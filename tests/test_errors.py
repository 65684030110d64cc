from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

from sparsenn import errors
from sparsenn.errors import FileFormatError, OutOfMemoryError, SparseNNError, UsageError, unknown_name

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
]


def test_all_is_complete() -> None:
    assert sorted(errors.__all__) == sorted([*(kind.__name__ for kind in CLASSES), "prefix_errors", "unknown_name"])


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_one_of_ours(kind: type[Exception]) -> None:
    assert issubclass(kind, SparseNNError)
    assert kind.__doc__


@pytest.mark.parametrize(
    ("path", "line", "message"),
    [("a.tsv", 3, "a.tsv:3: text"), (Path("b/a.tsv"), None, "b/a.tsv: text"), ("a.tsv", 0, "a.tsv:0: text")],
)
def test_file_errors_lead_with_the_place(path: str | Path, line: int | None, message: str) -> None:
    error = FileFormatError(path, "text", line)
    assert (str(error), error.path, error.line) == (message, str(path), line)


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("sequental", ["scipy", "sequential"], "; did you mean 'sequential'? (known: scipy, sequential)"),
        ("xyz", {"scipy"}, " (known: scipy)"),
        ("xyz", iter([]), " (known: none)"),
    ],
)
def test_unknown_names(name: str, known: Iterable[str], message: str) -> None:
    error = unknown_name("kernel", name, known)
    assert isinstance(error, UsageError)
    assert str(error) == f"unknown kernel '{name}'{message}"


@pytest.mark.parametrize(
    "error", [FileFormatError("a.tsv", "text", 3), UsageError("text"), OutOfMemoryError("text", 7)]
)
def test_errors_cross_process_borders(error: SparseNNError) -> None:
    there_and_back = pickle.loads(pickle.dumps(error))
    assert (type(there_and_back), str(there_and_back)) == (type(error), str(error))
    assert vars(there_and_back) == vars(error)
