"""Rows run by a cluster: the outputs of one session, from every kind of rows, lazily and into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

import sparsenn
from sparsenn.distributed import infer
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
    lazy = infer(dataset.network, dense, client, piece=250, device="cpu")
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == ((600, 64), np.float32, (250, 250, 100))
    assert dask.is_dask_collection(lazy)
    right = session(dense)
    assert right.any()
    assert bits(lazy.compute()) == bits(right)


def test_sparse_rows_give_sparse_outputs(client: Any, dataset: Dataset, rows: Any, session: sparsenn.Session) -> None:
    right = session(rows)
    for given in (rows, rows.tocsc(), dataset.inputs):
        found = infer(dataset.network, given, client, piece=250, device="cpu").compute()
        assert isinstance(found, csr_array)
        assert bits(found) == bits(right)
    found = infer(dataset.network, rows, client, piece=250, form="dense", device="cpu").compute()
    assert bits(found) == bits(session(rows, form="dense"))


def test_dask_arrays_are_run_chunk_by_chunk(client: Any, problem: Path, rows: Any, session: sparsenn.Session) -> None:
    dense, array = rows.toarray(), pytest.importorskip("dask.array")
    given = array.from_array(dense, chunks=(170, 40))
    lazy = infer(problem, given, client, device="cpu")
    assert lazy.chunks == ((170, 170, 170, 90), (64,))
    assert bits(lazy.compute()) == bits(session(dense))
    chosen = infer(problem, given[given[:, 0] > 0], client, device="cpu")
    assert bits(chosen.compute()) == bits(session(dense[dense[:, 0] > 0]))


def test_files_are_read_by_workers(
    client: Any, problem: Path, rows: Any, session: sparsenn.Session, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", rows.toarray())
    found = infer(problem, tmp_path / "rows.npy", client, piece=250, device="cpu").compute()
    assert bits(found) == bits(session(rows.toarray()))
    assert bits(infer(problem, problem, client, piece=250, device="cpu").compute()) == bits(session(rows))


def test_without_a_cluster_threads_compute(problem: Path, rows: Any, session: sparsenn.Session) -> None:
    lazy = infer(problem, rows, None, piece=250, device="cpu")
    assert bits(lazy.compute(scheduler="threads")) == bits(session(rows))


def test_reproducible_networks_of_any_kind_have_the_same_bits(client: Any, rng: np.random.Generator) -> None:
    weights = [rng.standard_normal((30, 50)).astype(np.float32), rng.standard_normal((50, 7)).astype(np.float32)]
    network, rows = sparsenn.Network.from_scipy(weights), rng.standard_normal((101, 30)).astype(np.float32)
    right = sparsenn.Session(network, device="cpu", reproducible=True)(rows)
    lazy = infer(network, rows, client, piece=10, device="cpu", reproducible=True)
    assert bits(lazy.compute()) == bits(right)


def test_precision_float64_gives_float64(client: Any, dataset: Dataset, rows: Any) -> None:
    lazy = infer(dataset.network, rows, client, piece=250, device="cpu", precision="float64")
    found = lazy.compute()
    assert lazy.dtype == found.dtype == np.float64
    assert bits(found) == bits(sparsenn.Session(dataset.network, device="cpu", precision="float64")(rows))


@pytest.mark.parametrize("kind", ["csr", "dense", "file", "chunks"])
def test_a_file_holds_all_outputs(
    client: Any, problem: Path, rows: Any, session: sparsenn.Session, tmp_path: Path, kind: str
) -> None:
    dense, array = rows.toarray(), pytest.importorskip("dask.array")
    given = {"csr": rows, "dense": dense, "file": problem, "chunks": array.from_array(dense, chunks=(170, 40))}[kind]
    right, told = session(rows, form="dense"), list[int]()

    def tell(task: str, done: int, count: int) -> None:
        told.append(done)

    run = infer(problem, given, client, output=tmp_path / "out.npy", piece=250, device="cpu", progress=tell)
    assert bits(np.load(tmp_path / "out.npy")) == bits(right)
    assert (run.rows, run.resumed, run.pieces, run.workers) == (600, 0, 3, 2)
    assert run.categories.tolist() == np.flatnonzero(right.any(axis=1)).tolist()
    assert (told[0], told[-1], sorted(told)) == (0, 600, told)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_files_are_those_that_streaming_writes(client: Any, problem: Path, dataset: Dataset, tmp_path: Path) -> None:
    for suffix in (".tsv", ".h5", ".npy"):
        one, many = tmp_path / f"one{suffix}", tmp_path / f"many{suffix}"
        sparsenn.stream(dataset.network, problem, one, device="cpu")
        infer(problem, problem, client, output=many, piece=70, device="cpu")
        assert many.read_bytes() == one.read_bytes()


def test_rows_are_prepared_and_classes_told(client: Any, rng: np.random.Generator, tmp_path: Path) -> None:
    network = sparsenn.Network.from_scipy([rng.standard_normal((30, 7))], activation=sparsenn.Identity())
    rows = rng.standard_normal((101, 30)).astype(np.float32)
    how = {"prepare": np.negative, "classes": True, "piece": 10, "device": "cpu"}
    infer(network, rows, client, output=tmp_path / "out.npy", **how)
    right = sparsenn.Session(network, device="cpu")(-rows).argmax(axis=1)
    assert np.load(tmp_path / "out.npy").tolist() == right.tolist()


def test_no_rows_are_no_outputs(client: Any, problem: Path, tmp_path: Path) -> None:
    none = np.zeros((0, 64), np.float32)
    assert infer(problem, none, client, output=tmp_path / "out.npy", device="cpu").rows == 0
    assert np.load(tmp_path / "out.npy").shape == (0, 64)
    assert infer(problem, none, client, device="cpu").compute().shape == (0, 64)
