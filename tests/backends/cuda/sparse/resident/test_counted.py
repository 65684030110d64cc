"""The first layer by counting: how its weights are laid out everywhere, its answers where there is a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import expected
from sparse_layers import sparse_layer

from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.sparse.conversion import index_type
from sparsenn.backends.cuda.sparse.resident.chain import _STAGE, Call
from sparsenn.backends.cuda.sparse.resident.counted import (
    STATIC_BYTES,
    block_threads,
    count_inputs,
    counted_first,
    pack_counted,
    rows_for,
    word_bytes,
)
from sparsenn.backends.cuda.sparse.resident.packed import pack_network
from sparsenn.backends.cuda.sparse.stack import upload
from sparsenn.backends.machine import H200
from sparsenn.formats import CSC, CSR
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network


@pytest.mark.parametrize(
    ("inputs", "degree", "dtype"),
    [
        (65_535, 5, np.uint16),
        (65_536, 8, np.uint16),  # nothing to fill up
        (65_536, 1, np.uint16),
        (65_536, 5, np.int32),
        (65_537, 8, np.int32),
    ],
)
def test_indices_are_as_short_as_can_be(rng, inputs, degree, dtype):
    indices = np.sort(rng.choice(inputs - 1, degree, replace=False))
    indices[-1] = inputs - 1
    kind = np.uint16 if inputs <= 65_536 else np.int32
    weights = CSC((inputs, 1), np.array([0, degree]), indices.astype(kind), np.float32([0.5]))
    counted = pack_counted(weights)
    assert counted.quads.dtype == dtype


def test_outputs_of_one_run_lie_densely():
    """32 outputs of 32 equal weights: 8 quads a lane, 1 run, nothing else."""
    indices = np.tile(np.arange(32, dtype=np.uint16), 64)
    counted = pack_counted(CSC((32, 64), np.arange(65) * 32, indices, np.float32([0.0625])))
    assert counted.quads.shape == (16, 32, 4)
    assert counted.runs.shape == (2, 32, 2)
    assert counted.nbytes == 16 * 32 * 8 + 2 * 32 * 8 + 64 * 4 + 2 * 8
    assert counted.pointer is None


@given(st.integers(1, 1 << 18), st.integers(1 << 10, 1 << 18))
def test_as_many_rows_as_fit(inputs, room):
    rows = rows_for(inputs, room)
    if rows is None:
        assert inputs + 4 + STATIC_BYTES > room
        return
    assert inputs * rows / 8 + rows / 8 <= word_bytes(inputs, rows) + 4 <= room - STATIC_BYTES + 4
    assert rows == 32 or rows * 2 / 8 * inputs + 4 + STATIC_BYTES > room or (rows == 16 and inputs >= 65_536)
    threads = block_threads(inputs, rows, room)
    assert threads in (128, 256, 512, 1024)
    assert threads <= (512 if rows == 32 else 1024)


def test_rows_for_the_challenge():
    assert [rows_for(inputs, H200.block_bytes) for inputs in (1024, 16_384, 65_536, 200_000)] == [32, 32, 16, 8]
    assert rows_for(240_000, H200.block_bytes) is None


@pytest.mark.parametrize(
    ("weights", "outputs", "units", "exponent"),
    [
        ([0.0625, 0.0625], [0, 0], 2, -4),
        ([0.0625, 0.0625], [0, 1], 1, -4),
        ([-0.75, 1.5, 4.0], [0, 1, 1], 22, -2),
        ([0.0, -0.0], [0, 0], 0, 0),
        ([], [], 0, 0),
        ([1.0, 2.0**-149], [0, 1], 1 << 25, -149),
        ([3e38, 3e38], [0, 0], None, None),
        ([2.0**-149], [0], 1, -149),
    ],
)
def test_weights_in_units_of_a_power_of_two(weights, outputs, units, exponent):
    values = np.float32(weights)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(outputs or [0], minlength=2) * bool(weights))]).astype(np.int64)
    indices = np.concatenate([np.arange(size) for size in np.diff(indptr)]).astype(np.uint16)
    counted = pack_counted(CSC((3, 2), indptr, indices, values))
    if units is None:
        assert counted.units < 1 << 24  # large, but few digits
        assert float(counted.units) * 2.0**counted.exponent == pytest.approx(6e38)
    else:
        assert (counted.units, counted.exponent) == (units, exponent)


def test_weights_that_are_not_finite_have_no_unit():
    assert pack_counted(CSC((3, 1), np.array([0, 2]), np.uint16([0, 1]), np.float32([1, np.inf]))).units == np.inf


# ---- On the device ----------------------------------------------------------------------------------------------


def run_kernel(layer, inputs, *, rows=None, copies=None, weights=None, droppable_from=0):
    """Run the kernel as a stage by itself; returns values, next, list, weights and counters, all on the host."""
    cp = cupy()
    copies = np.ones(layer.outputs, np.int64) if copies is None else copies
    stack = upload(0, [layer], [copies])
    network = pack_network(stack.layers)
    count = inputs.shape[0]
    values = cp.full((max(1, count), layer.outputs), np.nan, np.float32)
    following, listed, after = (cp.full(max(1, count), -7, np.int32) for _ in range(3))
    start, found = cp.asarray([count], np.int32), cp.zeros(1, np.int32)
    counters = cp.zeros(4, np.uint64)
    before = None if weights is None else cp.asarray(weights, np.int32)
    record = np.zeros(1, _STAGE)
    record["last"], record["droppable_from"] = 1, droppable_from
    for name, array in (
        *(("count_in", start), ("rows_out", values), ("weights_out", after), ("next", following)),
        *(("list", listed), ("list_count", found), ("counters", counters)),
    ):
        record[name] = array.data.ptr
    if before is not None:
        record["weights_in"] = before.data.ptr
    stage = cp.asarray(np.frombuffer(record.tobytes(), np.uint8))
    placed = CSR(inputs.shape, *(cp.asarray(array) for array in (inputs.indptr, inputs.indices, inputs.values)))
    call = Call(network.arrays, counters)
    call.stages = cp.zeros(_STAGE.itemsize, np.uint8)
    call.begin(count, placed)
    room = current_machine().block_bytes
    counted = counted_first(network, room)
    count_inputs(network.pointer, stage, counted, call.record, count, index_type(inputs.indices), room, rows)
    lengths = np.diff(cp.asnumpy(stack.layers[0].weights.indptr))
    edges = int((lengths + lengths % 2).sum())
    left = int(found[0])
    return SimpleNamespace(
        values=values.get()[:count],
        next=following.get()[:count],
        list=listed.get()[:left],
        weights=after.get(),
        counters=counters.get().tolist(),
        edges=edges,
    )


def check(layer, inputs, **options):
    done = run_kernel(layer, inputs, **options)
    values, error = expected(Network((layer,)), inputs)
    assert done.values.shape == values.shape
    assert np.all(np.abs(done.values - values) <= error)
    count = inputs.shape[0]
    copies = options.get("copies")
    copies = np.ones(layer.outputs, np.int64) if copies is None else copies
    weights = options.get("weights")
    weights = np.ones(count, np.int64) if weights is None else np.asarray(weights, np.int64)
    nonzeros = (done.values != 0) @ copies
    alive = nonzeros > 0
    assert done.counters == [count, int(weights[alive].sum()), int((weights * nonzeros).sum()), done.edges * count]
    kept = alive if options.get("droppable_from", 0) <= 0 else np.ones(count, bool)
    assert np.array_equal(np.sort(done.list), np.flatnonzero(kept))
    assert np.all(done.next[~kept] == -1)
    assert np.array_equal(done.list[done.next[kept]], np.flatnonzero(kept))
    assert np.array_equal(done.weights[kept.nonzero()[0]], weights[kept])
    return done


def random_layer(rng, inputs, outputs, density, palette, activation, bias=None):
    dense = rng.choice(np.float32(palette), (inputs, outputs)) * (rng.random((inputs, outputs)) < density)
    return sparse_layer(dense, bias, activation)


def random_inputs(rng, rows, width, density, one=1.0):
    mask = rng.random((rows, width)) < density
    mask[1 :: max(2, rows // 3)] = False
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    kind = np.uint16 if width <= 65_536 else np.int32
    return CSR((rows, width), indptr.astype(np.int64), np.nonzero(mask)[1].astype(kind), np.float32([one]))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [ReLU(), ReLU(clip=0.5), Identity(), Sigmoid(), Tanh()])
@pytest.mark.parametrize("tile_rows", [8, 16, 32])
@pytest.mark.parametrize("count", [1, 31, 33, 1000])
def test_counting_equals_the_product(rng, activation, tile_rows, count):
    layer = random_layer(rng, 300, 75, 0.2, [0.0625, -0.25, 0.3], activation, rng.normal(size=75).astype(np.float32))
    inputs = random_inputs(rng, count, 300, 0.3, 0.75)
    copies = rng.integers(1, 5, 75)
    weights = rng.integers(1, 1000, count)
    check(layer, inputs, rows=tile_rows, copies=copies, weights=weights, droppable_from=int(count == 31))


@pytest.mark.gpu
@pytest.mark.parametrize("tile_rows", [8, 16, 32])
@pytest.mark.parametrize("palette", [[0.5], [0.5, -0.125], np.linspace(-1, 1, 3000)])
def test_runs_longer_than_the_planes_and_single_edges(rng, tile_rows, palette):
    """Runs of about 1000 edges, where counts reach beyond 252, and of one."""
    layer = random_layer(rng, 1003, 40, 0.98, palette, ReLU(), -0.5)
    check(layer, random_inputs(rng, 70, 1003, 0.97), rows=tile_rows)


@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [65_536, 70_000, 200_000])
@pytest.mark.parametrize("degree", [32, 37])
def test_wide_inputs(rng, inputs, degree):
    outputs, kind = 50, np.uint16 if inputs <= 65_536 else np.int32
    places = np.concatenate([np.sort(rng.choice(inputs, degree, replace=False)) for _ in range(outputs)])
    weights = CSC((inputs, outputs), np.arange(outputs + 1) * degree, places.astype(kind), np.float32([0.0625]))
    layer = SparseLinear(weights, rng.normal(size=outputs).astype(np.float32), ReLU(clip=1.0))
    done = run_kernel(layer, given_rows := random_inputs(rng, 41, inputs, 0.3))
    product = given_rows.to_scipy().astype(np.float64) @ weights.to_scipy().astype(np.float64)
    exact = np.clip(product.toarray() + layer.bias_vector(), 0, 1)
    assert np.all(np.abs(done.values - exact) <= 8 * np.finfo(np.float32).eps * (1 + np.abs(exact)))
    assert np.array_equal(np.sort(done.list), np.flatnonzero((done.values != 0).any(axis=1)))


@pytest.mark.gpu
def test_rows_that_start_at_odd_places_and_layers_without_edges(rng):
    """A slice of indices need not be aligned to 32 bits; an output without edges is its bias."""
    layer = random_layer(rng, 90, 33, 0.0, [1.0], ReLU(), np.float32(np.arange(33) - 16))
    done = check(layer, random_inputs(rng, 65, 90, 0.5))
    assert np.array_equal(done.values, np.tile(np.maximum(layer.bias_vector(), 0), (65, 1)))
    layer = random_layer(rng, 90, 33, 0.4, [1.0], ReLU(), -1.0)
    for density in (0.01, 0.05, 1.0):
        check(layer, random_inputs(rng, 65, 90, density))
    check(layer, random_inputs(rng, 0, 90, 0.5))


@pytest.mark.gpu
def test_values_repeat_to_the_bit(rng):
    layer = random_layer(rng, 500, 200, 0.1, [0.1, 0.7, -0.3], ReLU(), 0.01)
    inputs = random_inputs(rng, 3000, 500, 0.2)
    first = run_kernel(layer, inputs)
    assert first.values.tobytes() == run_kernel(layer, inputs).values.tobytes()
    narrow = run_kernel(layer, inputs, rows=8)
    assert first.values.tobytes() == narrow.values.tobytes()
