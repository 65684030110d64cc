"""The recorded choice of sessions: cells, candidates, and the bound that a choice stays within."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import table_choice
from cases import random_rows
from choice_cells import CPU_CELLS as ALL_CPU_CELLS
from choice_cells import GPU_CELLS, Chain, Convolutions, network_of
from peers import PRECISIONS, Problem
from recordings import Recorder
from results_file import read_results
from table_session import check, exact
from timing import Timing

from sparsenn import Session
from sparsenn.backends.cuda.runtime.device import cupy

FEW = 0.03
"""The share of cells in which a session may have chosen a kernel beyond the bound."""

CELLS = (Chain((40, 60, 30), 5, 8), Convolutions(7, (4, 8, 6), (3, 1), (2, 1), 50, 3))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_choice, "CPU_CELLS", CELLS)


def timings(monkeypatch: pytest.MonkeyPatch, *medians: float, spread: float = 0.0) -> None:
    """Let the choice and the other candidates take such times."""
    found = [Timing(median, spread, 5) for median in medians]
    monkeypatch.setattr(table_choice, "in_turn", lambda calls, wait, run: dict(zip(calls, found, strict=False)))


def test_the_choice_stands_beside_the_other_candidates(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_choice, "HOPELESS", 1e9)
    timings(monkeypatch, 1.0, 0.8, 2.0)
    found = recorder("choice", "--device", "cpu")
    chain, convolutions = found.rows
    assert not found.failures
    assert (chain["key"], convolutions["key"]) == tuple(map(str, CELLS))
    assert chain["ratio"] == pytest.approx(1 / 0.8)
    assert chain["chosen"] != chain["fastest"]
    assert {"rows 1-2", "panel 1-2"} <= set(chain["candidates"])
    assert (convolutions["chosen"], convolutions["ratio"]) == ("conv_direct 1-2", 1.0)
    assert "the fastest candidate for 1 of 2" in found.result.title  # type: ignore[union-attr]
    assert chain["most"] == pytest.approx(1.1)
    timings(monkeypatch, 1.15, 1.0, 2.0, spread=0.3)
    assert recorder("choice", "--device", "cpu").rows[0]["most"] > 1.15  # the spread of the times is tolerated


@pytest.mark.gpu
@pytest.mark.parametrize("cell", GPU_CELLS[::3], ids=str)
def test_answers_on_a_gpu_are_those_of_the_reference(cell: Any) -> None:
    network = network_of(cell)
    problem = Problem(network, random_rows(cell.rows, network.inputs), "cuda", "device")
    outputs, rows = exact(problem), cupy().asarray(problem.rows)
    for precision in PRECISIONS:
        with Session(network, device="cuda", precision=precision) as session:
            check(problem, precision, session(rows), outputs)


def test_recorded_choices_stay_within_the_bound(repository: Path) -> None:
    for path in sorted((repository / "bench" / "results").glob("*/choice*.json")):
        rows = read_results(path).rows
        assert {row["cell"] for row in rows} <= set(map(str, (*GPU_CELLS, *ALL_CPU_CELLS)))
        beyond = [row for row in rows if row["ratio"] > row["most"]]
        assert len(beyond) <= FEW * len(rows), (path, beyond)
        assert all(row["ratio"] < 1.3 for row in beyond), (path, beyond)
