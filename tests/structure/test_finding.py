"""What is found in a whole network, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from sparse_layers import csc_of_all
from sparse_layers import sparse_layer as layer
from strategies import networks

from sparsenn import Linear, Network, SparseLinear, find_structure
from sparsenn.errors import UsageError
from sparsenn.structure.merging import merge_equal_outputs


def found(dense, bias=None):
    return find_structure(Network((layer(dense, bias),))).layers[0]


def test_equal_outputs_and_multiples(rng):
    base = rng.integers(1, 2**20, (6, 3)) / 64
    dense = np.float32(base[:, [0, 1, 0, 2, 0, 1, 1]])
    structure = found(dense * np.float32([1, 1, 1, 1, -4, 3, 0.5]))
    assert structure.equal.tolist() == [0, 1, 0, 2, 3, 4, 5]
    assert structure.multiples.tolist() == [0, 1, 0, 2, 0, 1, 1]
    assert found(dense).equal.tolist() == [0, 1, 0, 2, 0, 1, 1]
    assert found(dense).multiples is None


def test_a_bias_belongs_to_an_output():
    dense = np.float32([[1, 2, 3], [3, 6, 9]])
    assert found(dense, np.float32([0.5, 1, 1.5])).multiples.tolist() == [0, 0, 0]
    assert found(dense, np.float32([0.5, 1, 1.25])).multiples.tolist() == [0, 0, 1]
    assert found(dense, 0.5).multiples is None
    assert found(dense).multiples.tolist() == [0, 0, 0]
    assert found(np.ones((2, 2)), np.float32([1, 2])).equal is None
    assert found(np.zeros((2, 3))).equal.tolist() == [0, 0, 0]


@given(networks())
def test_equal_outputs_are_those_that_merge(network):
    for one in network:
        alone = find_structure(Network((one,))).layers[0].equal
        merged = merge_equal_outputs(Network((one,))).expansion
        assert (alone is None) == (merged is None)
        assert alone is None or alone.tolist() == merged.tolist()


def test_outputs_that_read_the_same_inputs_are_small_dense_products(rng):
    dense = np.zeros((10, 7), np.float32)
    dense[:4, :3] = rng.normal(size=(4, 3))
    dense[5:8, 3:6] = np.outer([1, 2, 3], [1, 3, 5])
    dense[8, 6] = 1
    patterns = found(dense).patterns
    assert patterns.group.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert patterns.outputs.tolist() == [3, 3, 1]
    assert patterns.inputs.tolist() == [4, 3, 1]
    assert patterns.directions.tolist() == [3, 1, 1]
    assert patterns.low_rank.tolist() == [False, True, False]
    assert str(patterns) == "6 outputs in 2 groups read the same inputs, 1 of low rank"
    dense[5, 4] = np.nextafter(dense[5, 4], np.float32(9))
    assert found(dense).patterns.low_rank.tolist() == [False, True, False]  # rank two of three
    assert found(dense).patterns.directions.tolist() == [3, 2, 1]


def test_outputs_without_inputs_are_no_products():
    assert found(np.zeros((3, 2)), np.float32([1, 2])).patterns is None
    assert found(np.ones((3, 2))).patterns is None  # they are equal


def test_weights_of_float64_count_as_float32():
    weights = layer([[1.0, 2.0], [3.0, 6.0]]).weights
    wide = SparseLinear(replace(weights, values=weights.values.astype(np.float64) * (1 + 1e-12)))
    assert find_structure(Network((wide,))).layers[0].multiples.tolist() == [0, 0]


def test_stored_zeros_are_weights():
    structure = find_structure(Network((SparseLinear(csc_of_all([[1, 2], [0.0, -0.0]])),)))
    assert structure.layers[0].multiples.tolist() == [0, 0]


SWITCHES = ("equal", "multiples", "patterns", "blocks", "tiles", "kronecker")


@pytest.mark.parametrize("name", SWITCHES)
def test_each_has_its_switch(name):
    dense = np.kron(np.eye(2), np.kron([[1, 2], [3, 4]], np.ones((2, 3)))) @ np.diag([1] * 9 + [2, 2, 3])
    network = Network((layer(dense),))
    whole = find_structure(network).layers[0]
    assert all(getattr(whole, other) is not None for other in SWITCHES)
    part = find_structure(network, **{name: False}).layers[0]
    alone = find_structure(network, **{other: other == name for other in SWITCHES}).layers[0]
    for other in SWITCHES:
        assert (getattr(part, other) is None) == (other == name)
        assert (getattr(alone, other) is None) == (other != name)
        assert str(getattr(part if other != name else alone, other)) == str(getattr(whole, other))


def test_what_is_said(rng):
    random = tuple(layer(rng.normal(size=(9, 9)) * (rng.random((9, 9)) < 0.5)) for _ in range(3))
    assert str(find_structure(Network(random))).startswith("No structure found in 3 sparse layers with ")
    assert str(find_structure(Network(random[:1]))).startswith("No structure found in 1 sparse layer with ")
    text = str(find_structure(Network((*random[:2], layer(np.ones((9, 2)), 0.5)))))
    assert text == (
        "Layers 1–2: no structure found.\n"
        "Layer 3: 1 of 2 outputs equal others; weights are a matrix of 1 × 1 ⊗ ones of 9 × 2, permuted."
    )
    assert str(find_structure(Network((Linear(np.ones((3, 3))),)))) == "No sparse layers."


def test_what_is_no_network_is_refused():
    with pytest.raises(UsageError, match="the network is a SparseLinear"):
        find_structure(layer(np.eye(2)))
