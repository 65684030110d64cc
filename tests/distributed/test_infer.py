"""Rows run by a cluster: the outputs of one session, from every kind of rows; faults of workers in one line."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import sparsenn
from sparsenn.distributed import infer
from sparsenn.errors import UsageError, WorkerError
from sparsenn.io import Dataset

dask = pytest.importorskip("dask", reason="the extra dask is not installed")
pytest.importorskip("distributed.client", reason="the extra dask is not installed")


def bits(outputs: Any) -> list[bytes]:
    parts = [outputs] if isinstance(outputs, np.ndarray) else [outputs.indptr, outputs.indices, outputs.data]
    return [part.tobytes() for part in parts]


@pytest.fixture(scope="module")
def rows(dataset: Dataset) -> Any:
    return dataset.inputs.to_scipy()


@pytest.fixture(scope="module")
def session(dataset: Dataset) -> sparsenn.Session:
    return sparsenn.Session(dataset.network, device="cpu")


def test_dense_rows_give_the_bits_of_a_session(
    client: Any, dataset: Dataset, rows: Any, session: sparsenn.Session
) -> None:
    dense = rows.toarray()
    lazy = infer(dataset.network, dense, piece=250, device="cpu")
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == ((600, 64), np.float32, (250, 250, 100))
    assert dask.is_dask_collection(lazy)
    right = session(dense)
    assert right.any()
    assert bits(lazy.compute()) == bits(right)


def test_sparse_rows_give_sparse_outputs(client: Any, dataset: Dataset, rows: Any, session: sparsenn.Session) -> None:
    right = session(rows)
    for given in (rows, rows.tocsc(), dataset.inputs):
        found = infer(dataset.network, given, piece=250, device="cpu").compute()
        assert isinstance(found, csr_array)
        assert bits(found) == bits(right)
    found = infer(dataset.network, rows, piece=250, form="dense", device="cpu").compute()
    assert bits(found) == bits(session(rows, form="dense"))


def test_dask_arrays_are_run_chunk_by_chunk(client: Any, problem: Path, rows: Any, session: sparsenn.Session) -> None:
    dense, array = rows.toarray(), pytest.importorskip("dask.array")
    given = array.from_array(dense, chunks=(170, 40))
    lazy = infer(problem, given, device="cpu")
    assert lazy.chunks == ((170, 170, 170, 90), (64,))
    assert bits(lazy.compute()) == bits(session(dense))
    chosen = infer(problem, given[given[:, 0] > 0], device="cpu")
    assert bits(chosen.compute()) == bits(session(dense[dense[:, 0] > 0]))


def test_files_are_read_by_workers(
    client: Any, problem: Path, rows: Any, session: sparsenn.Session, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", rows.toarray())
    found = infer(problem, tmp_path / "rows.npy", piece=250, device="cpu").compute()
    assert bits(found) == bits(session(rows.toarray()))
    assert bits(infer(problem, problem, piece=250, device="cpu").compute()) == bits(session(rows))


def test_without_a_cluster_threads_compute(problem: Path, rows: Any, session: sparsenn.Session) -> None:
    lazy = infer(problem, rows, piece=250, device="cpu")
    assert bits(lazy.compute(scheduler="threads")) == bits(session(rows))


def test_no_rows_are_no_outputs(client: Any, problem: Path) -> None:
    assert infer(problem, np.zeros((0, 64), np.float32), device="cpu").compute().shape == (0, 64)


@pytest.mark.parametrize("prepare", [None, np.negative])
def test_options_of_two_runs_do_not_mix(
    client: Any, dataset: Dataset, rows: Any, session: sparsenn.Session, prepare: Any
) -> None:
    dense = rows.toarray()
    first, second = (infer(dataset.network, dense, prepare=each, device="cpu") for each in (prepare, np.square))
    found, other = dask.compute(first, second)
    assert bits(found) == bits(session(dense if prepare is None else prepare(dense)))
    assert bits(other) == bits(session(np.square(dense)))


def test_killed_workers_lose_nothing(client: Any, dataset: Dataset, rows: Any, session: sparsenn.Session) -> None:
    pids = client.run(os.getpid)
    lazy = client.persist(infer(dataset.network, rows.toarray(), piece=10, device="cpu"))
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    assert bits(lazy.compute()) == bits(session(rows.toarray()))
    client.wait_for_workers(2, timeout=60)


# ---- Faults ----------------------------------------------------------------------------------------------------------

WORK = "sparsenn.distributed.cluster.work"
FORGET = f"import {WORK} as s; s._session_of.cache_clear()"
OTHER_VERSION = f"import sparsenn, {WORK} as s; sparsenn.__version__ = s.__version__ = '9.9'"
OWN_VERSION = f"import sparsenn, {WORK} as s; sparsenn.__version__ = s.__version__ = {sparsenn.__version__!r}"
OTHER_FILE = f"import {WORK} as s; s.file_sha256 = lambda path: 64 * '0'"
OWN_FILE = f"import {WORK} as s, sparsenn.runtime.storage as d; s.file_sha256 = d.file_sha256"


@pytest.mark.parametrize(
    ("code", "undo", "why"),
    [
        (OTHER_VERSION, OWN_VERSION, "sparsenn is 9.9 there, .* install the same version"),
        (OTHER_FILE, OWN_FILE, "problem.h5: is a different file there"),
    ],
    ids=["version", "content"],
)
def test_a_worker_that_cannot_run_the_network_is_named(
    client: Any, problem: Path, rows: Any, code: str, undo: str, why: str
) -> None:
    client.run(exec, f"{FORGET}\n{code}", {})
    try:
        with pytest.raises(WorkerError, match=rf"^worker tcp://.*: .*{why}"):
            infer(problem, rows, device="cpu").compute()
    finally:
        client.run(exec, f"{FORGET}\n{undo}", {})


def test_files_that_are_gone(client: Any, problem: Path, rows: Any, tmp_path: Path) -> None:
    for network, given in ((tmp_path / "network.h5", rows), (problem, tmp_path / "rows.npy")):
        shutil.copy(problem, tmp_path / "network.h5")
        np.save(tmp_path / "rows.npy", rows.toarray())
        lazy = infer(network, given, device="cpu")
        (tmp_path / "network.h5").unlink()
        (tmp_path / "rows.npy").unlink()
        client.run(exec, FORGET, {})
        with pytest.raises(WorkerError, match=rf"^worker tcp://.*: {tmp_path}/(network\.h5|rows\.npy): no such file"):
            lazy.compute()


def test_what_is_wrong_everywhere_is_reported_as_by_a_session(client: Any, problem: Path, rows: Any) -> None:
    with pytest.raises(UsageError, match="unknown cpu kernel"):
        infer(problem, rows, device="cpu", kernel="none").compute()


@pytest.mark.parametrize("rows", [np.zeros((3, 65)), np.zeros(3), [[1.0]], "none.npy", "none.csv"])
def test_rows_that_do_not_fit_are_refused(problem: Path, rows: Any) -> None:
    with pytest.raises(sparsenn.SparseNNError, match=r"the rows|no such file|No such file|rows are streamed from"):
        infer(problem, rows, device="cpu")
