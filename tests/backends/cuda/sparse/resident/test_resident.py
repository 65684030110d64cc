"""The resident engine: its host side everywhere, its answers where there is a GPU."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_array
from sparse_layers import sparse_layer as layer

from sparsenn import infer
from sparsenn.backends.cuda.sparse.resident import chain as resident
from sparsenn.backends.cuda.sparse.resident.chain import tile_shape, why_not
from sparsenn.backends.cuda.sparse.resident.stages import KERNEL_BYTES, stage_lengths
from sparsenn.backends.machine import H200
from sparsenn.engine import Session, plan
from sparsenn.formats import CSR, from_dense
from sparsenn.io.challenge.folder import read_official
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network


@given(st.integers(1, 3000))
def test_stages_cover_the_layers_and_grow(layers):
    lengths = stage_lengths(layers)
    assert sum(lengths) == layers
    assert lengths[:-1] == sorted(lengths[:-1])
    assert len(lengths) <= 2 * layers.bit_length()


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=4), st.integers(0, 1 << 17))
def test_a_tile_fits_and_a_larger_one_would_not(widths, inputs):
    shape = tile_shape(widths, inputs, H200.block_bytes)
    if shape is None:
        assert 4 * 2 * (max(widths) + 1) > H200.block_bytes - KERNEL_BYTES or inputs // 8 > H200.block_bytes // 2
        return
    log_rows, half, both = shape
    rows = 1 << log_rows
    assert half >= (max(widths) + 1) * rows
    assert both - half >= half
    assert 32 * (both - half) > inputs * rows
    assert 4 * both + KERNEL_BYTES <= H200.block_bytes


def test_what_cannot_run_resident_is_told():
    network = Network((layer(np.eye(4)),))
    ones = CSR((1, 4), np.array([0, 2]), np.uint16([0, 3]), np.float32([1]))
    assert why_not(H200, network, ones) is None
    assert why_not(H200, network, from_dense(np.arange(4)[None])) is None
    wide = Network((layer(np.ones((1, 60_000))),))
    assert why_not(H200, wide, from_dense(np.ones((1, 1)))) is None
    many = Network((SparseLinear.from_scipy(csc_array((2_000_000, 1), dtype=np.float32), None, ReLU()),))
    assert why_not(H200, many, CSR((1, 2_000_000), np.array([0, 2]), np.int32([0, 9]), np.float32([1, 2]))) is None
    ones = CSR((1, 2_000_000), np.array([0, 2]), np.int32([0, 9]), np.float32([1]))
    assert "2,000,000 inputs" in why_not(H200, many, ones)


@pytest.mark.gpu
def test_rows_that_begin_anywhere_in_memory(rng, cupy):
    network = Network(tuple(layer((rng.random((1100, 1100)) < 0.02) * rng.normal(size=(1100, 1100))) for _ in range(3)))
    matrix = (rng.random((2000, 1100)) < 0.2) * rng.normal(size=(2000, 1100)).astype(np.float32)
    session, found = Session(network, device="cuda", kernel="resident"), []
    for first in range(3):
        rows = cupy.empty(matrix.size + first, np.float32)[first:].reshape(matrix.shape)
        rows[...] = cupy.asarray(matrix.astype(np.float32))
        found.append(cupy.asnumpy(session(rows)))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 300, 5000])
@pytest.mark.parametrize("valued", [False, True])
def test_rows_that_do_not_fit_go_in_tiles(rows, valued, monkeypatch, rng):
    monkeypatch.setattr(resident, "fits_in_shared", lambda width, room: False)
    widths = [130, 260, 64, 700, 33, 1100, 90]
    layers = [layer((rng.random(shape) < 0.1) * rng.normal(size=shape)) for shape in pairwise(widths)]
    matrix = (rng.random((rows, 130)) < 0.2) * (rng.integers(1, 3, (rows, 130)) if valued else 1.0)
    matrix[::3] = matrix[0]
    inputs, network = from_dense(matrix.astype(np.float32)), Network(tuple(layers))
    found = infer(network, inputs, device="cuda", kernel="resident")
    expected = infer(network, inputs, device="cpu", kernel="panel")
    assert np.array_equal(found.dense, expected.dense)
    assert np.array_equal(found.categories, expected.categories)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 31, 64, 127, 128, 129, 300, 1100, 5000])
@pytest.mark.parametrize("rows", [1, 200, 3000])
@pytest.mark.parametrize("valued", [False, True])
def test_every_shape_of_tile_and_cluster(rng, width, rows, valued):
    """Few rows and many, narrow layers and wide; sums are exact, so every bit and every count must agree."""
    weights = [
        (rng.integers(-8, 9, (width, width)) / 16 * (rng.random((width, width)) < min(1.0, 12 / width)))
        for _ in range(5)
    ]
    network = Network(tuple(layer(matrix, np.round(rng.normal(size=width) * 4) / 16) for matrix in weights))
    inputs = from_dense((rng.random((rows, width)) < 0.3) * (rng.integers(1, 3, (rows, width)) if valued else 1.0))
    on_gpu = infer(network, inputs, device="cuda", kernel="resident")
    on_cpu = infer(network, inputs, device="cpu", kernel="panel")
    assert np.array_equal(on_gpu.outputs.to_scipy().toarray(), on_cpu.outputs.to_scipy().toarray())
    for one, other in zip(on_gpu.statistics, on_cpu.statistics, strict=True):
        assert (one.active_rows, one.nonzeros) == (other.active_rows, other.nonzeros)


@pytest.mark.gpu
def test_equal_rows_become_one_and_runs_repeat_to_the_bit(rng):
    network = Network(tuple(layer(rng.normal(size=(40, 40)), 0.1) for _ in range(12)))
    inputs = from_dense(np.repeat(rng.random((3, 40)) < 0.5, 1000, axis=0))
    session = Session(network, device="cuda", kernel="resident")
    first, second = session.run(inputs), session.run(inputs)
    assert first.statistics[-1].distinct_rows == 3
    assert first.statistics[-1].rows <= 3
    assert first.outputs.values.tobytes() == second.outputs.values.tobytes()


@pytest.mark.gpu
def test_the_official_images_give_their_categories(official_folder):
    dataset = read_official(official_folder)
    for merging in (True, False):
        result = infer(dataset.network, dataset.inputs, device="cuda", kernel="resident", merging=merging)
        assert np.array_equal(result.categories, dataset.truth)


@pytest.mark.gpu
def test_auto_takes_it_where_it_can(rng):
    network = Network(tuple(layer(np.eye(1000)) for _ in range(20)))
    assert plan(network, from_dense(np.ones((2, 1000))), device="cuda", merging=False).kernel.name == "resident"
