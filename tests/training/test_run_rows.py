"""A network run on rows that are made ready some at a time: what is asked for, what is told, and what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsenn import infer
from sparsenn.engine import Session
from sparsenn.errors import ResourceError
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, Linear, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime import memory
from sparsenn.training import run_rows as module
from sparsenn.training.run_rows import RowsResult, run_rows

COUNT = 23


@pytest.fixture
def given(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(COUNT, 6)).astype(np.float32)


@pytest.fixture
def network(rng: np.random.Generator) -> Network:
    sparse = SparseLinear.from_scipy(from_dense(rng.normal(size=(6, 5)) * (rng.random((6, 5)) < 0.5)).to_scipy(), 0.1)
    return Network((sparse, Linear(rng.normal(size=(5, 4)), None, Identity())))


@pytest.mark.parametrize(
    ("numbers", "batch_size", "together"), [(10**6, None, 23), (60, None, 10), (60, 4, 8), (1, 7, 7)]
)
def test_rows_are_made_ready_as_many_as_fit_in_whole_batches(
    given: Any, network: Network, monkeypatch: pytest.MonkeyPatch, numbers: int, batch_size: int | None, together: int
) -> None:
    monkeypatch.setattr(module, "_NUMBERS", numbers)
    asked: list[tuple[int, int]] = []

    def ready(first: int, last: int) -> np.ndarray:
        asked.append((first, last))
        return given[first:last]

    told: list[tuple[str, int, int]] = []
    session = Session(network, batch_size=batch_size, device="reference")
    found = run_rows(session, COUNT, ready, progress=lambda *step: told.append(step))
    assert asked == [(first, min(first + together, COUNT)) for first in range(0, COUNT, together)]
    assert told == [("rows", last, COUNT) for _, last in asked]
    whole = infer(network, given, device="reference")
    np.testing.assert_allclose(found.outputs, whole.outputs.to_scipy().toarray(), rtol=1e-12)
    np.testing.assert_array_equal(found.predicted, found.outputs.argmax(axis=1))
    assert isinstance(found, RowsResult)
    assert found.plan.inputs == COUNT
    assert found.plan.density is whole.plan.density is None
    assert found.seconds.read > 0
    for one, other in zip(found.statistics, whole.statistics, strict=True):
        assert (one.rows, one.active_rows, one.nonzeros) == (other.rows, other.active_rows, other.nonzeros)
        assert one.performed_edges == other.performed_edges


def test_rows_beyond_memory_are_refused_before_any_is_made(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 900)
    with pytest.raises(ResourceError, match=r"making 20 × 6 numbers ready needs .* of memory"):
        run_rows(Session(network, batch_size=20), COUNT, lambda first, last: pytest.fail("made ready"))
