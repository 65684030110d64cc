"""What tests of files compare: matrices and datasets that are read, and where a file is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.errors import FileFormatError
from sparsenn.formats import COO
from sparsenn.io import Dataset
from sparsenn.layers import SparseLinear

__all__ = ["Corrupted", "refused_at", "same_dataset", "same_matrix"]

Corrupted = Callable[..., Path]
"""The type of the fixture `corrupted`, which writes bytes to a file."""


def same_matrix(found: Any, expected: Any) -> None:
    """The same shape, entries and types, and one stored value where all are equal."""
    assert type(found) is type(expected)
    assert found.shape == expected.shape
    parts = ("rows", "columns") if isinstance(found, COO) else ("indptr", "indices")
    for part in parts:
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
        assert getattr(found, part).dtype == getattr(expected, part).dtype
    values = np.broadcast_to(expected.values, expected.nnz)
    np.testing.assert_array_equal(np.broadcast_to(found.values, found.nnz), values)


def same_dataset(found: Dataset, expected: Dataset) -> None:
    assert (found.name, found.provenance, len(found.network)) == (
        expected.name,
        expected.provenance,
        len(expected.network),
    )
    same_matrix(found.inputs, expected.inputs)
    for one, other in zip(found.network, expected.network, strict=True):
        _same_layer(one, other)
    assert (found.truth is None) == (expected.truth is None)
    if found.truth is not None:
        assert found.truth.dtype == np.int64
        np.testing.assert_array_equal(found.truth, expected.truth)


def _same_layer(found: SparseLinear, expected: SparseLinear) -> None:
    same_matrix(found.weights, expected.weights)
    assert found.weights.values.dtype == expected.weights.values.dtype
    assert found.activation == expected.activation
    assert type(found.bias) is type(expected.bias)
    np.testing.assert_array_equal(found.bias_vector(), expected.bias_vector())


def refused_at(read: Callable[[Path], Any], path: Path, line: int, message: str) -> None:
    """Reading the file fails, and the message begins with its name and the line and matches a regular expression."""
    with pytest.raises(FileFormatError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
