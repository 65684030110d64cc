"""Estimates of how long sparse layers take: of the machine that they were fitted on, and of others."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends.cuda.sparse.estimates import LAUNCH_SECONDS, TILE_SECONDS, chunks_seconds, resident_seconds
from sparsenn.backends.machine import A100, H200
from sparsenn.formats import from_dense
from sparsenn.layers import ReLU, SparseLinear


@pytest.fixture(scope="module")
def layers():
    rng = np.random.default_rng(3)
    matrix = ((rng.random((1024, 1024)) < 0.03) * rng.normal(size=(1024, 1024))).astype(np.float32)
    return (SparseLinear.from_scipy(from_dense(matrix).to_scipy(), -0.1, ReLU()),) * 5


def test_layers_add_up(layers):
    for estimate in (chunks_seconds, resident_seconds):
        assert estimate(H200, layers, 5000) == pytest.approx(5 * estimate(H200, layers[:1], 5000))
        assert estimate(H200, layers, 50_000) > estimate(H200, layers, 5000) > estimate(H200, layers, 0) > 0
        assert estimate(H200, layers * 100, 5000) == pytest.approx(100 * estimate(H200, layers, 5000))


def test_half_the_clock_takes_twice_the_time(layers):
    slower = replace(H200, clock=H200.clock / 2)
    for estimate, fixed in ((chunks_seconds, LAUNCH_SECONDS), (resident_seconds, TILE_SECONDS)):
        there, here = (estimate(machine, layers, 60_000) - 5 * fixed for machine in (slower, H200))
        assert there == pytest.approx(2 * here)


def test_fewer_and_slower_multiprocessors_take_longer(layers):
    for estimate in (chunks_seconds, resident_seconds):
        assert estimate(A100, layers, 60_000) > 1.2 * estimate(H200, layers, 60_000)


def test_wide_layers_of_many_rows_are_left_to_chunks(layers):
    matrix = from_dense(np.ones((2048, 2048), np.float32)).to_scipy()
    wide = [SparseLinear.from_scipy(matrix, -0.1, ReLU())]
    assert chunks_seconds(H200, wide, 60_000) < resident_seconds(H200, wide, 60_000)
    assert chunks_seconds(H200, layers, 1000) > resident_seconds(H200, layers, 1000)
