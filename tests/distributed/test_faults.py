"""What goes wrong in clusters: computed elsewhere, or told in one line; nothing is lost, and nothing is there twice."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import external_cluster

import sparsenn
from sparsenn.distributed import infer
from sparsenn.distributed.cluster import tasks
from sparsenn.distributed.cluster.tasks import connected
from sparsenn.distributed.cluster.work import Work
from sparsenn.errors import UsageError, WorkerError
from sparsenn.io import Dataset

pytest.importorskip("distributed.client", reason="the extra dask is not installed")

WORK = "sparsenn.distributed.cluster.work"
FORGET = f"import {WORK} as s; s._session_of.cache_clear()"


@pytest.fixture(scope="module")
def right(dataset: Dataset) -> bytes:
    return bytes(sparsenn.Session(dataset.network, device="cpu")(dataset.inputs.to_scipy().toarray()).tobytes())


@pytest.fixture(scope="module")
def rows(dataset: Dataset) -> Any:
    return dataset.inputs.to_scipy().toarray()


def outputs_in(folder: Path) -> bytes:
    return bytes(np.load(folder / "out.npy").tobytes())


def pieces_in(folder: Path) -> list[Path]:
    """The notes of the pieces that a run has done."""
    return sorted((folder / "out.npy.pieces").glob("[0-9]*.json"))


@pytest.fixture
def alter(client: Any) -> Iterator[Callable[..., None]]:
    """Run a statement in some workers, or all, and another one at the end of the test that undoes it."""
    undone = []

    def change(code: str, undo: str, workers: list[str] | None = None) -> None:
        client.run(exec, FORGET)
        undone.append(undo)
        client.run(exec, code, {}, workers=workers)

    yield change
    client.run(exec, "\n".join([FORGET, *undone]), {})


OTHER_VERSION = f"import sparsenn, {WORK} as s; sparsenn.__version__ = s.__version__ = '9.9'"
OWN_VERSION = f"import sparsenn, {WORK} as s; sparsenn.__version__ = s.__version__ = {sparsenn.__version__!r}"
OTHER_FILE = f"import {WORK} as s; s.file_digest = lambda path: 64 * '0'"
NO_FILE = f"import {WORK} as s, pathlib; s.file_digest = lambda path: s.kept(pathlib.Path('/none') / path.name)"
OWN_FILE = f"import {WORK} as s, sparsenn.distributed.digests as d; s.file_digest = s.kept = d.file_digest"


@pytest.mark.parametrize(
    ("code", "undo", "why"),
    [
        (OTHER_VERSION, OWN_VERSION, "sparsenn is 9.9 there, .* install the same version"),
        (OTHER_FILE, OWN_FILE, "problem.h5: is a different file there"),
        (f"{OWN_FILE}; {NO_FILE}", OWN_FILE, "/none/problem.h5: no such file"),
    ],
    ids=["version", "content", "missing"],
)
def test_a_worker_that_cannot_run_the_network_is_named(
    client: Any, alter: Callable[..., None], problem: Path, rows: Any, code: str, undo: str, why: str
) -> None:
    alter(code, undo)
    with pytest.raises(WorkerError, match=rf"^worker tcp://.*: .*{why}"):
        infer(problem, rows, client, device="cpu")


def test_what_is_wrong_everywhere_is_told_as_by_a_session(client: Any, problem: Path, rows: Any) -> None:
    with pytest.raises(UsageError, match="unknown cpu kernel"):
        infer(problem, rows, client, device="cpu", kernel="none")


def test_one_task_holds_the_network(
    client: Any, dataset: Dataset, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    submit = type(client).submit

    def watched(self: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(pickle.dumps([each for each in arguments if isinstance(each, Work)])))
        return submit(self, function, *arguments, **options)

    monkeypatch.setattr(type(client), "submit", watched)
    infer(dataset.network, rows, client, output=tmp_path / "out.npy", piece=30, device="cpu")
    first, *others = sizes
    assert len(others) == 21
    assert max(others) < 1500 < len(pickle.dumps(dataset.network)) < first


def test_killed_workers_lose_nothing(client: Any, dataset: Dataset, rows: Any, right: bytes, tmp_path: Path) -> None:
    pids, told = list(client.run(os.getpid).values()), []

    def kill(task: str, done: int, count: int) -> None:
        told.append(done)
        if done >= 100 and pids:
            os.kill(pids.pop(), signal.SIGKILL)

    infer(dataset.network, rows, client, output=tmp_path / "out.npy", piece=10, device="cpu", progress=kill)
    assert not pids
    assert told == list(range(0, 601, 10))
    assert outputs_in(tmp_path) == right
    client.wait_for_workers(2, timeout=60)


def test_a_cluster_without_workers_is_told(
    problem: Path, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "WAIT_SECONDS", 0.2)
    with (
        external_cluster(tmp_path, workers=0) as cluster,
        connected(cluster.address) as own,
        pytest.raises(WorkerError, match=r"^the cluster at .* has no workers; start some: dask worker tcp://"),
    ):
        infer(problem, rows, own, device="cpu")


def test_a_lost_scheduler_is_told_and_another_goes_on(
    client: Any, problem: Path, rows: Any, right: bytes, tmp_path: Path
) -> None:
    seen = []
    with external_cluster(tmp_path) as cluster, connected(cluster.address) as own:

        def kill(task: str, done: int, count: int) -> None:
            seen.append(done)
            if done == 50:
                cluster.scheduler.kill()

        with pytest.raises(WorkerError, match=f"^the scheduler at {cluster.address} is lost"):
            infer(problem, rows, own, output=tmp_path / "out.npy", piece=10, device="cpu", progress=kill)
    there = pieces_in(tmp_path)
    assert len(there) == len(seen) - 1 < 60
    run = infer(problem, rows, client, output=tmp_path / "out.npy", resume=True, device="cpu")
    assert run.resumed == 10 * len(there)
    assert outputs_in(tmp_path) == right


@pytest.fixture
def begun(client: Any, problem: Path, rows: Any, tmp_path: Path) -> Path:
    """An output of which one piece of two is done."""

    def stop(task: str, done: int, count: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        infer(problem, rows, client, output=tmp_path / "out.npy", piece=300, device="cpu", progress=stop)
    assert len(pieces_in(tmp_path)) == 1
    return tmp_path / "out.npy"


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.ones((600, 64), np.float32)},
        {"classes": True},
        {"reproducible": True},
        {"network": sparsenn.radixnet(64, 4)},
    ],
    ids=["rows", "classes", "options", "network"],
)
def test_pieces_of_another_run_are_not_gone_on_with(
    client: Any, problem: Path, rows: Any, begun: Path, change: dict[str, Any]
) -> None:
    given = {"network": problem, "rows": rows, "device": "cpu", "output": begun, "resume": True} | change
    with pytest.raises(UsageError, match="belongs to a run of another network, other options or other samples"):
        infer(client=client, **given)


@pytest.mark.parametrize("rows", [np.zeros((3, 65)), np.zeros(3), [[1.0]], "none.npy", "none.csv"])
def test_rows_that_do_not_fit_are_told(client: Any, problem: Path, rows: Any) -> None:
    with pytest.raises(sparsenn.SparseNNError, match=r"the rows|no such file|No such file|rows are streamed from"):
        infer(problem, rows, client, device="cpu")
