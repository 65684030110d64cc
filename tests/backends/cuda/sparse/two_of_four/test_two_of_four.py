"""Weights two of four: the order of inputs, what is packed, and what is known before."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_layers import csc

from sparsenn import Session
from sparsenn.backends.cuda.sparse.two_of_four import kernel as tensor
from sparsenn.backends.cuda.sparse.two_of_four.input_order import (
    FOUR,
    RUNS,
    SLAB,
    SPARE,
    UNIT,
    order_in_runs,
    order_inputs,
    padded,
)
from sparsenn.backends.cuda.sparse.two_of_four.packing import GROUP, group_bytes, pack
from sparsenn.backends.machine import A100, H200
from sparsenn.errors import UsageError
from sparsenn.formats import CSC
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network

planes = pytest.mark.parametrize("planes", [1, 2])


def plain_order(width):
    return padded(np.arange(width), UNIT)


def count_conflicts(weights, order):
    """How many weights of an output in a group of four there are beyond its first two."""
    present = np.where(order[:, None] >= 0, weights.to_scipy().toarray()[order] != 0, False)
    return np.maximum(present.reshape(-1, FOUR, weights.shape[1]).sum(axis=1) - 2, 0).sum()


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
    weights = csc(matrix)
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
    weights = csc(random_weights(rng, width, width, share))
    plain, ordered = (count_conflicts(weights, order) for order in (plain_order(width), order_inputs(weights)))
    assert ordered <= most
    assert ordered < 0.85 * plain


def test_conflicts_are_weights_beyond_two_of_four():
    matrix = np.zeros((8, 3))
    matrix[:3, 0] = matrix[:4, 1] = matrix[2:6, 2] = 1
    assert count_conflicts(csc(matrix), plain_order(8)) == 1 + 2 + 0


def test_inputs_without_weights_come_last(rng):
    matrix = random_weights(rng, 100, 40, 0.2)
    matrix[::2] = 0
    order = order_inputs(csc(matrix))
    used = np.isin(order, np.flatnonzero(matrix.any(axis=1)))
    assert np.flatnonzero(used).max() < 4 * -(-used.sum() // 4)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("inputs", [2, 101, 128])
def test_inputs_stay_together_in_an_order(inputs, run, rng):
    matrix = random_weights(rng, inputs, 40, 0.1)
    matrix[: inputs // 3] = 0
    order = order_inputs(csc(matrix), run).reshape(-1, run)
    assert np.array_equal(np.sort(order[order >= 0]), np.arange(inputs))
    present = order[:, 0] >= 0
    assert not (order[~present] >= 0).any()
    expected = order[present][:, :1] // run * run + np.arange(run)
    assert np.array_equal(order[present], np.where(expected < inputs, expected, -1))


@pytest.mark.parametrize(
    ("width", "share", "run"),
    [(512, 0.005, 4), (1024, 0.05, 2), (1024, 0.1, 1), (256, 1.0, 4)],
    ids=["next to nothing", "little", "more", "all"],
)
def test_as_many_inputs_stay_together_as_add_nothing(width, share, run, rng):
    weights = csc(random_weights(rng, width, 1024, share))
    found, order = order_in_runs(weights, 256)
    assert found == run
    assert np.array_equal(order, order_inputs(weights, run))
    slabs = [pack(weights, each, plain_order(1024), 256, 1).starts[-1] for each in (order, order_inputs(weights))]
    assert slabs[0] <= SPARE * slabs[1]


def test_inputs_without_weights_do_not_come_along(rng):
    matrix = random_weights(rng, 512, 256, 0.02)
    matrix[1::2] = 0
    assert order_in_runs(csc(matrix), 256)[0] == 1


def test_an_order_is_the_same_every_time(rng):
    weights = csc(random_weights(rng, 300, 200, 0.15))
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
    weights, places = csc(matrix), np.full(24, -1)
    places[rng.permutation(24)[:20]] = rng.permutation(20)
    packed = pack(weights, plain_order(40), places, 64, 2)
    found = unpacked(packed)
    assert not found[:, np.flatnonzero(places < 0)].any()
    assert np.allclose(found[:40, np.flatnonzero(places >= 0)], matrix[:, places[places >= 0]], rtol=1e-5)


# ---- What is known before ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number_bytes", [2, 4])
@pytest.mark.parametrize("inputs", [1, 33, 784, 1024, 4096, 16384])
def test_rows_that_are_laid_out_together_lie_in_different_banks(inputs, number_bytes):
    taken, stride = tensor._rows_taken(inputs, number_bytes)
    assert stride >= inputs + 2 * max(RUNS)
    assert stride * number_bytes % 16 == 0
    assert taken == 1 or taken * stride * number_bytes <= tensor.LAID_BYTES
    banks = np.arange(min(taken, 8)) * stride * number_bytes // 4 % 32
    assert np.unique(banks).size == banks.size


def test_other_machines_and_precisions_are_refused():
    inputs = CSC((0, 64), np.zeros(65, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.float32))
    for kernel in tensor.KERNELS:
        assert kernel.why_not(A100, None, inputs) is not None
        assert kernel.why_not(H200, None, inputs) is None
    layer = SparseLinear(csc(np.eye(8)), 0.0, ReLU())
    with pytest.raises(UsageError, match="ask for precision tf32"):
        Session(Network((layer,)), device="cuda", machine="h200", kernel="two_of_four_tf32")
