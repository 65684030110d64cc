"""Recorded choices of the planner: each way is right and timed, and what was recorded stays within the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import record_choice
from record_choice import MOST, NETWORKS, Shape, network_of, shapes
from record_session import check, exact
from results_file import ResultFile, read_results
from session_cases import Case, Problem
from session_networks import random_rows
from session_peers import PRECISIONS

from sparsenn import Linear, Session, SparseLinear
from sparsenn.backends import oracle as reference
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import from_dense

LEAST_NETWORKS = 30

SMALL = (
    Shape("sparse", (20, 30, 30, 8), 0.2, 25, False, "float32", 1),
    Shape("dense", (20, 9), 0.2, 7, False, "float32", 2),
    Shape("mixed", (12, 16, 16, 5), 0.5, 30, True, "float32", 3),
)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Record small networks on the CPU."""
    monkeypatch.setattr(
        record_choice, "results_path", lambda name, folder=None: tmp_path / (folder or "desk") / f"{name}.json"
    )
    monkeypatch.setattr(record_choice, "shapes", lambda count, *others: iter(SMALL[:count]))

    def run(*arguments: str) -> int:
        return record_choice.main(["--device", "cpu", "--runs", "3", "--machine", "lab", "--networks", "3", *arguments])

    return run


def recorded(tmp_path: Path) -> ResultFile:
    return read_results(tmp_path / "lab" / "choice-cpu.json")


def test_the_choice_stands_beside_all_other_ways(record: Callable[..., int], tmp_path: Path) -> None:
    code = record()
    result = recorded(tmp_path)
    sparse, dense, mixed = result.rows
    assert [row["number"] for row in result.rows] == [0, 1, 2]
    for row in result.rows:
        assert min(row["others"], key=row["others"].__getitem__) == row["fastest"]
        assert row["ratio"] == pytest.approx(row["milliseconds"] / row["fastest_milliseconds"])
    assert {"panel", "dead rows kept", "all weights stored", "all weights stored, register_tiled"} <= sparse[
        "others"
    ].keys()
    assert "register_tiled" in dense["others"]
    assert "all weights stored" not in dense["others"]
    assert "dead and equal rows kept" in mixed["others"]
    assert code == int(max(row["ratio"] for row in result.rows) > MOST)


@pytest.mark.gpu
@pytest.mark.alone
def test_choices_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_choice, "results_path", lambda name, folder=None: tmp_path / f"{name}.json")
    rough = replace(SMALL[0], precision="tf32"), replace(SMALL[1], precision="float16")
    monkeypatch.setattr(record_choice, "shapes", lambda count, *others: iter((*SMALL, *rough)))
    record_choice.main(["--runs", "3"])
    rows = read_results(tmp_path / "choice.json").rows
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows:
        assert row["others"]
    assert {"chunks", "resident", "all weights stored"} <= rows[0]["others"].keys()
    assert "tensor_half" not in rows[1]["others"]
    assert "tensor_half" in rows[4]["others"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*shapes(NETWORKS)], ids=lambda shape: f"{shape.kind}-{shape.seed}")
def test_choices_for_networks_of_any_shape_are_right_on_a_gpu(shape: Shape) -> None:
    network = network_of(shape)
    problem = Problem(network, random_rows(shape.rows, network.inputs, shape.seed))
    right, rows = exact(problem), cupy().asarray(problem.rows)
    for precision in PRECISIONS:
        case = Case("", "", lambda sources: problem, precision=precision)
        with Session(network, device="cuda", precision=precision) as session:
            check(case, problem, session(rows), right)


def test_networks_before_the_first_are_kept_if_the_code_is_the_same(
    record: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSENN_COMMIT", "a" * 40)
    record("--networks", "1")
    kept = recorded(tmp_path).rows[0]
    record("--first", "1", "--networks", "2")
    assert [row["number"] for row in recorded(tmp_path).rows] == [0, 1]
    assert recorded(tmp_path).rows[0] == kept
    monkeypatch.setenv("SPARSENN_COMMIT", "b" * 40)
    record("--first", "1", "--networks", "2")
    assert [row["number"] for row in recorded(tmp_path).rows] == [1]


def test_a_wrong_answer_is_not_recorded(
    record: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = record_choice.exact

    def corrupted(problem: Any) -> tuple[np.ndarray, np.ndarray]:
        numbers, outputs = exact(problem)
        if len(problem.network) == 1:
            outputs[0, 0] += 1e-3 * np.abs(outputs).max()
        return numbers, outputs

    monkeypatch.setattr(record_choice, "exact", corrupted)
    assert record() == 1
    assert "network 1, dense 20-9, 7 rows, float32: outputs are off by" in capsys.readouterr().err
    assert [row["number"] for row in recorded(tmp_path).rows] == [0, 2]


def test_a_slow_choice_is_recorded_and_fails(
    record: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_choice, "timed_in_turn", lambda calls, *given: [1.5, 1.0])
    assert record("--networks", "1") == 1
    assert recorded(tmp_path).rows[0]["ratio"] == 1.5


def test_shapes_are_the_same_each_time_and_of_all_kinds() -> None:
    found = list(shapes(36))
    assert found == list(shapes(36))
    assert {shape.kind for shape in found} == {"sparse", "dense", "mixed"}
    assert {shape.dying for shape in found} == {True, False}
    assert {shape.precision for shape in found} == {"float32", "tf32", "float16"}
    assert {shape.precision for shape in shapes(36, on_gpu=False)} == {"float32"}
    assert min(shape.rows for shape in found) == 1
    assert max(shape.rows for shape in found) == 60_000
    assert len({(shape.kind, shape.widths, shape.density, shape.rows) for shape in found}) == 36
    for shape in shapes(30, 1e8):
        assert shape.work <= 1e8


@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.kind)
def test_networks_are_what_their_shape_says(shape: Shape) -> None:
    network = network_of(shape)
    assert network.sizes == shape.widths
    kinds = [type(layer) for layer in network]
    expected = {"sparse": [SparseLinear] * 3, "dense": [Linear], "mixed": [Linear, SparseLinear, Linear]}
    assert kinds == expected[shape.kind]


def test_rows_die_where_they_should() -> None:
    dying = Shape("sparse", (64,) * 9, 0.1, 50, True, "float32", 5)
    rows = record_choice.random_rows(50, 64, dying.seed)
    alive = [
        int(reference.run(network_of(shape), from_dense(rows)).toarray().any(axis=1).sum())
        for shape in (dying, replace(dying, dying=False))
    ]
    assert alive[0] < 25
    assert alive[1] == 50


def test_ways_round_no_more_than_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        SimpleNamespace(name=name, auto=auto, precision=precision)
        for name, auto, precision in (
            ("plain", True, "float32"),
            ("study", False, "float32"),
            ("rough", True, "tf32"),
            ("half", True, "float16"),
        )
    ]
    sparse = SimpleNamespace(name="gather", auto=True, precision="float32")
    monkeypatch.setattr(record_choice, "kernels", lambda operation, device: made if operation == "mlp" else [sparse])

    def found(number: int, precision: str, every: bool = False) -> dict[str, Any]:
        return {
            name: given for name, _, given in record_choice.ways(network_of(SMALL[number]), "cuda", precision, every)
        }

    assert found(1, "float32") == {"plain": {"kernel": "plain", "precision": "float32"}}
    assert list(found(1, "float32", every=True)) == ["plain", "study"]
    assert found(1, "tf32")["plain"] == {"kernel": "plain", "precision": "float32"}
    assert list(found(1, "tf32")) == ["plain", "rough"]
    assert list(found(1, "float16")) == ["plain", "rough", "half"]
    assert found(0, "float16")["gather"] == {"kernel": "gather", "precision": "float32"}
    assert found(2, "float16")["gather"] == {"kernel": "gather", "precision": "float16"}
    assert found(0, "tf32")["dead rows kept"] == {"compaction": False, "precision": "tf32"}
    assert list(found(0, "tf32"))[-3:] == [
        "all weights stored",
        "all weights stored, plain",
        "all weights stored, rough",
    ]


def test_shapes_in_words() -> None:
    assert str(SMALL[0]) == "sparse 20-30-30-8, 20.0% of the weights"
    assert str(SMALL[2]) == "mixed 12-16-16-5, 50.0% of the weights, rows die"
    assert str(Shape("dense", (8,) * 6, 0.1, 1, False, "float32", 0)) == "dense 8-4 × 8-8"


def test_what_was_recorded_stays_within_the_bound(repository: Path) -> None:
    paths = sorted((repository / "bench" / "results").glob("*/choice*.json"))
    if not paths:
        pytest.skip("no result file of the planner's choices is there")
    for path in paths:
        rows = read_results(path).rows
        assert len(rows) >= LEAST_NETWORKS, path
        slow = {row["network"]: row["ratio"] for row in rows if not row["ratio"] <= MOST}
        assert not slow, path
