"""The rungs of mlp in half precision: their packed weights everywhere, their answers where there is a GPU."""

from itertools import pairwise

import numpy as np
import pytest

from sparsenn.backends.cuda.dense.stack import upload_dense
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
