"""Traces of what sessions run: valid, complete, of all threads, and written whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from scipy.sparse import csr_array
from sessions import altered, doing_first
from traces import checked_spans, lines

import sparsenn
from sparsenn import Linear, ReLU, Session
from sparsenn.errors import ResourceError
from sparsenn.network import Network
from sparsenn.runtime.spans import watchers


@pytest.fixture
def network(rng: np.random.Generator) -> Network:
    weights = rng.normal(size=(3, 40, 40)) * (rng.random((3, 40, 40)) < 0.1)
    return Network.from_scipy([csr_array(each) for each in weights], -0.1, ReLU())


def named(spans: list[dict[str, Any]], category: str) -> list[str]:
    return [span["name"] for span in spans if span["cat"] == category]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_run_of_several_batches(network: Network, rng: np.random.Generator, tmp_path: Path, name: str) -> None:
    session = Session(network, device="cpu", batch_size=30)
    with sparsenn.trace(tmp_path / name):
        result = session.run(rng.random((100, 40)))
    spans = checked_spans(tmp_path / name)
    assert named(spans, "run") == ["run"]
    assert [span["args"] for span in spans if span["cat"] == "batch"] == [
        {"first": first, "rows": min(30, 100 - first)} for first in (0, 30, 60, 90)
    ]
    titles = [step.title for step in result.plan.steps]
    assert titles[-1].endswith("3")
    assert named(spans, "step") == titles * 4
    steps = [span["args"] for span in spans if span["cat"] == "step"]
    assert [step["kernel"] for step in steps] == [step.kernel.name for step in result.plan.steps] * 4
    assert {"plan", "copy in", "copy out", "read inputs"} <= {span["name"] for span in spans}
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_times_are_those_of_the_result(network: Network, rng: np.random.Generator, tmp_path: Path) -> None:
    session = Session(network, device="cpu")
    with sparsenn.trace(tmp_path / "t.json"):
        seconds = session.run(rng.random((500, 40))).seconds
    spans = checked_spans(tmp_path / "t.json")
    taken = {name: sum(span["dur"] for span in spans if span["cat"] == name) / 1e6 for name in ("run", "step", "plan")}
    assert seconds.plan > 0
    assert taken["step"] + taken["plan"] <= taken["run"]
    assert seconds.transfer + seconds.compute <= taken["run"]
    assert taken["step"] <= seconds.compute + seconds.compile + 1e-3


def test_calls_of_several_threads_have_a_line_each(network: Network, rng: np.random.Generator, tmp_path: Path) -> None:
    session = Session(network, device="cpu")
    rows = rng.random((5, 40), np.float32)
    session(rows)
    together = threading.Barrier(3)

    def call() -> None:
        together.wait()
        for _ in range(4):
            session(rows)

    threads = [threading.Thread(target=call, name=f"caller {number}") for number in range(3)]
    with sparsenn.trace(tmp_path / "t.json"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = checked_spans(tmp_path / "t.json")
    calls = [span["tid"] for span in spans if span["cat"] == "run"]
    assert sorted(calls.count(line) for line in set(calls)) == [4, 4, 4]
    assert {lines(tmp_path / "t.json")[line] for line in calls} == {"caller 0", "caller 1", "caller 2"}
    assert named(spans, "wait").count("wait for the session's lock") == 12
    assert len(named(spans, "step")) == 12 * len(session.plan(rows).steps)


def test_what_is_compiled_shows(rng: np.random.Generator, network: Network, tmp_path: Path) -> None:
    @numba.njit
    def fresh(number: int) -> int:
        return number + 1

    session = altered(network, change=doing_first(lambda step: fresh(1)), device="cpu", kernel="panel")
    with sparsenn.trace(tmp_path / "t.json"):
        session.run(rng.random((9, 40)))
    spans = checked_spans(tmp_path / "t.json")
    (compiled,) = (span for span in spans if span["name"].endswith(".fresh"))
    assert compiled["cat"] == "compile"
    assert compiled["dur"] > 1000


def test_a_failure_leaves_what_was_there(network: Network, tmp_path: Path) -> None:
    session = Session(network, device="cpu")
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        with pytest.raises(sparsenn.SparseNNError), sparsenn.trace(tmp_path / name):
            session.run(np.zeros((3, 7)))
    assert not watchers["run"]
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"
    with sparsenn.trace(tmp_path / "old.json"):
        session.run(np.zeros((3, 40)))
    assert checked_spans(tmp_path / "old.json")


def test_an_error_of_the_block_is_no_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), sparsenn.trace(tmp_path / "t.json"):
        (tmp_path / "none").read_text()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_told_first(tmp_path: Path) -> None:
    begun = False
    for path in (tmp_path / "none" / "t.json", tmp_path):
        with pytest.raises(ResourceError, match="cannot write"), sparsenn.trace(path):
            begun = True
    assert not begun


@pytest.mark.gpu
def test_on_a_gpu_steps_are_shown_as_the_device_ran_them(
    network: Network, rng: np.random.Generator, tmp_path: Path
) -> None:
    session = Session(network, device="cuda")
    rows = rng.random((1000, 40), np.float32)
    with sparsenn.trace(tmp_path / "t.json"):
        result = session.run(rows, statistics=False)
        for _ in range(3):
            session(rows)
    spans = checked_spans(tmp_path / "t.json")
    names = lines(tmp_path / "t.json")
    host, device = ([span for span in spans if (names[span["tid"]] == "cuda:0") is there] for there in (False, True))
    assert named(device, "step")[: len(result.plan.steps)] == [step.title for step in result.plan.steps]
    assert named(device, "step") == named(host, "step")
    for queued, ran in zip((span for span in host if span["cat"] == "step"), device, strict=True):
        assert ran["ts"] >= queued["ts"] - 100  # microseconds: the clocks of host and device meet as well as that


@pytest.mark.gpu
def test_calls_that_are_one_launch_show_their_step(rng: np.random.Generator, tmp_path: Path, cupy: Any) -> None:
    network = Network((Linear(rng.normal(size=(40, 30)), 0.1, ReLU()), Linear(rng.normal(size=(30, 5)), None, ReLU())))
    session, rows = Session(network, device="cuda"), cupy.asarray(rng.random((8, 40), np.float32))
    session(rows)
    with sparsenn.trace(tmp_path / "t.json"):
        for _ in range(3):
            session(rows)
    names = lines(tmp_path / "t.json")
    spans = [span for span in checked_spans(tmp_path / "t.json") if names[span["tid"]] != "cuda:0"]
    assert named(spans, "step") == 3 * [session.plan(rows).steps[0].title]
