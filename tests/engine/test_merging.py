"""Merging equal outputs keeps the answer and finds what there is to find, no more."""

import numpy as np
import pytest
from hypothesis import given
from strategies import networks_with_inputs

from sparsenn import backends
from sparsenn.engine import infer, merge_equal_outputs
from sparsenn.engine.merging import unmerged
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network


def layer(dense, bias=None):
    return SparseLinear(CSC.from_scipy(from_dense(np.asarray(dense, dtype=np.float32)).to_scipy()), bias, ReLU())


@given(networks_with_inputs())
def test_expanding_the_merged_outputs_gives_the_originals(problem):
    network, inputs = problem
    merged = merge_equal_outputs(network)
    outputs = backends.oracle.run(merged.network, inputs).toarray()
    if merged.expansion is not None:
        outputs = outputs[:, merged.expansion]
    np.testing.assert_allclose(outputs, backends.oracle.run(network, inputs).toarray(), rtol=1e-4, atol=1e-4)
    for part, original, copies in zip(merged.network, network, merged.copies, strict=True):
        part.weights.validate()
        assert copies.sum() == original.outputs
        assert copies.size == part.outputs


def test_blocks_of_equal_columns_become_one_and_their_weights_add_up(rng):
    base = rng.integers(1, 5, (3, 4)) / 4
    blocks = np.kron(base, np.ones((5, 5)))
    following = np.kron(rng.integers(1, 5, (4, 2)) / 4, np.ones((5, 5)))
    merged = merge_equal_outputs(Network((layer(blocks, -0.5), layer(following, -0.25))))
    assert [part.weights.shape for part in merged.network] == [(15, 4), (4, 2)]
    assert np.array_equal(merged.network[1].weights.to_scipy().toarray(), 5 * following[::5, ::5])
    assert [copies.tolist() for copies in merged.copies] == [[5] * 4, [5] * 2]
    assert np.array_equal(merged.expansion, np.repeat([0, 1], 5))


def test_columns_that_read_different_copies_become_equal():
    copies = np.array([[1.0, 1.0, 0.5]])
    crossed = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    merged = merge_equal_outputs(Network((layer(copies), layer(crossed))))
    assert merged.network[1].weights.shape == (2, 1)


def test_a_different_bias_keeps_outputs_apart():
    same, other = np.float32([0.5, 0.5]), np.float32([0.5, 0.25])
    assert merge_equal_outputs(Network((layer(np.ones((3, 2)), same),))).network.outputs == 1
    assert merge_equal_outputs(Network((layer(np.ones((3, 2)), other),))).network.outputs == 2


def test_a_different_value_keeps_outputs_apart():
    assert merge_equal_outputs(Network((layer([[1.0, 1.0, 2.0]]),))).network.outputs == 2


def test_a_network_without_equal_outputs_is_used_as_it_is(rng):
    network = Network(tuple(layer(rng.normal(size=(20, 20))) for _ in range(3)))
    merged = merge_equal_outputs(network)
    assert all(part is original for part, original in zip(merged.network, network, strict=True))
    assert merged.expansion is None


def test_unmerged_changes_nothing():
    network = Network((layer(np.ones((2, 3))),))
    plain = unmerged(network)
    assert plain.network is network
    assert plain.copies[0].tolist() == [1, 1, 1]


def test_a_summed_weight_is_rounded_once():
    weights = np.float32([[0.1], [0.2], [0.3]])
    merged = merge_equal_outputs(Network((layer(np.ones((1, 3))), layer(weights))))
    assert merged.network[1].weights.values.tolist() == [np.float32(weights.astype(np.float64).sum())]


@pytest.mark.parametrize("bias", [None, -0.5, np.linspace(-1, 1, 30).astype(np.float32)], ids=["none", "one", "vector"])
def test_merging_does_not_change_a_bit_where_sums_are_exact(rng, bias):
    blocks = [np.kron(rng.integers(-4, 5, (6, 6)) / 8, np.ones((5, 5))) for _ in range(4)]
    network = Network(tuple(layer(block, bias) for block in blocks))
    inputs = from_dense(rng.integers(0, 2, (40, 30)))
    on, off = (infer(network, inputs, merging=flag).outputs for flag in (True, False))
    assert np.array_equal(on.to_scipy().toarray(), off.to_scipy().toarray())


def test_wide_layers_are_searched_on_threads_within_threads(monkeypatch):
    """Layers large enough for a thread each, and columns numerous enough for threads of their own."""
    monkeypatch.setattr("sparsenn.engine.merging._THREADED_EDGES", 1)
    monkeypatch.setattr("sparsenn.formats.equality._HASHED", 4)
    merged = merge_equal_outputs(Network(tuple(layer(np.kron(np.eye(4), np.ones((8, 8)))) for _ in range(40))))
    assert {part.outputs for part in merged.network} == {4}
