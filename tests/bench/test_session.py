"""Recorded calls of sessions: answers are checked, times stand beside peers, and limits are relative to these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cases
import numpy as np
import pytest
import table_session
from cases import CASES, Case, Sources, chain, random_rows, stratified, with_sparse_middle
from ceilings import Peaks
from packed_images import pack_images, packed_path
from peers import Problem, as_dense, numpy_products, torch, torch_layers
from record import WrongAnswerError
from recordings import Recorded, Recorder

from sparsenn import Conv2d, Flatten, Linear, Network, Session, SparseLinear, Tanh
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


def test_limits_are_relative_to_what_they_name(record: Record) -> None:
    found = record(
        case("dense", dense, limit=1e-6),
        case("by-peer", dense, limit=1e5, aim=0.5, beside="peer"),
        case("by-case", dense, limit=1e4, beside="dense"),
        case("by-numpy", dense, limit=1e5, beside="numpy"),
        case("by-nothing", dense, limit=2.0, beside="no such case"),
    )
    assert [failure.partition(":")[0] for failure in found.failures] == ["dense"]
    plain, peer, other, by_numpy, nothing = found.rows
    assert peer["limit_milliseconds"] == pytest.approx(1e5 * peer["peer_milliseconds"])
    assert peer["aim_milliseconds"] == pytest.approx(0.5 * peer["peer_milliseconds"])
    assert other["limit_milliseconds"] == pytest.approx(1e4 * plain["milliseconds"])
    assert by_numpy["limit_milliseconds"] == pytest.approx(
        1e5 * next(each["milliseconds"] for each in by_numpy["peers"] if each["way"].startswith("NumPy"))
    )
    assert nothing["limit_milliseconds"] is None


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


def test_later_answers_must_be_the_same(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Restless(Session):
        def __call__(self, *arguments: Any, **others: Any) -> Any:
            outputs = super().__call__(*arguments, **others)
            if self.options.device == "cpu":
                calls.append(1)
                outputs = np.array(outputs)
                outputs[0, 0] = np.nextafter(outputs[0, 0], np.float32(9)) if len(calls) > 3 else outputs[0, 0]
            return outputs

    monkeypatch.setattr(table_session, "Session", Restless)
    assert "a later call gave other bits" in record(case("dense", dense)).failures[0]


def test_wrong_categories_and_outputs_that_are_not_finite_are_found() -> None:
    numbers, outputs = np.array([0, 4, 9]), np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    problem = Problem(chain([3, 2]), random_rows(10, 3), are_categories=True)
    assert table_session.check(problem, "float32", np.array([1, 4, 9]), (numbers, outputs)) is None
    for wrong in ([1, 4], [0, 4, 9]):
        with pytest.raises(WrongAnswerError, match="1 of 3 inputs"):
            table_session.check(problem, "float32", np.array(wrong), (numbers, outputs))
    answer = np.zeros((40, 5), np.float32)
    for answer[7, 2] in (np.nan, np.inf):
        with pytest.raises(WrongAnswerError, match="not finite"):
            table_session.check(dense(Sources()), "float32", answer, (np.array([0]), np.zeros((1, 5))))


def test_a_lower_precision_is_a_fair_peer_only_where_it_finds_as_many_classes() -> None:
    peers = [
        {"way": "slow", "precision": "float32", "milliseconds": 3.0, "right": 90},
        {"way": "rough", "precision": "float16", "milliseconds": 1.0, "right": 89},
        {"way": "fast", "precision": "tf32", "milliseconds": 2.0, "right": 91},
    ]
    best = lambda *arguments: table_session.best_peer(arguments[0], peers, arguments[1])["way"]  # noqa: E731
    found = [
        best("float32", 90),
        best("float32", 89),
        best("float32", 92),
        best("float32", None),
        best("float16", None),
    ]
    assert found == ["fast", "rough", "slow", "slow", "rough"]
    assert table_session.best_peer("float32", [], None) is None


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


@pytest.mark.gpu
@pytest.mark.alone
def test_the_peaks_of_a_gpu_are_measured() -> None:
    from ceilings import gpu_peaks

    top = gpu_peaks(link=True)
    assert 1e11 < top.copied < 1e14
    assert top.link is not None
    assert 1e9 < top.link < top.copied
    assert top.rates["float32"] < top.rates["float16"]


def test_floors() -> None:
    top = Peaks(100.0, {"float32": 10.0, "tf32": 60.0}, 5.0)
    assert top.floor(1000, 1, "float32") == 10.0
    assert top.floor(0, 1, "float32", 1000) == 200.0
    assert top.floor(0, 600, "tf32") == 10.0
    assert top.floor(0, 600, "float32") == 30.0
    assert Peaks(100.0, {"float32": 10.0}).floor(0, 600, "float32", 1000) == 60.0


# ---- Cases and peers --------------------------------------------------------------------------------------------


def test_the_table_has_a_case_for_each_key() -> None:
    keys = [found.key for found in CASES]
    assert len(set(keys)) == len(keys)
    for number, found in enumerate(CASES):
        assert found.beside in {None, "peer", "numpy", "copy", *keys[:number]}
        assert found.aim is None or found.aim < found.limit
        assert found.device == "cuda" or found.where == "host"


def test_packed_images_are_the_challenges_inputs(tmp_path: Path) -> None:
    inputs = generate(1024, 1, inputs="digits", images=20).inputs
    pack_images(inputs, packed_path(tmp_path, 1024))
    problem = cases.challenge_problem(1024, 2, Sources(tmp_path, tmp_path))
    assert (problem.network.sizes, problem.categories) == ((1024,) * 3, None)
    assert (problem.rows.to_scipy() != inputs.to_scipy()).nnz == 0
    with pytest.raises(FileNotFoundError, match=r"no folder .*mnist"):
        cases.challenge_problem(4096, 2, Sources(tmp_path, tmp_path))


@pytest.mark.parametrize(("name", "correct"), [("lenet300-dns.npz", 9801), ("lenet300-lobs.npz", 9664)])
def test_pruned_networks_of_others(shared_data: Path, name: str, correct: int) -> None:
    problem = cases.lenet300_problem(Sources(shared_data), name)
    assert problem.network.sizes == (784, 300, 100, 10)
    with Session(problem.network, device="cpu") as session:
        predicted = session(problem.rows).argmax(axis=1)
    assert abs(int((predicted == problem.classes).sum()) - correct) <= 2


def test_networks_for_cases_have_the_weights_that_they_should() -> None:
    for layer in stratified(64, 5, 2):
        assert isinstance(layer, SparseLinear)
        layer.weights.validate()
        assert np.diff(layer.weights.indptr).tolist() == [5] * 64
    mixed = with_sparse_middle([50, 40, 40, 40, 6], 0.6)
    assert [type(layer) for layer in mixed] == [Linear, SparseLinear, SparseLinear, Linear]
    assert 0.5 < mixed[1].edges / 1600 < 0.7
    for network in (stratified(64, 8, 24), chain([64] * 20), with_sparse_middle([64] * 20, 0.5)):
        size = np.abs(reference.run(network, from_dense(random_rows(20, 64))).toarray()).max()
        assert 1e-2 < size < 1e3  # outputs stay about as large as inputs


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


@pytest.mark.parametrize(
    "network",
    [
        Network((Linear(np.ones((2, 2)), None, Tanh()),)),
        Network((Conv2d(np.ones((1, 1, 1, 1))), Flatten()), (1, 2, 2)),
    ],
)
def test_numpy_is_left_out_where_it_is_not_written_for_the_network(network: Network) -> None:
    assert not list(numpy_products(Problem(network, random_rows(3, network.inputs)), "float32"))
