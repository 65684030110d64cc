"""The recorded choice of sessions: cells, candidates, and the bound that a choice stays within."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record_choice
from choice_cells import CPU_CELLS, GPU_CELLS, Chain, Convolutions, draw, network_of
from record_choice import kernels_of
from record_session import check, exact
from results_file import ResultFile, read_results
from session_cases import Case, Problem
from session_networks import random_rows
from session_peers import PRECISIONS
from wall_timing import Timing

from sparsenn import Conv2d, Session, SparseLinear
from sparsenn.backends.cuda.runtime.device import cupy

FEW = 0.03
"""The share of cells in which a session may have chosen a kernel beyond the bound."""

CELLS = (Chain((40, 60, 30), 5, 8), Convolutions(7, (4, 8, 6), (3, 1), (2, 1), 50, 3))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Record small networks on the CPU."""
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    monkeypatch.setattr(record_choice, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")
    monkeypatch.setattr(record_choice, "CPU_CELLS", CELLS)

    def run(*arguments: str) -> int:
        return record_choice.main(["--device", "cpu", *arguments])

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[], ResultFile]:
    return lambda: read_results(tmp_path / "choice-cpu.json")


def timings(monkeypatch: pytest.MonkeyPatch, *medians: float, spread: float = 0.0) -> None:
    """Let the choice and the other candidates take such times."""

    def timed(calls: Any, *arguments: Any, **options: Any) -> list[Timing]:
        return [Timing(median, spread, 5) for median in medians[: len(calls)]]

    monkeypatch.setattr(record_choice, "timed_in_turn", timed)


@pytest.mark.parametrize(("cells", "on_gpu"), [(GPU_CELLS, True), (CPU_CELLS, False)], ids=["gpu", "cpu"])
def test_the_cells_are_those_that_were_drawn(cells: tuple[Any, ...], on_gpu: bool) -> None:
    assert cells == draw(on_gpu)
    assert len(set(map(str, cells))) == len(cells) == (90 if on_gpu else 60)
    assert sum(isinstance(cell, Chain) for cell in cells) * 3 == 2 * len(cells)
    assert {cell.rows for cell in cells} == {1, 16, 128, 1024, 8192}
    assert {cell.precision for cell in cells} == set(PRECISIONS if on_gpu else PRECISIONS[:1])


def test_networks_are_those_of_their_cells() -> None:
    chain, convolutions = map(network_of, CELLS)
    assert chain.sizes == (40, 60, 30)
    assert all(isinstance(layer, SparseLinear) for layer in chain)
    assert chain.edges == pytest.approx(0.05 * CELLS[0].work, rel=0.2)
    assert all(isinstance(layer, Conv2d) for layer in convolutions)
    assert (convolutions.shapes[-1], CELLS[1].images) == ((6, 4, 4), (7, 4, 4))
    assert convolutions.multiply_adds == CELLS[1].work
    assert np.count_nonzero(convolutions[0].weights) == pytest.approx(0.5 * 4 * 8 * 9, rel=0.2)


def test_the_choice_stands_beside_the_other_candidates(
    record: Callable[..., int], recorded: Callable[[], ResultFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_choice, "HOPELESS", 1e9)
    timings(monkeypatch, 1.0, 0.8, 2.0)
    assert record() == 1
    chain, convolutions = recorded().rows
    assert (chain["cell"], convolutions["cell"]) == tuple(map(str, CELLS))
    assert chain["ratio"] == pytest.approx(1 / 0.8)
    assert chain["chosen"] != chain["fastest"]
    assert {"rows 1-2", "panel 1-2"} <= set(chain["candidates"])
    assert (convolutions["chosen"], convolutions["ratio"]) == ("conv_direct 1-2", 1.0)
    assert "the fastest candidate for 1 of 2" in recorded().title


@pytest.mark.parametrize(("spread", "code"), [(0.0, 1), (0.3, 0)])
def test_the_spread_of_the_times_is_tolerated(
    record: Callable[..., int], monkeypatch: pytest.MonkeyPatch, spread: float, code: int
) -> None:
    monkeypatch.setattr(record_choice, "HOPELESS", 1e9)
    timings(monkeypatch, 1.15, 1.0, 2.0, spread=spread)
    assert record() == code


def test_a_run_continues_the_one_before(record: Callable[..., int], recorded: Callable[[], ResultFile],
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    timings(monkeypatch, 1.0, 1.0, 1.0)
    monkeypatch.setattr(record_choice, "CPU_CELLS", CELLS[:1])
    record()
    monkeypatch.setattr(record_choice, "CPU_CELLS", CELLS)
    timings(monkeypatch, 3.0, 3.0, 3.0)
    assert record() == 0
    assert [(row["cell"], row["milliseconds"]) for row in recorded().rows] == [(str(CELLS[0]), 1), (str(CELLS[1]), 3)]
    assert record("--seconds", "0") == 0
    assert len(recorded().rows) == 2
    monkeypatch.setenv("SPARSENN_COMMIT", "b" * 40)
    assert record("--seconds", "0") == 1  # nothing of this commit is there


def test_a_wrong_answer_is_not_recorded(
    record: Callable[..., int],
    recorded: Callable[[], ResultFile],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exact = record_choice.exact

    def corrupted(problem: Any) -> tuple[np.ndarray, np.ndarray]:
        numbers, outputs = exact(problem)
        if problem.network.image is not None:
            outputs[0, 0] += 1e-3 * np.abs(outputs).max()
        return numbers, outputs

    monkeypatch.setattr(record_choice, "exact", corrupted)
    assert record() == 1
    assert f"cell 2, {CELLS[1]}: outputs are off by" in capsys.readouterr().err
    assert [row["cell"] for row in recorded().rows] == [str(CELLS[0])]


@pytest.mark.gpu
@pytest.mark.parametrize("cell", GPU_CELLS[::3], ids=str)
def test_answers_on_a_gpu_are_those_of_the_reference(cell: Any) -> None:
    network = network_of(cell)
    problem = Problem(network, random_rows(cell.rows, network.inputs))
    outputs, rows = exact(problem), cupy().asarray(problem.rows)
    for precision in PRECISIONS:
        case = Case("", "", lambda sources: problem, precision=precision)
        with Session(network, device="cuda", precision=precision) as session:
            check(case, problem, session(rows), outputs)


def test_kernels_are_named_with_their_layers() -> None:
    with Session(network_of(CELLS[0]), device="cpu", kernel="panel") as session:
        assert kernels_of(session.plan(np.ones((8, 40), np.float32))) == "panel 1-2"


def test_what_was_recorded_stays_within_the_bound(repository: Path) -> None:
    for path in sorted((repository / "bench" / "results").glob("*/choice*.json")):
        rows = read_results(path).rows
        beyond = [row for row in rows if row["ratio"] > row["most"]]
        assert len(beyond) <= FEW * len(rows), (path, beyond)
        assert all(row["ratio"] < 1.3 for row in beyond), (path, beyond)
