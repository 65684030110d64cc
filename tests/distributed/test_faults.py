"""What goes wrong in clusters: computed elsewhere, or told in one line; nothing is lost, and nothing is there twice."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clusters import external_cluster

import sparsenn
from sparsenn.distributed import infer, local_cluster
from sparsenn.distributed.cluster import tasks
from sparsenn.distributed.cluster.tasks import connected, worker_count
from sparsenn.distributed.cluster.work import Work
from sparsenn.distributed.pieces import Piece, Pieces
from sparsenn.errors import ResourceError, UsageError, WorkerError
from sparsenn.io import Dataset
from sparsenn.runtime.storage.atomic import explained

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
        (f"{OWN_FILE}; {NO_FILE}", OWN_FILE, "/none/problem.h5: No such file or directory"),
    ],
    ids=["version", "content", "missing"],
)
def test_a_worker_that_cannot_run_the_network_is_named(
    client: Any, alter: Callable[..., None], problem: Path, rows: Any, code: str, undo: str, why: str
) -> None:
    alter(code, undo)
    with pytest.raises(WorkerError, match=rf"^worker tcp://.*: .*{why}"):
        infer(problem, rows, client, device="cpu")


def test_a_worker_that_turns_out_to_be_unfit_ends_the_run_in_one_line(
    client: Any, alter: Callable[..., None], problem: Path, rows: Any, tmp_path: Path
) -> None:
    alter("", OWN_FILE)

    def spoil(task: str, done: int, count: int) -> None:
        if not done:
            client.run(exec, f"{FORGET}; {OTHER_FILE}", {})

    with pytest.raises(WorkerError, match=r"^worker tcp://.*: .*problem.h5: is a different file there"):
        infer(problem, rows, client, output=tmp_path / "out.npy", piece=10, device="cpu", progress=spoil)


def test_a_lazy_array_tells_which_worker_could_not(
    client: Any, alter: Callable[..., None], problem: Path, rows: Any
) -> None:
    lazy = infer(problem, rows, client, piece=300, device="cpu")
    alter(OTHER_FILE, OWN_FILE)
    with pytest.raises(WorkerError, match=r"^worker tcp://.*: .*problem.h5: is a different file there"):
        lazy.compute()


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


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.03, 0.1, 0.3])
def test_a_worker_that_is_killed_as_a_run_begins_loses_nothing(
    client: Any, right: bytes, dataset: Dataset, rows: Any, tmp_path: Path, seconds: float
) -> None:
    """Also while the network is sent to it, or it opens its session."""
    client.wait_for_workers(2, timeout=60)
    pid, *_ = client.run(os.getpid, on_error="ignore").values()  # the worker killed last may still be listed
    killer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    killer.start()
    infer(dataset.network, rows, client, output=tmp_path / "out.npy", piece=100, device="cpu")
    killer.join()
    assert outputs_in(tmp_path) == right
    client.wait_for_workers(2, timeout=60)


def test_a_worker_that_loses_its_connection_loses_nothing(
    dataset: Dataset, rows: Any, right: bytes, tmp_path: Path
) -> None:
    cut = "from distributed import Worker; [worker.batched_stream.abort() for worker in Worker._instances]"
    with local_cluster(2, device="cpu") as own:
        first, *_ = own.nthreads()

        def lose(task: str, done: int, count: int) -> None:
            if done == 50:
                own.run(exec, cut, {}, workers=[first], on_error="ignore")

        infer(dataset.network, rows, own, output=tmp_path / "out.npy", piece=10, device="cpu", progress=lose)
    assert outputs_in(tmp_path) == right


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


def test_a_run_that_loses_all_its_workers_waits_for_others(
    problem: Path, rows: Any, right: bytes, tmp_path: Path
) -> None:
    with external_cluster(tmp_path, workers=1) as cluster, connected(cluster.address) as own:
        killed = []

        def kill(task: str, done: int, count: int) -> None:
            if not killed and done:
                killed.append(done)
                cluster.workers[0].kill()
                cluster.start_worker()

        infer(problem, rows, own, output=tmp_path / "out.npy", piece=10, device="cpu", progress=kill)
    assert outputs_in(tmp_path) == right


def test_rows_that_kill_workers_end_the_run_in_one_line(
    client: Any, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 0)
    with pytest.raises(WorkerError, match=r"^the workers that computed some rows were lost, the last at tcp:"):
        infer(
            dataset.network, _computed("__import__('os')._exit(1)"), client, output=tmp_path / "out.npy", device="cpu"
        )
    client.wait_for_workers(2, timeout=60)


def test_what_else_a_task_raises_is_told_in_one_line(client: Any, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"^a worker of the cluster at tcp://.* failed: ZeroDivisionError: division by"
    ):
        infer(dataset.network, _computed("1 / 0"), client, output=tmp_path / "out.npy", device="cpu")


def _computed(code: str) -> Any:
    """A Dask array of 5 rows that are what some code evaluates to."""
    import dask
    import dask.array

    return dask.array.from_delayed(dask.delayed(eval)(code), (5, 64), np.float32)


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


CLIENT = """
import sys
import numpy as np
import sparsenn.distributed

def tell(task, done, count):
    print(done, flush=True)

if __name__ == "__main__":
    problem, rows, output = sys.argv[1:]
    with sparsenn.distributed.local_cluster(2, device="cpu") as client:
        print(*client.run(__import__("os").getpid).values(), flush=True)
        sparsenn.distributed.infer(problem, rows, client, output=output, piece=10, device="cpu", progress=tell)
"""


def test_a_killed_client_takes_its_workers_along_and_another_goes_on(
    client: Any, problem: Path, rows: Any, right: bytes, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "client.py").write_text(CLIENT)
    command = [sys.executable, tmp_path / "client.py", problem, tmp_path / "rows.npy", tmp_path / "out.npy"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        while int(process.stdout.readline()) < 20:
            pass
        process.kill()
    end = time.monotonic() + 30
    while any(map(_runs, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(_runs, pids))
    there = len(pieces_in(tmp_path))
    assert 2 <= there < 60
    run = infer(problem, tmp_path / "rows.npy", client, output=tmp_path / "out.npy", resume=True, device="cpu")
    assert run.resumed == 10 * there
    assert outputs_in(tmp_path) == right


def _runs(pid: int) -> bool:
    """Whether a process is there, and no mere entry of one that ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_full_disk_is_told_and_leaves_what_is_done(
    client: Any, problem: Path, rows: Any, right: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Pieces.keep

    def full(self: Pieces, number: int, piece: Piece, outputs: Any) -> None:
        with explained(tmp_path / "out.npy"):
            if len(self.done) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            keep(self, number, piece, outputs)

    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "keep", full)
        with pytest.raises(ResourceError, match="the disk is full; free some space"):
            infer(problem, rows, client, output=tmp_path / "out.npy", piece=100, device="cpu")
    assert len(pieces_in(tmp_path)) == 2
    run = infer(problem, rows, client, output=tmp_path / "out.npy", resume=True, device="cpu")
    assert run.resumed == 200
    assert outputs_in(tmp_path) == right


def test_one_run_at_a_time_writes_a_file(client: Any, problem: Path, rows: Any, tmp_path: Path) -> None:
    refused = []

    def again(task: str, done: int, count: int) -> None:
        with pytest.raises(ResourceError, match=r"out\.npy: another run is writing it") as error:
            infer(problem, rows, client, output=tmp_path / "out.npy", resume=True, device="cpu")
        refused.append(error)

    infer(problem, rows, client, output=tmp_path / "out.npy", piece=300, device="cpu", progress=again)
    assert refused


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


def test_memory_may_be_less_for_a_run_that_goes_on(
    client: Any, problem: Path, rows: Any, right: bytes, begun: Path
) -> None:
    how = {"batch_size": 7, "memory_limit": "1G", "weight_memory": "1G"}
    run = infer(problem, rows, client, output=begun, resume=True, device="cpu", **how)
    assert run.resumed == 300
    assert outputs_in(begun.parent) == right


def test_pieces_are_not_computed_anew_unasked(client: Any, problem: Path, rows: Any, begun: Path) -> None:
    with pytest.raises(UsageError, match="holds the work of an earlier run: resume it"):
        infer(problem, rows, client, output=begun, device="cpu")


@pytest.mark.parametrize("name", ["out", "out.csv"])
def test_an_output_of_no_kind_is_told(client: Any, problem: Path, rows: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"rows are streamed to .tsv, .npy, .h5"):
        infer(problem, rows, client, output=tmp_path / name, device="cpu")


def test_no_scheduler_is_told() -> None:
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(WorkerError, match=r"^there is no scheduler at tcp://127.0.0.1:1"),
    ):
        connected("tcp://127.0.0.1:1")


@pytest.mark.parametrize("rows", [np.zeros((3, 65)), np.zeros(3), [[1.0]], "none.npy", "none.csv"])
def test_rows_that_do_not_fit_are_told(client: Any, problem: Path, rows: Any) -> None:
    with pytest.raises(sparsenn.SparseNNError, match=r"the rows|no such file|No such file|rows are streamed from"):
        infer(problem, rows, client, device="cpu")


def test_a_lost_scheduler_is_told_where_workers_are_counted() -> None:
    def nthreads() -> dict[str, int]:
        raise OSError("closed")

    lost = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://10.0.0.1:8786"), nthreads=nthreads)
    with pytest.raises(WorkerError, match=r"^the scheduler at tcp://10\.0\.0\.1:8786 is lost"):
        worker_count(lost)
