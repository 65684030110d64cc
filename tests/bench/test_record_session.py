"""Recorded calls of sessions: what is timed is right, is held against its limit, and wrong answers are not recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import record_session
import session_cases
import session_peers
import wall_timing
from ceilings import Peaks
from idx_files import write_idx
from packed_images import pack_images, packed_path
from record_session import WrongAnswerError
from results_file import read_results
from session_cases import CASES, Case, Problem, Sources
from session_networks import as_dense, chain, pruned_lenet300, random_rows, stratified, with_sparse_middle

from sparsenn import CSR, Conv2d, Flatten, Linear, Network, Session, SparseLinear, Tanh
from sparsenn.backends import oracle as reference
from sparsenn.datasets import generate
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense

Record = Callable[..., int]
Made = Callable[[Sources], Problem]

TOP = Peaks(1e10, {"float32": 1e10})


def dense(sources: Sources) -> Problem:
    return Problem(chain([12, 9, 5]), random_rows(40, 12))


def classified(sources: Sources) -> Problem:
    network, rows = stratified(16, 4, 2), random_rows(30, 16)
    classes = reference.run(network, from_dense(rows)).toarray().argmax(axis=1)
    classes[:3] = (classes[:3] + 1) % 16
    return Problem(network, rows, classes)


def alive(sources: Sources, categories: int | None = None) -> Problem:
    dataset = generate(1024, 2, inputs="digits", images=20)
    return Problem(dataset.network, dataset.inputs, categories=categories)


def absent(sources: Sources) -> Problem:
    sources.needed("nothing-of-that-name")
    raise AssertionError("it was there")


def case(key: str, make: Made, **others: Any) -> Case:
    return Case(key, f"call of {key}", make, "cpu", "host", **others)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Record cases on the CPU; the first arguments are they."""
    monkeypatch.setattr(record_session, "peaks_of", lambda device: TOP)
    monkeypatch.setattr(
        record_session, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    monkeypatch.setattr(record_session, "torch", None)

    def run(*cases: Case, arguments: tuple[str, ...] = ()) -> int:
        monkeypatch.setattr(record_session, "CASES", cases)
        return record_session.main(["--device", "cpu", "--runs", "3", "--machine", "lab", *arguments])

    return run


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "lab" / "session-cpu.json"


def test_a_case_has_its_time_its_peer_its_floor_and_what_it_costs_to_be_ready(
    record: Record, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_session, "RUN_SECONDS", 0.1)
    assert record(case("dense", dense, limit=1e4, aim=1.0), case("classified", classified)) == 0
    result = read_results(target)
    first, second = result.rows
    assert (first["key"], first["device"], first["precision"]) == ("dense", "cpu", "float32")
    assert first["runs"] > 3  # as they take less than 0.3 s
    assert (first["limit_milliseconds"], first["aim_milliseconds"]) == (1e4, 1.0)
    assert 0 < first["milliseconds"] < 1e4
    assert first["first_seconds"] > 0
    assert first["peer"] == "NumPy, dense"
    assert first["peer_milliseconds"] > 0
    assert 0 <= first["error"] < 1e-5
    assert first["multiply_adds"] == 40 * (12 * 9 + 9 * 5)
    moved = 4 * (12 * 9 + 9 * 5) + 4 * 40 * (12 + 5)
    assert first["floor_milliseconds"] == pytest.approx(1e3 * max(moved / 1e10, first["multiply_adds"] / 1e10))
    assert first["floor_share"] == pytest.approx(first["floor_milliseconds"] / first["milliseconds"])
    assert second["limit_milliseconds"] is None
    assert (first["right"], second["right"]) == (None, 27)
    assert [peer["right"] for peer in second["peers"]] == [27]
    assert result.table == "session"
    assert "PyTorch was not there to compare with." in result.notes


def test_categories_are_the_answer_of_the_challenge(record: Record, target: Path) -> None:
    sources = Sources(None, None, Path())
    dataset = alive(sources)
    right = reference.run(dataset.network, dataset.rows).toarray().any(axis=1).sum()
    assert record(case("alive", partial(alive, categories=int(right)), categories=True)) == 0
    (row,) = read_results(target).rows
    assert (row["categories"], row["error"], row["peer"]) == (int(right), None, None)
    assert 0 < row["multiply_adds"] <= 20 * dataset.network.multiply_adds
    assert record(case("alive", partial(alive, categories=int(right) + 1), categories=True)) == 1


def test_limits_are_relative_to_what_they_name(record: Record, target: Path) -> None:
    assert record(
        case("dense", dense),
        case("by-peer", dense, limit=1e5, aim=0.5, beside="peer"),
        case("by-case", dense, limit=1e4, aim=0.25, beside="dense"),
        case("by-numpy", dense, limit=1e5, beside="numpy"),
        case("by-nothing", dense, limit=2.0, beside="no such case"),
    ) in (0, 1)
    plain, peer, other, by_numpy, nothing = read_results(target).rows
    assert peer["limit_milliseconds"] == pytest.approx(1e5 * peer["peer_milliseconds"])
    assert peer["aim_milliseconds"] == pytest.approx(0.5 * peer["peer_milliseconds"])
    assert other["limit_milliseconds"] == pytest.approx(1e4 * plain["milliseconds"])
    assert by_numpy["limit_milliseconds"] == pytest.approx(1e5 * by_numpy["peer_milliseconds"])
    assert nothing["limit_milliseconds"] is None


def test_a_time_above_its_limit_is_recorded_and_told(
    record: Record, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(case("dense", dense, limit=1e-6)) == 1
    assert "dense: " in capsys.readouterr().err
    assert read_results(target).rows[0]["limit_milliseconds"] == 1e-6


def test_a_wrong_answer_is_not_recorded_and_costs_the_others_nothing(
    record: Record, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = record_session.exact

    def corrupted(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        numbers, outputs = exact(problem)
        if problem.network.inputs == 12:
            outputs[-1, -1] += 1e-3 * np.abs(outputs).max()
        return numbers, outputs

    monkeypatch.setattr(record_session, "exact", corrupted)
    assert record(case("dense", dense), case("classified", classified)) == 1
    assert "dense: outputs are off by 1.0e-03" in capsys.readouterr().err
    assert [row["key"] for row in read_results(target).rows] == ["classified"]


def test_categories_that_are_not_true_are_found() -> None:
    numbers, outputs = np.array([0, 4, 9]), np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    problem = Problem(chain([3, 2]), random_rows(10, 3))
    alone = case("alive", dense, categories=True)
    assert record_session.check(alone, problem, np.array([1, 4, 9]), (numbers, outputs)) is None
    with pytest.raises(WrongAnswerError, match="1 of 3 inputs"):
        record_session.check(alone, problem, np.array([1, 4]), (numbers, outputs))
    with pytest.raises(WrongAnswerError, match="1 of 3 inputs"):
        record_session.check(alone, problem, np.array([0, 4, 9]), (numbers, outputs))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_wrong(number: float) -> None:
    problem = dense(Sources(None, None, Path()))
    answer = np.zeros((40, 5), np.float32)
    answer[7, 2] = number
    with pytest.raises(WrongAnswerError, match="not finite"):
        record_session.check(case("dense", dense), problem, answer, (np.array([0]), np.zeros((1, 5))))


def test_later_answers_must_be_the_same(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    class Restless(Session):
        def __call__(self, *arguments: Any, **others: Any) -> Any:
            outputs = super().__call__(*arguments, **others)
            if self.options.device == "cpu":
                calls.append(1)
                outputs = np.array(outputs)
                outputs[0, 0] = np.nextafter(outputs[0, 0], np.float32(9)) if len(calls) > 3 else outputs[0, 0]
            return outputs

    monkeypatch.setattr(record_session, "Session", Restless)
    assert record(case("dense", dense)) == 1
    assert "a later call gave other bits" in capsys.readouterr().err


def test_what_has_no_data_is_left_out_and_said(record: Record, target: Path) -> None:
    assert record(case("absent", absent), case("dense", dense)) == 0
    result = read_results(target)
    assert [row["key"] for row in result.rows] == ["dense"]
    assert "call of absent: left out: no folder nothing-of-that-name of data." in result.notes


def test_the_challenge_needs_packed_images_or_mnist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder mnist"):
        session_cases.challenge_problem(1024, 2, Sources(tmp_path, tmp_path, tmp_path))


def test_packed_images_are_the_challenges_inputs(tmp_path: Path) -> None:
    inputs = generate(1024, 1, inputs="digits", images=20).inputs
    pack_images(inputs, packed_path(tmp_path, 1024))
    problem = session_cases.challenge_problem(1024, 2, Sources(None, tmp_path, tmp_path))
    assert (problem.network.sizes, problem.categories) == ((1024,) * 3, None)
    assert (problem.rows.to_scipy() != inputs.to_scipy()).nnz == 0


def test_nothing_recorded_is_a_failure(record: Record, target: Path) -> None:
    assert record(case("absent", absent)) == 1
    assert not target.exists()


def test_no_case_begins_when_time_is_up(record: Record, target: Path) -> None:
    assert record(case("dense", dense), arguments=("--seconds", "-1")) == 1
    assert not target.exists()


def test_only_some_cases(record: Record, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = case("dense", dense), case("classified", classified)
    assert record(*cases, arguments=("--only", "classified")) == 0
    assert [row["key"] for row in read_results(target).rows] == ["classified"]
    with pytest.raises(SystemExit):
        record(*cases, arguments=("--only", "sparse"))
    assert "known: dense, classified" in capsys.readouterr().err


def test_a_fault_in_one_case_costs_the_others_nothing(record: Record, target: Path) -> None:
    def broken(sources: Sources) -> Problem:
        raise ZeroDivisionError

    assert record(case("broken", broken), case("dense", dense)) == 1
    assert [row["key"] for row in read_results(target).rows] == ["dense"]


@pytest.mark.gpu
@pytest.mark.alone
def test_cases_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = Peaks(1e12, {"float32": 1e13, "tf32": 1e14, "float16": 1e14}, 1e10)
    monkeypatch.setattr(record_session, "peaks_of", lambda device: top)
    monkeypatch.setattr(record_session, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")
    cases = [
        *(Case(f"dense-{name}", "dense rows", dense, precision=name) for name in session_peers.PRECISIONS),
        Case("classified", "sparse layers", classified, limit=1e5, aim=1.0, beside="peer"),
        Case("copied", "rows in NumPy", dense, where="host", limit=1e5, aim=1.0, beside="copy"),
        Case("alive", "sparse rows", alive, categories=True),
        Case("alive-host", "sparse rows of SciPy", alive, where="host", categories=True),
    ]
    monkeypatch.setattr(record_session, "CASES", tuple(cases))
    assert record_session.main(["--runs", "3"]) == 0
    rows = {row["key"]: row for row in read_results(tmp_path / "session.json").rows}
    assert list(rows) == [case.key for case in cases]
    assert rows["copied"]["limit_milliseconds"] == pytest.approx(1e5 * rows["copied"]["beside_milliseconds"])
    if record_session.torch is not None:
        ways = {peer["way"] for peer in rows["classified"]["peers"] if peer["precision"] == "float32"}
        assert {"PyTorch, eager", "PyTorch, graph", "PyTorch, graph, ReLU in the product"} <= ways
        assert "PyTorch, sparse times dense" in ways


@pytest.mark.gpu
@pytest.mark.alone
def test_what_a_gpu_can_do_is_measured() -> None:
    top = record_session.peaks_of("cuda")
    assert 1e11 < top.copied < 1e14
    assert top.link is not None
    assert 1e9 < top.link < top.copied
    assert top.rates["float32"] < top.rates["float16"]


def test_the_table_has_a_case_for_each_key() -> None:
    keys = [found.key for found in CASES]
    assert len(set(keys)) == len(keys)
    for number, found in enumerate(CASES):
        assert found.beside in {None, "peer", "numpy", "copy", *keys[:number]}
        assert found.aim is None or found.aim < found.limit
        assert found.device == "cuda" or found.where == "host"


@pytest.mark.parametrize("kind", ["lenet300-dns.npz", "lenet300-lobs.npz"])
def test_pruned_networks_of_others(shared_data: Path, kind: str) -> None:
    problem = session_cases.lenet300_problem(Sources(shared_data, None, Path()), kind)
    assert problem.network.sizes == (784, 300, 100, 10)
    with Session(problem.network, device="cpu") as session:
        predicted = session(problem.rows).argmax(axis=1)
    right = {"lenet300-dns.npz": 9801, "lenet300-lobs.npz": 9664}[kind]
    assert abs(int((predicted == problem.classes).sum()) - right) <= 2


def test_networks_of_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    weights = [np.where(rng.random(shape) < 0.4, rng.normal(size=shape), 0) for shape in ((7, 9), (4, 7))]
    biases = rng.normal(size=7), rng.normal(size=4)
    arrays = {f"weight{number}": found for number, found in enumerate(weights, start=1)}
    arrays |= {f"bias{number}": found for number, found in enumerate(biases, start=1)}
    np.savez(tmp_path / "net.npz", **arrays)
    network, rows = pruned_lenet300(tmp_path / "net.npz"), random_rows(5, 9)
    right = np.maximum(rows @ weights[0].T + biases[0], 0) @ weights[1].T + biases[1]
    np.testing.assert_allclose(reference.run(network, from_dense(rows)).toarray(), right, rtol=1e-5, atol=1e-5)


def test_images_and_classes_of_digits(tmp_path: Path) -> None:
    from session_networks import digits

    images = np.arange(2 * 28 * 28).reshape(2, 28, 28).astype(np.uint8)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([3, 9], np.uint8))
    found, classes = digits(tmp_path)
    np.testing.assert_array_equal(found, images)
    assert classes.tolist() == [3, 9]


def test_networks_for_cases_have_the_weights_that_they_should() -> None:
    network = stratified(64, 5, 2)
    for layer in network:
        assert isinstance(layer, SparseLinear)
        layer.weights.validate()
        assert np.diff(layer.weights.indptr).tolist() == [5] * 64
    mixed = with_sparse_middle([50, 40, 40, 40, 6], 0.6)
    assert [type(layer) for layer in mixed] == [Linear, SparseLinear, SparseLinear, Linear]
    assert 0.5 < mixed[1].edges / 1600 < 0.7
    rows = random_rows(9, 50)
    stored = as_dense(mixed)
    assert all(isinstance(layer, Linear) for layer in stored)
    given = [reference.run(network, from_dense(rows)).toarray() for network in (mixed, stored)]
    np.testing.assert_allclose(*given, rtol=1e-6, atol=1e-6)


def test_outputs_of_random_networks_stay_about_as_large() -> None:
    rows = random_rows(20, 64)
    for network in (stratified(64, 8, 24), chain([64] * 20), with_sparse_middle([64] * 20, 0.5)):
        size = np.abs(reference.run(network, from_dense(rows)).toarray()).max()
        assert 1e-2 < size < 1e3


def test_numpy_gives_what_the_reference_gives() -> None:
    network, rows = with_sparse_middle([20, 16, 16, 3], 0.5), random_rows(11, 20)
    way = session_peers.numpy_way(network, rows)
    right = reference.run(network, from_dense(rows)).toarray()
    np.testing.assert_allclose(way.outputs(way.run()), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "network",
    [
        Network((Linear(np.ones((2, 2)), None, Tanh()),)),
        Network((Conv2d(np.ones((1, 1, 1, 1))), Flatten()), (1, 2, 2)),
    ],
)
def test_numpy_is_left_out_where_it_is_not_written_for_the_network(network: Network) -> None:
    with pytest.raises(UsageError, match="not computed by NumPy"):
        session_peers.numpy_way(network, random_rows(3, network.inputs))


@pytest.mark.skipif(session_peers.torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("where", ["device", "host"])
def test_pytorch_gives_what_the_reference_gives(where: str) -> None:
    network, rows = with_sparse_middle([20, 16, 16, 3], 0.1), random_rows(11, 20)
    right = reference.run(network, from_dense(rows)).toarray()
    found = list(session_peers.torch_ways(network, rows, "cpu", where, "float32"))
    assert found
    for way in found:
        np.testing.assert_allclose(way.outputs(way.run()), right, rtol=1e-4, atol=1e-5)


def test_a_lower_precision_is_a_fair_peer_only_where_it_finds_as_many_classes() -> None:
    peers = [
        {"way": "slow", "precision": "float32", "milliseconds": 3.0, "right": 90},
        {"way": "rough", "precision": "float16", "milliseconds": 1.0, "right": 89},
        {"way": "fast", "precision": "tf32", "milliseconds": 2.0, "right": 91},
    ]

    def best(classes: int | None, precision: str = "float32") -> str:
        found = record_session._best_peer(replace(case("x", dense), precision=precision), peers, classes)
        return found["way"]

    assert best(90) == "fast"
    assert best(89) == "rough"
    assert best(92) == "slow"
    assert best(None) == "slow"
    assert best(None, "float16") == "rough"
    assert record_session._best_peer(case("x", dense), [], None) is None


def test_floors() -> None:
    top = Peaks(100.0, {"float32": 10.0, "tf32": 60.0}, 5.0)
    assert top.floor(1000, 1, "float32") == 10.0
    assert top.floor(0, 1, "float32", 1000) == 200.0
    assert top.floor(0, 600, "tf32") == 10.0
    assert top.floor(0, 600, "float32") == 30.0
    assert Peaks(100.0, {"float32": 10.0}).floor(0, 600, "float32", 1000) == 60.0


def test_what_the_host_can_do_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenn.studies.measure import Roofs

    monkeypatch.setattr(record_session, "ceilings", lambda: Roofs(2.0, 9.0, "L3", 1 << 25, {"float32": 3.0}))
    assert record_session.peaks_of("cpu") == Peaks(2.0, {"float32": 3.0})


def test_calls_are_timed_until_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, events = [0.0], []

    def call() -> None:
        events.append("call")
        clock[0] += 0.001

    def wait() -> None:
        events.append("wait")
        clock[0] += 0.002

    monkeypatch.setattr(wall_timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    found = wall_timing.timed(call, wait, runs=20, warm_up=2)
    assert events == ["call", "wait"] * 22
    assert (found.median, found.runs) == (pytest.approx(3.0), 20)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert wall_timing.timed(call, wait, 20, most_seconds=0.031).runs == 10
    assert wall_timing.timed(call, wait, 20, most_seconds=0.001).runs == wall_timing.LEAST_RUNS
    assert wall_timing.timed(call, wait, 2, most_seconds=0.001).runs == 2
    events.clear()
    wall_timing.timed(call, wait, 20, warm_up=4, most_seconds=0.001)
    assert len(events) == 2 * (1 + wall_timing.LEAST_RUNS)
    assert wall_timing.timed(call, wait, 1).spread == 0
    events.clear()
    wall_timing.timed(call, wait, 20, warm_seconds=0.0889)
    assert len(events) == 2 * (30 + 20)
    assert wall_timing.timed(call, wait, 20, least_seconds=0.0889).runs == 30
    assert wall_timing.timed(call, wait, 20, least_seconds=0.01).runs == 20
    assert (
        wall_timing.timed(call, wait, 20, most_seconds=0.031, least_seconds=0.0889).runs == 11
    )  # the last began in time


def test_errors_may_grow_with_the_root_of_the_layers() -> None:
    assert record_session.allowed("float32", chain([4] * 5)) == pytest.approx(2 * record_session.ALLOWED["float32"])
    assert math.isnan(record_session.difference(np.array([[np.nan]]), np.array([[1.0]])))


@pytest.mark.skipif(session_peers.torch is None, reason="PyTorch is not installed")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_pytorch_finds_the_categories() -> None:
    problem = alive(Sources(None, None, Path()))
    assert isinstance(problem.rows, CSR)
    way = session_peers.torch_categories(problem.network, problem.rows.to_scipy().toarray(), "cpu")
    right = Session(problem.network, device="reference").run(problem.rows).categories
    assert 0 < right.size < problem.rows.shape[0]
    assert way.outputs(way.run()).tolist() == right.tolist()
