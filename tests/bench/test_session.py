"""Recorded calls of sessions: answers are checked, times stand beside peers, and limits are relative to these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import table_session
from cases import CASES, Case, Sources, chain, random_rows, stratified, with_sparse_middle
from ceilings import Peaks
from peers import Problem, as_dense, numpy_products, torch, torch_layers
from recordings import Recorded, Recorder

from sparsenn import Linear
from sparsenn.backends import oracle as reference
from sparsenn.datasets import generate
from sparsenn.formats import from_dense

Record = Callable[..., Recorded]
Made = Callable[[Sources], Problem]


def dense(sources: Sources) -> Problem:
    return Problem(chain([12, 9, 5]), random_rows(40, 12))


def classified(sources: Sources) -> Problem:
    network, rows = stratified(16, 4, 2), random_rows(30, 16)
    classes = reference.run(network, from_dense(rows)).toarray().argmax(axis=1)
    classes[:3] = (classes[:3] + 1) % 16
    return Problem(network, rows, classes=classes)


def alive(sources: Sources, categories: int | None = None) -> Problem:
    dataset = generate(1024, 2, inputs="digits", images=20)
    return Problem(dataset.network, dataset.inputs, categories=categories)


def absent(sources: Sources) -> Problem:
    sources.needed("nothing-of-that-name")
    raise AssertionError("it was there")


def case(key: str, make: Made, device: str = "cpu", where: str = "host", **others: Any) -> Case:
    return Case(key, f"call of {key}", make, device, where, **others)


@pytest.fixture
def record(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Record cases; the arguments are they."""
    top = Peaks(1e10, dict.fromkeys(("float32", "tf32", "float16"), 1e10), 1e10)
    monkeypatch.setattr(table_session, "peaks_of", lambda run: top)
    monkeypatch.setattr(table_session, "WARM_SECONDS", 0.0)

    def run(*found: Case, device: str = "cpu") -> Recorded:
        monkeypatch.setattr(table_session, "CASES", found)
        return recorder("session", "--device", device, "--runs", "3")

    return run


def test_a_case_has_its_time_its_peer_and_its_floor(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_session, "RUN_SECONDS", 0.01)
    found = record(case("dense", dense, limit=1e4, aim=1.0), case("classified", classified))
    assert not found.failures
    first, second = found.rows
    assert (first["key"], first["device"], first["precision"]) == ("dense", "cpu", "float32")
    assert first["runs"] > 3  # as they take less than 0.03 s
    assert (first["limit_milliseconds"], first["aim_milliseconds"]) == (1e4, 1.0)
    assert 0 < first["milliseconds"] < 1e4
    assert first["peer"].startswith(("NumPy", "PyTorch"))
    assert 0 <= first["error"] < 1e-5
    assert first["multiply_adds"] == 40 * (12 * 9 + 9 * 5)
    moved = 4 * (12 * 9 + 9 * 5) + 4 * 40 * (12 + 5)
    assert first["floor_milliseconds"] == pytest.approx(1e3 * max(moved / 1e10, first["multiply_adds"] / 1e10))
    assert second["limit_milliseconds"] is None
    assert (first["right"], second["right"]) == (None, 27)
    assert {peer["right"] for peer in second["peers"]} == {27}


def test_categories_are_the_answer_of_the_challenge(record: Record) -> None:
    dataset = alive(Sources())
    count = int(reference.run(dataset.network, dataset.rows).toarray().any(axis=1).sum())
    (row,) = record(case("alive", partial(alive, categories=count), categories=True)).rows
    assert (row["categories"], row["error"]) == (count, None)
    assert 0 < row["multiply_adds"] <= 20 * dataset.network.multiply_adds
    wrong = record(case("alive", partial(alive, categories=count + 1), categories=True))
    assert wrong.failures == (f"{count} categories, not {count + 1}",)


def test_a_wrong_answer_is_not_recorded(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = table_session.exact

    def corrupted(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        numbers, outputs = exact(problem)
        if problem.network.inputs == 12:
            outputs[-1, -1] += 1e-3 * np.abs(outputs).max()
        return numbers, outputs

    monkeypatch.setattr(table_session, "exact", corrupted)
    found = record(case("dense", dense), case("classified", classified), case("absent", absent))
    assert "outputs are off by 1.0e-03" in found.failures[0]
    assert [row["key"] for row in found.rows] == ["classified"]
    assert any("absent: left out: no folder" in note for note in found.result.notes)  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.alone
def test_cases_on_a_gpu(record: Record) -> None:
    on_gpu = partial(case, device="cuda", where="device")
    found = [
        *(on_gpu(f"dense-{name}", dense, precision=name) for name in ("float32", "tf32", "float16")),
        on_gpu("classified", classified, limit=1e5, aim=1.0, beside="peer"),
        case("copied", dense, "cuda", limit=1e5, aim=1.0, beside="copy"),
        on_gpu("alive", alive, categories=True),
        case("alive-host", alive, "cuda", categories=True),
    ]
    recorded = record(*found, device="cuda")
    assert not recorded.failures
    rows = {row["key"]: row for row in recorded.rows}
    assert list(rows) == [each.key for each in found]
    assert rows["copied"]["limit_milliseconds"] == pytest.approx(1e5 * rows["copied"]["beside_milliseconds"])
    if torch is not None:
        ways = {peer["way"] for peer in rows["classified"]["peers"] if peer["precision"] == "float32"}
        assert {"PyTorch, eager", "PyTorch, graph", "PyTorch, graph, ReLU in the product"} <= ways
        assert "PyTorch, sparse times dense" in ways


# ---- Cases and peers --------------------------------------------------------------------------------------------


def test_the_table_has_a_case_for_each_key() -> None:
    keys = [found.key for found in CASES]
    assert len(set(keys)) == len(keys)
    for number, found in enumerate(CASES):
        assert found.beside in {None, "peer", "numpy", "copy", *keys[:number]}
        assert found.aim is None or found.aim < found.limit
        assert found.device == "cuda" or found.where == "host"


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
