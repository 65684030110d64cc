"""Recorded calls of sessions: answers are checked, times stand beside peers, and limits are relative to these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain as chained
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import table_session
import timing
from cases import chain, data_folder, random_rows, stratified, with_sparse_middle
from peers import Problem, as_dense, numpy_products, torch, torch_layers
from record import Case
from recordings import Recorded, Recorder
from table_session import CASES, case

from sparsenn import Linear
from sparsenn.backends import oracle as reference
from sparsenn.datasets import generate
from sparsenn.formats import from_dense

Record = Callable[..., Recorded]


def dense(data: Path) -> Problem:
    return Problem(chain([12, 9, 5]), random_rows(40, 12))


def classified(data: Path) -> Problem:
    network, rows = stratified((16,) * 3, (4, 4)), random_rows(30, 16)
    classes = reference.run(network, from_dense(rows)).toarray().argmax(axis=1)
    classes[:3] = (classes[:3] + 1) % 16
    return Problem(network, rows, classes=classes)


def alive(data: Path, categories: int | None = None) -> Problem:
    dataset = generate(1024, 2, inputs="digits", images=20)
    return Problem(dataset.network, dataset.inputs, categories=categories)


def absent(data: Path) -> Problem:
    data_folder(data, "nothing-of-that-name")
    raise AssertionError("it was there")


on_host = partial(case, where="host")


@pytest.fixture
def record(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Record cases; the arguments are they."""
    rates = dict.fromkeys(("float32", "tf32", "float16"), 1e10)
    monkeypatch.setattr(timing, "roofs", lambda device: SimpleNamespace(copy_bandwidth=1e10, multiply_adds=rates))
    monkeypatch.setattr(table_session, "WARM_SECONDS", 0.0)

    def run(*found: Case, device: str = "cpu") -> Recorded:
        monkeypatch.setitem(table_session.CASES, ("session", device), found)
        return recorder("session", "--device", device, "--runs", "3")

    return run


def test_a_case_has_its_time_its_peer_and_its_floor(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_session, "RUN_SECONDS", 0.01)
    found = record(on_host("dense", "a call", dense), on_host("classified", "another", classified))
    assert not found.failures
    first, second = found.rows
    assert (first["key"], first["precision"]) == ("dense", "float32")
    assert first["runs"] > 3  # as they take less than 0.03 s
    assert first["milliseconds"] > 0
    assert first["peer"].startswith(("NumPy", "PyTorch"))
    assert 0 <= first["error"] < 1e-5
    assert first["multiply_adds"] == 40 * (12 * 9 + 9 * 5)
    moved = 4 * (12 * 9 + 9 * 5) + 4 * 40 * (12 + 5)
    assert first["floor_milliseconds"] == pytest.approx(1e3 * max(moved / 1e10, first["multiply_adds"] / 1e10))
    assert (first["right"], second["right"]) == (None, 27)
    assert {peer["right"] for peer in second["peers"]} == {27}


def test_categories_are_the_answer_of_the_challenge(record: Record) -> None:
    dataset = alive(Path())
    count = int(reference.run(dataset.network, dataset.rows).toarray().any(axis=1).sum())
    (row,) = record(on_host("alive", "a call", partial(alive, categories=count), categories=True)).rows
    assert (row["categories"], row["error"]) == (count, None)
    assert 0 < row["multiply_adds"] <= 20 * dataset.network.multiply_adds
    wrong = record(on_host("alive", "a call", partial(alive, categories=count + 1), categories=True))
    assert wrong.failures == (f"{count} categories, not {count + 1}",)


def test_a_wrong_answer_is_not_recorded(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = table_session.exact

    def corrupted(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        numbers, outputs = exact(problem)
        if problem.network.inputs == 12:
            outputs[-1, -1] += 1e-3 * np.abs(outputs).max()
        return numbers, outputs

    monkeypatch.setattr(table_session, "exact", corrupted)
    found = record(*(on_host(made.__name__, "a call", made) for made in (dense, classified, absent)))
    assert "outputs are off by 1.0e-03" in found.failures[0]
    assert [row["key"] for row in found.rows] == ["classified"]
    assert any("absent: left out: no folder" in note for note in found.result.notes)  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.alone
def test_cases_on_a_gpu(record: Record) -> None:
    found = [
        *(case(f"dense-{name}", "a call", dense, name) for name in ("float32", "tf32", "float16")),
        case("classified", "a call", classified),
        on_host("copied", "a call", dense),
        case("alive", "a call", alive, categories=True),
        on_host("alive-host", "a call", alive, categories=True),
    ]
    recorded = record(*found, device="cuda")
    assert not recorded.failures
    rows = {row["key"]: row for row in recorded.rows}
    assert list(rows) == [each.name for each in found]
    if torch is not None:
        ways = {peer["way"] for peer in rows["classified"]["peers"] if peer["precision"] == "float32"}
        assert {"PyTorch, eager", "PyTorch, graph", "PyTorch, graph, ReLU in the product"} <= ways
        assert "PyTorch, sparse times dense" in ways


# ---- Cases and peers --------------------------------------------------------------------------------------------


def test_cases_have_names_of_their_own() -> None:
    names = [found.name for found in chained(*CASES.values())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("peer", [numpy_products, torch_layers])
def test_peers_give_what_the_reference_gives(peer: Any, where: str) -> None:
    if peer is torch_layers and torch is None:
        pytest.skip("PyTorch is not installed")
    network, rows = with_sparse_middle([20, 16, 16, 3], 0.1), random_rows(11, 20)
    assert all(isinstance(layer, Linear) for layer in as_dense(network))
    expected = reference.run(network, from_dense(rows)).toarray()
    found = list(peer(Problem(network, rows, "cpu", where), "float32"))
    assert found
    for way in found:
        np.testing.assert_allclose(way.outputs(way.run()), expected, rtol=1e-4, atol=1e-5)
