"""Outputs that are always zero are neither computed nor read, and no bit of the answer changes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparse_layers import sparse_layer as layer
from strategies import seeds

from sparsenn.engine import Session
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh
from sparsenn.network import Network
from sparsenn.structure.dead_outputs import without_dead_outputs

FIRST = [[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 3.0, 0.0]]  # nothing leads to outputs 1 and 3
SECOND = [[1.0, 0.0], [5.0, 6.0], [2.0, 0.0], [7.0, 8.0]]


@pytest.mark.parametrize(
    ("bias", "activation", "left"),
    [
        (None, ReLU(), 2),
        (-0.5, ReLU(), 2),
        (np.float32([1, -1, 1, 0.5]), ReLU(), 3),
        (np.float32([0, -0.0, 0, 0]), Identity(), 2),
        (-0.5, Identity(), 4),
        (None, Tanh(), 2),
        (None, Sigmoid(), 4),
    ],
)
def test_an_output_without_weights_is_dead_where_its_bias_makes_zero(bias, activation, left):
    network = Network((layer(FIRST, bias, activation), layer(SECOND)))
    found = without_dead_outputs(network)
    assert [part.weights.shape for part in found] == [(2, left), (left, 2)]
    rows = np.float32([[1, -2], [0.25, 3]])
    whole, fewer = (Session(each, device="reference", merging=False)(rows) for each in (network, found))
    assert np.array_equal(whole, fewer)


@pytest.mark.parametrize(
    ("layers", "shapes"),
    [
        ((layer(FIRST), layer(SECOND, -1.0), layer(np.ones((2, 3)))), [(2, 2), (2, 1), (1, 3)]),
        ((layer(np.zeros((3, 4))), layer(np.ones((4, 2)), 0.5)), [(3, 1), (1, 2)]),
    ],
    ids=["what only dead outputs led to", "all are dead"],
)
def test_what_is_left_of_networks(layers, shapes):
    assert [part.weights.shape for part in without_dead_outputs(Network(layers))] == shapes


def test_outputs_of_the_last_layer_and_those_read_by_dense_ones_stay():
    last = Network((layer(FIRST),))
    read = Network((layer(FIRST), Linear(np.ones((4, 1), np.float32))))
    assert without_dead_outputs(last) is last
    assert without_dead_outputs(read) is read


@given(seeds, st.lists(st.integers(1, 12), min_size=2, max_size=5), st.floats(0.0, 0.4), st.booleans())
def test_no_bit_changes(seed, widths, density, iso):
    rng = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in pairwise(widths):
        values = 0.5 if iso else rng.standard_normal((inputs, outputs))
        dense = np.where(rng.random((inputs, outputs)) < density, values, 0)
        layers.append(layer(dense, rng.choice(np.float32([-1, 0, 0.5]), outputs)))
    network = Network(tuple(layers))
    found = without_dead_outputs(network)
    for part in found:
        part.weights.validate()
    rows = rng.standard_normal((5, widths[0])).astype(np.float32)
    rows[0] = np.float32(3e38)
    for device in ("cpu", "reference"):
        whole, fewer = (Session(each, device=device, merging=False)(rows) for each in (network, found))
        assert np.array_equal(whole, fewer, equal_nan=True)
