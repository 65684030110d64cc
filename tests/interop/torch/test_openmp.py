"""Threads of PyTorch's OpenMP runtime compute slices, in place of workers that would take the cores from them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

from sparsenn.backends import backend_for
from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cpu import panel, row_threads
from sparsenn.backends.cpu import stack as stack_module
from sparsenn.backends.cpu.panel import PANEL
from sparsenn.backends.cpu.row_by_row import GATHERED_ROWS, ROWS
from sparsenn.backends.stepwise import chain_of
from sparsenn.formats import CSC
from sparsenn.layers import ReLU, SparseLinear

torch = pytest.importorskip("torch", reason="needs PyTorch")

THREADS = 3


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for module in (stack_module, row_threads, panel):
        monkeypatch.setattr(module, "thread_count", lambda: THREADS)
    own = row_threads._RowThreads()
    monkeypatch.setattr(row_threads, "_process", own)
    row_threads.use_openmp(torch._C.__file__)
    if not own._team:
        pytest.skip("PyTorch has no OpenMP runtime of GCC's kind here")
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield own
    torch.set_num_threads(before)
    own.end()


def chain(kernel: Any, rows: int) -> Any:
    rng = np.random.default_rng(0)
    matrix = csc_array((rng.normal(size=(1000, 1000)) * (rng.random((1000, 1000)) < 0.3)).astype(np.float32))
    layer = SparseLinear(CSC.from_scipy(matrix), 0.1, ReLU())
    backend = backend_for("cpu")
    stack = backend.prepare([layer], [np.ones(1000, np.int64)])
    return chain_of(backend, kernel, stack, [layer], SparseProblem(rows, "dense", 1, False))


def inputs(rows: int) -> Any:
    return np.random.default_rng(1).normal(size=(rows, 1000)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize("kernel", [ROWS, GATHERED_ROWS, PANEL], ids=lambda kernel: kernel.name)
def test_slices_have_the_same_bits(kernel: Any, rows: int, process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    product, features = chain(kernel, rows), inputs(rows)
    found = [product.run(features, False).features.copy() for _ in range(5)]
    assert process.state[row_threads.ENTERED] == THREADS
    assert not process._threads
    process._after_fork()  # forgets OpenMP
    assert all(np.array_equal(each, product.run(features, False).features) for each in found)
    assert len(process._threads) == THREADS - 1


def test_several_threads_may_call(process: Any) -> None:
    features = inputs(1)
    products = [chain(ROWS, 1) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda product: [product.run(features, False).features for _ in range(20)], products))
    assert all(np.array_equal(each, found[0][0]) for several in found for each in several)


def test_workers_that_have_started_end(process: Any) -> None:
    process._after_fork()
    row_threads.row_threads()
    workers = list(process._threads)
    row_threads.use_openmp(torch._C.__file__)
    assert process._team
    assert not any(worker.is_alive() for worker in workers)
    assert not process._threads


def test_a_forked_child_has_workers_of_its_own(process: Any) -> None:
    product, features = chain(PANEL, 16), inputs(16)
    expected = product.run(features, False).features.copy()
    child = os.fork()
    if not child:
        threading.Timer(60, os._exit, [2]).start()
        os._exit(not np.array_equal(product.run(features, False).features, expected) or not process._threads)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("library", ["/no/such/library.so", np._core._multiarray_umath.__file__])
def test_other_libraries_change_nothing(library: str, process: Any) -> None:
    process._after_fork()
    row_threads.use_openmp(library)
    assert not process._team
