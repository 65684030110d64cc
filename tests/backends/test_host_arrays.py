"""Arrays on the host: where rows are, and what is wrong with sparse ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.host_arrays import fault_of, is_on_host
from sparsenn.errors import UnsortedError
from sparsenn.formats import from_dense

MOST = np.iinfo(np.int64).max


class Tensor:
    """What speaks DLPack, and may have more to say than it is asked."""

    def __init__(self, kind):
        self.kind = kind

    def __dlpack_device__(self):
        return self.kind, 0

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("it needs a gradient")


@pytest.mark.parametrize(
    ("rows", "on_host"),
    [
        (np.zeros((1, 1)), True),
        ([[1.0]], True),
        (Tensor(1), True),
        (Tensor(3), True),
        (Tensor(2), False),
        (Tensor(13), False),
        (SimpleNamespace(__cuda_array_interface__={}), False),
        (from_dense(np.eye(2)), True),
        (from_dense(np.eye(2)).to_scipy().tocoo(), True),
        (from_dense(np.eye(2)).to_scipy().todok(), True),
        (from_dense(np.eye(2)).to_scipy().tolil(), True),
        (SimpleNamespace(tocsr=None, data=Tensor(2)), False),
    ],
)
def test_where_rows_are(rows, on_host):
    assert is_on_host(rows) is on_host


def rows_of(indptr, indices, values=None, width=4):
    indices = np.array(indices)
    return SparseRows(
        (len(indptr) - 1, width), np.array(indptr), indices, np.ones(indices.size) if values is None else values
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (rows_of([0, 2, 1], [0, 1]), "indptr must rise from 0 to 2 and never fall"),
        (rows_of([0, 1], [0, 1]), "indptr must rise from 0 to 2 and never fall"),
        (rows_of([5, 6], [0, 1]), "indptr must rise from 0 to 2 and never fall"),
        (rows_of([0, 2**63 - 1, -2, 2], [0, 1]), "indptr must rise from 0 to 2 and never fall"),
        (rows_of([0, 1, 1, 3], [0, 1, 7]), "row 2, entry 2: index 7 is outside 0..3"),
        (rows_of([0, 0, 2], [1, -1]), "row 1, entry 1: index -1 is outside 0..3"),
        (rows_of([0, 1], np.array([MOST + 1], np.uint64)), f"row 0, entry 0: index {MOST + 1} is outside 0..3"),
        (rows_of([0, 3, 4], [0, 2, 1, 9]), "row 0, entry 2: index 1 follows 2; a row's indices must increase"),
        (rows_of([0, 2], [0, 1], np.array([1.0, -np.inf])), "entry 1: the value -inf is not finite"),
        (rows_of([0, 2], [0, 1], np.array([1e39, 1.0])), "entry 0: the value 1e+39 is not finite in float32"),
    ],
    ids=str,
)
def test_the_first_fault_is_told(rows, told):
    fault = fault_of(rows)
    assert str(fault) == told
    assert not isinstance(fault, UnsortedError)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (rows_of([0, 1, 3], [3, 2, 1]), "row 1, entry 2: index 1 follows 2; a row's indices must increase"),
        (rows_of([7, 7, 9], [2, 2]), "row 1, entry 1: index 2 occurs twice"),
    ],
    ids=str,
)
def test_what_sorting_would_mend_is_told_apart(rows, told):
    fault = fault_of(rows)
    assert isinstance(fault, UnsortedError)
    assert str(fault) == told


def test_rows_without_a_fault_have_none():
    assert fault_of(rows_of([3, 3, 5, 5, 6, 6], [0, 3, 0])) is None
    assert fault_of(rows_of([0], [])) is None
