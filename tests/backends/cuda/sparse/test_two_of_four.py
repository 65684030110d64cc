"""Weights two of four: the order of inputs, what is packed, and chains on an emulated device and on a GPU."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from device_emulation import emulated_device
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenn import Session
from sparsenn.backends.contract import SparseProblem
from sparsenn.backends.cuda.sparse import tensor
from sparsenn.backends.cuda.sparse.stack import upload
from sparsenn.backends.cuda.sparse.tensor_estimates import extra_slabs, tensor_seconds
from sparsenn.backends.cuda.sparse.two_of_four import (
    GROUP,
    SLAB,
    UNIT,
    count_conflicts,
    group_bytes,
    order_inputs,
    pack,
    plain_order,
)
from sparsenn.backends.machine import A100, H200
from sparsenn.errors import UsageError
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network

ALLOWED = {2: 2e-6, 1: 4e-3}
"""By planes, for a layer: in parts of a row's largest output."""

device = pytest.fixture(name="device")(lambda monkeypatch: next(emulated_device.__wrapped__(monkeypatch)))
planes = pytest.mark.parametrize("planes", [1, 2])
shapes = pytest.mark.parametrize("shape", [tensor.SINGLE, tensor.SPLIT], ids=lambda shape: f"{shape.planes} planes")


def as_csc(matrix):
    return SparseLinear.from_scipy(from_dense(matrix.astype(np.float32)).to_scipy(), 0, Identity()).weights


def random_weights(rng, inputs, outputs, share):
    return (rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < share)).astype(np.float32)


def unpacked(packed):
    """The weights that bytes say, (places of inputs, places of outputs) float64, by the layout as it is documented."""
    groups, size = packed.neurons // GROUP, group_bytes(packed.planes)
    image, places = packed.image.reshape(-1, groups, size), packed.places.reshape(-1, groups, 128)
    found = np.zeros(packed.shape)
    for tile, (first, last) in enumerate(pairwise(packed.starts)):
        for slab in range(first, last):
            for group in range(groups):
                first_output, units = tile * packed.neurons + GROUP * group, packed.units[slab]
                add_slab(found, packed.planes, image[slab, group], places[slab, group], units, first_output)
    return found * packed.scales / 2.0**14


def add_slab(found, planes, image, words, units, first_output):
    numbers = image.view(np.float16).astype(np.float64).reshape(planes, 4, GROUP, 8).sum(axis=0)
    for row in range(GROUP):
        for four in range(SLAB // 4):
            thread = row // 16 * 32 + row % 8 * 4 + four // 8 * 2 + four % 8 // 4
            nibble = int(words[thread]) >> (row % 16 // 8 * 16 + four % 4 * 4) & 15
            first, second = nibble & 3, nibble >> 2
            assert first < second
            for place, column in ((first, 2 * four), (second, 2 * four + 1)):
                unit, within = divmod(4 * four + place, UNIT)
                found[units[unit] * UNIT + within, first_output + row] += numbers[column // 8, row, column % 8]


def check_packed(matrix, planes, neurons=128):
    weights = as_csc(matrix)
    order = order_inputs(weights)
    assert order.size % UNIT == 0
    assert np.array_equal(np.sort(order[order >= 0]), np.arange(matrix.shape[0]))
    packed = pack(weights, order, plain_order(matrix.shape[1]), neurons, planes)
    right = np.zeros(packed.shape)
    right[: order.size, : matrix.shape[1]] = np.where(order[:, None] >= 0, matrix[order], 0)
    error = np.abs(unpacked(packed) - right)
    assert np.all(error <= np.abs(right).max(axis=0, initial=0) * 2.0 ** (-22 if planes == 2 else -11))
    return packed


# ---- The order of inputs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "share", "most"), [(1024, 0.1, 0), (2048, 0.05, 0), (512, 0.2, 8000)])
def test_an_order_leaves_little_over(width, share, most, rng):
    weights = as_csc(random_weights(rng, width, width, share))
    plain, ordered = (count_conflicts(weights, order) for order in (plain_order(width), order_inputs(weights)))
    assert ordered <= most
    assert ordered < 0.85 * plain


def test_conflicts_are_weights_beyond_two_of_four():
    matrix = np.zeros((8, 3))
    matrix[:3, 0] = matrix[:4, 1] = matrix[2:6, 2] = 1
    assert count_conflicts(as_csc(matrix), plain_order(8)) == 1 + 2 + 0


def test_inputs_without_weights_come_last(rng):
    matrix = random_weights(rng, 100, 40, 0.2)
    matrix[::2] = 0
    order = order_inputs(as_csc(matrix))
    used = np.isin(order, np.flatnonzero(matrix.any(axis=1)))
    assert np.flatnonzero(used).max() < 4 * -(-used.sum() // 4)


def test_an_order_is_the_same_every_time(rng):
    weights = as_csc(random_weights(rng, 300, 200, 0.15))
    assert np.array_equal(order_inputs(weights), order_inputs(weights))


# ---- What is packed ----------------------------------------------------------------------------------------------


@planes
@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((5, 3)),
        np.ones((70, 65)),
        np.eye(100)[:, 7:8],
        np.pad(np.ones((1, 64)), ((99, 28), (0, 0))),
        np.arange(1, 131 * 3 + 1).reshape(131, 3) * 1e-3,
        np.full((64, 64), 3e38),
        np.full((9, 5), 1e-30),
    ],
    ids=["empty", "full", "one weight", "one input", "narrow", "huge", "tiny"],
)
def test_bytes_say_the_weights(matrix, planes):
    check_packed(matrix, planes)


@planes
@settings(max_examples=15, deadline=None)
@given(sizes=st.tuples(st.integers(1, 150), st.integers(1, 150)), share=st.floats(0, 1), seed=st.integers(0, 1 << 30))
def test_bytes_say_any_weights(planes, sizes, share, seed):
    check_packed(random_weights(np.random.default_rng(seed), *sizes, share), planes)


def test_what_is_left_over_takes_slabs_of_its_own():
    packed = check_packed(np.ones((256, 64)), 1, 64)
    assert (packed.starts.tolist(), packed.extra) == ([0, 8], 4)
    few = np.zeros((256, 64))
    few[:, 0] = 1
    packed = check_packed(few, 1, 64)
    assert packed.extra == 4


def test_inputs_without_weights_are_passed_over(rng):
    matrix = random_weights(rng, 512, 128, 0.1)
    matrix[rng.permutation(512)[:448]] = 0
    packed = check_packed(matrix, 1, 64)
    assert (np.diff(packed.starts) == 1 + packed.extra // 2).all()


def test_outputs_go_to_their_places(rng):
    matrix = random_weights(rng, 40, 20, 0.3)
    weights, places = as_csc(matrix), np.full(24, -1)
    places[rng.permutation(24)[:20]] = rng.permutation(20)
    packed = pack(weights, plain_order(40), places, 64, 2)
    found = unpacked(packed)
    assert not found[:, np.flatnonzero(places < 0)].any()
    assert np.allclose(found[:40, np.flatnonzero(places >= 0)], matrix[:, places[places >= 0]], rtol=1e-5)


# ---- Chains, emulated --------------------------------------------------------------------------------------------


def layers_of(rng, widths, share, activation=None):
    return [
        SparseLinear.from_scipy(
            from_dense(random_weights(rng, *shape, share)).to_scipy(),
            rng.normal(size=shape[1]).astype(np.float32),
            activation or ReLU(),
        )
        for shape in pairwise(widths)
    ]


def exact(layers, rows):
    values = rows.astype(np.float64)
    for layer in layers:
        values = layer.activation(values @ layer.weights.to_scipy().toarray().astype(np.float64) + layer.bias_vector())
    return values


def ready(device, layers, shape, rows):
    import cupy

    stack = upload(0, layers, [np.ones(layer.outputs, np.int64) for layer in layers], cupy.asarray)
    return tensor.prepare("two_of_four", shape, stack, SparseProblem(rows, "dense", len(layers), False))


def run(chain, rows, counting=False):
    import cupy

    return np.array(chain.run(cupy.asarray(rows), counting).features)


def assert_near(found, right, planes, layers):
    largest = np.maximum(np.abs(right).max(axis=1, initial=0), 1e-30)
    assert found.shape == right.shape
    assert np.all(np.abs(found - right).max(axis=1, initial=0) <= ALLOWED[planes] * layers * largest)


@shapes
@pytest.mark.parametrize(
    ("widths", "rows", "share"),
    [((5, 3), 1, 0.5), ((100, 300, 150, 33), 200, 0.1), ((64, 64), 20, 1.0), ((40, 20, 10), 17, 0.0)],
    ids=str,
)
def test_chains_in_emulation(device, shape, widths, rows, share, rng):
    layers = layers_of(rng, widths, share)
    chain = ready(device, layers, shape, rows)
    given = rng.normal(size=(rows, widths[0])).astype(np.float32)
    assert_near(run(chain, given), exact(layers, given), shape.planes, len(layers))
    fewer = given[: rows // 2 + 1] * np.float32(1e5)
    assert_near(run(chain, fewer), exact(layers, fewer), shape.planes, len(layers))


@shapes
@pytest.mark.parametrize(
    ("units", "left_over"),
    [([0, 1, 2, 3, 4, 5, 7], []), ([0, 1, 3], []), ([8], [0, 1, 2, 3, 5, 9, 15]), ([7], [])],
    ids=["one missing", "half a slab", "out of order", "one"],
)
def test_units_that_are_not_neighbours_in_emulation(device, shape, units, left_over, monkeypatch, rng):
    monkeypatch.setattr(tensor, "order_inputs", lambda weights: plain_order(weights.shape[0]))
    weights = np.zeros((16, UNIT, 9), np.float32)
    weights[units, ::2] = rng.normal(size=(len(units), 4, 9))
    weights[left_over] = rng.normal(size=(len(left_over), UNIT, 9))
    layer = SparseLinear(as_csc(weights.reshape(128, -1)), 0.0, Identity())
    given = rng.normal(size=(20, 128)).astype(np.float32)
    assert_near(run(ready(device, [layer], shape, 20), given), exact([layer], given), shape.planes, 1)


@shapes
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
def test_any_activation_in_emulation(device, shape, activation, rng):
    layers = layers_of(rng, (20, 30, 9), 0.4, activation)
    given = rng.normal(size=(20, 20)).astype(np.float32)
    assert_near(run(ready(device, layers, shape, 20), given), exact(layers, given), shape.planes, 2)


@pytest.mark.parametrize("width", [33, 32])
def test_rows_of_halves_in_emulation(device, width, rng):
    layers = layers_of(rng, (100, 70, width), 0.2)
    given = rng.normal(size=(50, 100)).astype(np.float16)
    found = run(ready(device, layers, tensor.SINGLE, 50), given)
    assert found.dtype == np.float16
    assert_near(found.astype(np.float32), exact(layers, given), 1, 2)


@shapes
def test_rows_of_any_size_in_emulation(device, shape, rng):
    layers = layers_of(rng, (48, 40, 30), 0.2, Identity())
    layers = [SparseLinear(layer.weights, 0.0, Identity()) for layer in layers]
    given = rng.normal(size=(40, 48)) * 10.0 ** np.linspace(-20, 30, 40)[:, None]
    given = given.astype(np.float32)
    assert_near(run(ready(device, layers, shape, 40), given), exact(layers, given), shape.planes, 2)


@shapes
def test_bits_do_not_depend_on_other_rows_in_emulation(device, shape, rng):
    layers = layers_of(rng, (90, 70, 40), 0.2)
    given = rng.normal(size=(200, 90)).astype(np.float32)
    whole = run(ready(device, layers, shape, 200), given)
    chain = ready(device, layers, shape, 64)
    parts = [run(chain, given[first : first + 50]) for first in range(0, 200, 50)]
    assert np.array_equal(whole, np.concatenate(parts))


@shapes
def test_what_is_no_number_stays_in_its_row_in_emulation(device, shape, rng):
    layers = layers_of(rng, (30, 20, 10), 0.3, Identity())
    given = rng.normal(size=(20, 30)).astype(np.float32)
    right = exact(layers, given)
    given[3, 5], given[7, 0] = np.inf, np.nan
    with np.errstate(invalid="ignore", over="ignore"):
        found = run(ready(device, layers, shape, 20), given)
    others = np.delete(np.arange(20), [3, 7])
    assert_near(found[others], right[others], shape.planes, 2)
    assert not np.isfinite(found[[3, 7]]).all(axis=1).any()


@shapes
def test_counts_in_emulation(device, shape, rng):
    layers = layers_of(rng, (30, 20, 10), 0.3)
    chain, given = ready(device, layers, shape, 20), rng.normal(size=(20, 30)).astype(np.float32)
    found, counts = run(chain, given, counting=True), chain.counts()
    assert np.array_equal(found, run(chain, given))
    assert counts[0].active_inputs is None
    assert (counts[1].active_inputs, counts[1].nonzeros) == (found.any(axis=1).sum(), np.count_nonzero(found))
    assert [one.performed_edges for one in counts] == [20 * layer.edges for layer in layers]


# ---- What is known before ----------------------------------------------------------------------------------------


def test_estimates_grow_with_work(rng):
    layers = layers_of(rng, (512, 512), 0.1)
    given = [tensor_seconds(2, 128, 256, H200, layers, rows) for rows in (1, 60_000, 240_000)]
    assert given[0] < given[1] < given[2]
    assert tensor_seconds(1, 192, 256, H200, layers, 60_000) < given[1]
    assert extra_slabs(layers[0]) == 0 < extra_slabs(layers_of(rng, (512, 512), 0.5)[0])


def test_other_machines_and_precisions_are_refused():
    inputs = CSC((0, 64), np.zeros(65, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32))
    for kernel in tensor.KERNELS:
        assert kernel.why_not(A100, None, inputs) is not None
        assert kernel.why_not(H200, None, inputs) is None
    layer = SparseLinear(as_csc(np.eye(8)), 0.0, ReLU())
    with pytest.raises(UsageError, match="ask for precision tf32"):
        Session(Network((layer,)), device="cuda", machine="h200", kernel="two_of_four_tf32")


# ---- On a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", tensor.KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.2, 1.0])
def test_a_session_on_a_gpu(kernel, share, rng):
    layers = layers_of(rng, (300, 700, 257, 33), share)
    given = rng.normal(size=(1000, 300)).astype(np.float32)
    session = Session(Network(tuple(layers)), device="cuda", kernel=kernel.name, precision=kernel.precision)
    planes = 2 if kernel.precision == "float32" else 1
    assert session.run(given).plan.precisions == (kernel.precision,) * 3
    assert_near(np.asarray(session(given)), exact(layers, given), planes, 3)
    assert np.array_equal(session(given), session(given))


@pytest.mark.gpu
@shapes
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
def test_any_activation_on_a_gpu(shape, activation, rng):
    layers = layers_of(rng, (200, 300, 90), 0.1, activation)
    given = rng.normal(size=(500, 200)).astype(np.float32)
    found = run_on_gpu(layers, shape, given)
    sums = exact([*layers[:-1], replace(layers[-1], activation=Identity())], given)  # which an activation may cut short
    largest = np.abs(sums).max(axis=1, keepdims=True)
    assert np.all(np.abs(found - exact(layers, given)) <= 2 * ALLOWED[shape.planes] * largest)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_rows_of_halves_on_a_gpu(precision, rng):
    import cupy

    layers = layers_of(rng, (300, 700, 33), 0.1)
    given = rng.normal(size=(1000, 300)).astype(np.float16)
    session = Session(Network(tuple(layers)), device="cuda", kernel=f"two_of_four_{precision}", precision=precision)
    found = session(cupy.asarray(given))
    assert found.dtype == (np.float16 if precision == "float16" else np.float32)
    assert_near(cupy.asnumpy(found).astype(np.float32), exact(layers, given), 2 if precision == "float32" else 1, 2)
    kept = cupy.asnumpy(found)
    result = session.run(cupy.asarray(given), statistics=False)
    assert np.array_equal(result.categories, np.flatnonzero(kept.any(axis=1)))
    session(cupy.asarray(given[::-1].copy()))
    assert np.array_equal(cupy.asnumpy(found), kept)  # outputs are the caller's


@pytest.mark.gpu
@shapes
def test_bits_do_not_depend_on_other_rows_on_a_gpu(shape, rng):
    layers = layers_of(rng, (500, 600, 400), 0.1)
    given = rng.normal(size=(3000, 500)).astype(np.float32)
    whole = run_on_gpu(layers, shape, given)
    for first in range(0, 3000, 700):
        assert np.array_equal(run_on_gpu(layers, shape, given[first : first + 700]), whole[first : first + 700])


def run_on_gpu(layers, shape, rows):
    import cupy

    chain = ready(None, layers, shape, rows.shape[0])
    return cupy.asnumpy(chain.run(cupy.asarray(rows), False).features)
