"""The rungs of mlp in half precision: their packed weights everywhere, their answers where there is a GPU."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.dense.stack import DenseLayer, DenseStack, upload_dense
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.studies.mlp import half as mlp_half

WIDTHS = (72, 64, 64, 4)
RELU, IDENTITY = ReLU(), Identity()
ALLOWED = 0.01
"""In parts of the largest output."""

rungs = pytest.mark.parametrize("rung", mlp_half.KERNELS, ids=lambda rung: rung.name)


def layers_of(rng, widths=WIDTHS, hidden=RELU, last=IDENTITY, biased=True):
    """Layers whose outputs are about as large as their inputs."""
    count = len(widths) - 1
    return tuple(
        Linear(
            rng.normal(size=shape) * np.sqrt(2 / shape[0]),
            rng.normal(size=shape[1]) if biased else None,
            hidden if number < count else last,
        )
        for number, shape in enumerate(pairwise(widths), start=1)
    )


def exact(layers, features):
    values = features.astype(np.float64)
    for layer in layers:
        values = layer.activation(values @ layer.weights.astype(np.float64) + layer.bias_vector())
    return values


def scaled_error(found, expected):
    """NaN where there is one in what was found, which is never allowed."""
    return np.abs(found - expected).max() / np.abs(expected).max()


@given(st.integers(1, 32), st.integers(1, 20), st.integers(1, 5))
def test_every_input_is_taken_once(parts, count, turn):
    inputs = 2 * parts * count
    order = mlp_half.packing_order(inputs, parts, turn)
    assert order.shape == (count, parts, 2)
    assert sorted(order.ravel()) == list(range(inputs))
    assert np.array_equal(order[:, :, 1], order[:, :, 0] + 1)
    assert not (order[:, :, 0] % 2).any()


def test_threads_take_turns_and_share_the_rest():
    first = mlp_half.packing_order(72, 2, 4)[:, :, 0] // 2
    assert first[:, 0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27, 32, 33]
    assert first[:, 1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31, 34, 35]


@pytest.mark.parametrize(("parts", "turn"), [(2, 2), (2, 4), (4, 1)])
def test_parts_of_packed_weights_add_up_to_the_product(parts, turn, rng):
    weights = rng.integers(-2000, 2000, (72, 64)).astype(np.float32)  # exact in half precision
    row = rng.integers(-8, 9, 72).astype(np.float64)
    order = mlp_half.packing_order(72, parts, turn)
    packed = mlp_half.pack_weights(weights, order)
    assert packed.shape == (36 // parts, 64, parts, 2)
    assert packed.dtype == np.float16
    assert packed.flags.c_contiguous
    sums = np.einsum("iope,ipe->o", packed.astype(np.float64), row[order])
    assert np.array_equal(sums, row @ weights.astype(np.float64))


def test_rungs_are_those_of_the_ladder():
    names = [rung.name for rung in mlp_half.KERNELS]
    assert names[0] == "registers_half"
    assert names[-2:] == ["tuned_small", "tuned_large"]
    assert len(set(names)) == len(names) == 7
    assert {(rung.precision, rung.adds_in_half) for rung in mlp_half.KERNELS} == {("float16", True)}


@rungs
def test_other_networks_are_refused(rung, rng):
    for layers, part in (
        (layers_of(rng, (72, 64, 4)), "72 - 64 - 4"),
        (layers_of(rng, (72, 64, 64, 5)), "72 - 64 - 64 - 5"),
        (layers_of(rng, hidden=IDENTITY), "ReLU"),
        (layers_of(rng, last=RELU), "ReLU"),
    ):
        assert part in rung.why_not(H200, layers)
    assert rung.why_not(H200, layers_of(rng)) is None


def test_a_wrong_answer_is_not_allowed(rng):
    expected = rng.normal(size=(5, 4))
    wrong, missing = expected.copy(), expected.copy()
    wrong[3, 2] += 0.02 * np.abs(expected).max()
    missing[0, 0] = np.nan
    assert scaled_error(expected, expected) < ALLOWED
    assert not scaled_error(wrong, expected) < ALLOWED
    assert not scaled_error(missing, expected) < ALLOWED


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 1000, 12_800, 100_003])
@pytest.mark.parametrize("biased", [True, False])
def test_answers_are_near_and_repeat_to_the_bit(rung, rows, biased, rng):
    layers = layers_of(rng, biased=biased)
    features = rng.normal(size=(rows, 72)).astype(np.float32)
    stack, given_features = upload_dense(0, layers), cupy().asarray(features)
    first, second = (cupy().asnumpy(rung.launch(stack, given_features)) for _ in range(2))
    assert first.shape == (rows, 4)
    assert first.dtype == np.float32
    assert first.tobytes() == second.tobytes()
    assert np.array_equal(cupy().asnumpy(given_features), features)
    if rows:
        assert scaled_error(first, exact(layers, features)) < ALLOWED


def test_packed_weights_lie_one_after_the_other_where_reads_may_be_wide(rng, monkeypatch):
    monkeypatch.setattr(mlp_half, "cupy", lambda: np)
    layers = [DenseLayer(layer.weights, layer.bias, np.int32(0), np.float32(np.inf), layer) for layer in layers_of(rng)]
    stack = DenseStack(-1, tuple(layers))
    for shares in (mlp_half._PAIRS_OF_TURNS, mlp_half._HALF_BLOCK, mlp_half._QUARTERS, mlp_half._WIDE):
        packed, start = mlp_half._pack_all(stack, shares), 0
        for layer, share in zip(layers, shares, strict=True):
            assert 2 * start % 16 == 0
            alone = mlp_half.pack_weights(layer.weights, mlp_half.packing_order(layer.inputs, *share))
            assert np.array_equal(packed[start : start + alone.size], alone.ravel())
            start += alone.size
        assert start == packed.size


@pytest.mark.gpu
def test_each_division_of_the_weights_is_kept_for_itself(rng):
    """One stack, all rungs in turn, twice over: what one packed must not serve another."""
    layers, features = layers_of(rng), rng.normal(size=(100, 72)).astype(np.float32)
    stack, right = upload_dense(0, layers), exact(layers, features)
    for rung in (*mlp_half.KERNELS, *mlp_half.KERNELS[::-1]):
        assert scaled_error(cupy().asnumpy(rung.launch(stack, cupy().asarray(features))), right) < ALLOWED


@pytest.mark.gpu
@rungs
def test_every_row_and_output_has_its_own_answer(rung, rng):
    """Small whole numbers, exact in half precision through all layers, so that every bit must agree."""
    weights = [rng.integers(-1, 2, shape) * (rng.random(shape) < 0.2) for shape in pairwise(WIDTHS)]
    biases = [rng.integers(-3, 4, width) for width in WIDTHS[1:]]
    layers = tuple(map(Linear, weights, biases, (RELU, RELU, IDENTITY)))
    features = rng.integers(-3, 4, (777, 72)).astype(np.float32)
    found = cupy().asnumpy(rung.launch(upload_dense(0, layers), cupy().asarray(features)))
    assert np.array_equal(found, exact(layers, features))


@pytest.mark.gpu
@rungs
def test_features_may_begin_at_any_element(rung, rng):
    layers = layers_of(rng)
    values = rng.normal(size=33 * 72 + 1).astype(np.float32)
    features = cupy().asarray(values)[1:].reshape(33, 72)
    found = cupy().asnumpy(rung.launch(upload_dense(0, layers), features))
    assert scaled_error(found, exact(layers, values[1:].reshape(33, 72))) < ALLOWED


@pytest.mark.gpu
@rungs
def test_nan_stays_in_its_row(rung, rng):
    layers = layers_of(rng)
    features = rng.normal(size=(64, 72)).astype(np.float32)
    features[17, 5] = np.nan
    found = cupy().asnumpy(rung.launch(upload_dense(0, layers), cupy().asarray(features)))
    assert np.array_equal(np.isnan(found).all(axis=1), np.arange(64) == 17)
    assert not np.isnan(np.delete(found, 17, axis=0)).any()
