"""Arrays on the host: where rows are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparsenn.backends.host_arrays import is_on_host
from sparsenn.formats import from_dense


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
