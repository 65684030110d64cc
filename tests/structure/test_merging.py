"""Merging equal outputs keeps the answer and finds what there is to find, no more."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparse_layers import csc_of_all
from sparse_layers import sparse_layer as layer
from strategies import networks_with_inputs, seeds

from sparsenn import backends, infer
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network
from sparsenn.structure.merging import merge_equal_outputs, unmerged


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
    copies = np.array([[1.0, 1.0, 0.75]])
    crossed = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    merged = merge_equal_outputs(Network((layer(copies), layer(crossed))))
    assert merged.network[1].weights.shape == (2, 1)


def test_a_different_bias_or_a_factor_keeps_outputs_of_the_network_apart():
    same, other = np.float32([0.5, 0.5]), np.float32([0.5, 0.25])
    assert merge_equal_outputs(Network((layer(np.ones((3, 2)), same),))).network.outputs == 1
    assert merge_equal_outputs(Network((layer(np.ones((3, 2)), other),))).network.outputs == 2
    assert merge_equal_outputs(Network((layer([[1.0, 2.0, 1.0]]),))).expansion.tolist() == [0, 1, 0]


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


@pytest.mark.parametrize(
    ("weights", "merges"),
    [
        ([0.25, 0.5, 0.125], True),
        ([0.1, 0.2, 0.3], False),  # more bits than float32 has
        ([2e38, 2e38, 0.0], False),  # beyond float32
        ([2e38, 2e38, -2e38], True),  # only on the way
        ([1.0, 2.0**-24, 2.0**-24], True),
        ([1.0, 2.0**-24, 0.0], False),
        ([2.0**60, 1.0, -(2.0**60)], False),  # rounds on the way, even in float64
        ([1.0, -1.0, 0.0], True),
        ([1.5 * 2.0**-126, -(2.0**-126), 0.0], False),  # subnormal, which some devices take as zero
        ([2.0**-126, 2.0**-126, 0.0], True),
    ],
)
def test_outputs_merge_where_the_sum_of_their_weights_is_exact(weights, merges):
    column = np.float32(weights)[:, None]
    network = Network((layer(np.ones((1, 3))), SparseLinear(csc_of_all(column))))
    merged = merge_equal_outputs(network)
    assert merged.network[0].outputs == (1 if merges else 3)
    found = merged.network[1].weights.to_scipy().toarray()
    assert np.array_equal(found, column.astype(np.float64).sum(axis=0, keepdims=True) if merges else column)
    assert [part.weights.shape for part in merged.network] == [(1, found.shape[0]), (found.shape[0], 1)]


@pytest.mark.parametrize(("copies", "merges"), [(3, True), (2**13, True), (2**13 + 1, False)])
def test_equal_weights_are_multiplied_where_that_is_exact(copies, merges):
    weight = np.float32(1 + 2.0**-11)  # 12 bits
    merged = merge_equal_outputs(Network((layer(np.ones((1, copies))), layer(np.full((copies, 1), weight)))))
    assert merged.network[1].weights.iso
    assert merged.network[0].outputs == (1 if merges else copies)
    if merges:
        assert merged.network[1].weights.values.tolist() == [copies * float(weight)]


def test_only_the_classes_whose_sums_are_not_exact_stay_apart():
    first = np.repeat(np.eye(3), (2, 3, 2), axis=1)  # classes of 2, 3 and 2 equal outputs
    second = np.float32([[1, 1], [2, 2], [0.1, 0], [0.7, 0], [0.3, 0], [4, 4], [8, 8]])
    merged = merge_equal_outputs(Network((layer(first), layer(second))))
    assert merged.copies[0].tolist() == [2, 1, 1, 1, 2]
    assert np.array_equal(merged.network[0].weights.to_scipy().toarray(), first[:, [0, 2, 3, 4, 5]])
    expected = np.float32([[3, 3], [0.1, 0], [0.7, 0], [0.3, 0], [12, 12]])
    assert np.array_equal(merged.network[1].weights.to_scipy().toarray(), expected)


def test_outputs_that_stay_apart_keep_those_after_them_apart():
    """Two outputs of the second layer differ only in which copy they read, and the copies do not merge."""
    first = layer([[1.0, 1.0]])
    crossed = layer([[1.0, 0.0, 0.1], [0.0, 1.0, 0.7]])
    merged = merge_equal_outputs(Network((first, crossed, layer(np.ones((3, 1))))))
    assert [part.weights.shape for part in merged.network] == [(1, 2), (2, 3), (3, 1)]
    crossed = layer([[1.0, 0.0, 0.5], [0.0, 1.0, 0.25]])
    merged = merge_equal_outputs(Network((first, crossed, layer(np.ones((3, 1))))))
    assert [part.weights.shape for part in merged.network] == [(1, 1), (1, 2), (2, 1)]


def test_outputs_that_became_equal_stay_apart_where_their_sums_are_not_exact():
    """The second layer's outputs are equal once the first's are merged; what the third sums of them is not exact."""
    crossed, last = layer([[1.0, 0.0], [0.0, 1.0]]), layer([[0.1], [0.7]])
    merged = merge_equal_outputs(Network((layer([[1.0, 1.0]]), crossed, last)))
    assert [part.weights.shape for part in merged.network] == [(1, 1), (1, 2), (2, 1)]
    assert merged.network[1].weights.to_scipy().toarray().tolist() == [[1.0, 1.0]]
    assert [copies.tolist() for copies in merged.copies] == [[2], [1, 1], [1]]


def test_wide_layers_are_searched_on_threads_within_threads(monkeypatch):
    """Layers large enough for a thread each, and columns numerous enough for threads of their own."""
    monkeypatch.setattr("sparsenn.structure.merging.NUMBERS", 1)
    monkeypatch.setattr("sparsenn.formats.equality._HASHED", 4)
    merged = merge_equal_outputs(Network(tuple(layer(np.kron(np.eye(4), np.ones((8, 8)))) for _ in range(40))))
    assert {part.outputs for part in merged.network} == {4}


# ---- Multiples by powers of two -------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [ReLU(32.0), Sigmoid(), Tanh()], ids=str)
def test_multiples_stay_apart_behind_activations_that_do_not_pass_factors_on(activation):
    first = layer([[1.0, 2.0]], None, activation)
    assert merge_equal_outputs(Network((first, layer(np.eye(2))))).network[0].outputs == 2


@pytest.mark.parametrize(
    ("factor", "merges"), [(2.0, True), (2.0**-100, True), (3.0, False), (-2.0, False), (1 + 2.0**-23, False)]
)
def test_only_positive_powers_of_two_are_factors(factor, merges):
    network = Network((layer([[1.0, factor], [0.5, 0.5 * factor]]), layer(np.eye(2))))
    assert merge_equal_outputs(network).network[0].outputs == (1 if merges else 2)
    zeros_of_either_sign = SparseLinear(csc_of_all(np.float32([[1.0, 2.0, 1.0], [0.0, -0.0, -0.0]])))
    assert merge_equal_outputs(Network((zeros_of_either_sign, layer(np.eye(3))))).network[0].outputs == 1


def test_a_bias_must_be_a_multiple_too():
    weights, last = [[1.0, 2.0]], layer(np.eye(2))
    for bias, outputs in (([0.5, 1.0], 1), ([0.5, 0.5], 2), ([0.0, 0.0], 1), ([0.0, 1.0], 2)):
        network = Network((layer(weights, np.float32(bias)), last))
        assert merge_equal_outputs(network).network[0].outputs == outputs
    assert merge_equal_outputs(Network((layer(weights, 0.5), last))).network[0].outputs == 2


def test_the_largest_is_kept_so_that_nothing_gets_too_small():
    """Inputs of 2^-100 times weights of 2^-40 would be lost in float32."""
    network = Network((layer([[2.0**-40, 1.0]]), layer([[0.0], [1.0]])))
    merged = merge_equal_outputs(Network((network[0], layer(np.eye(2)))))
    assert merged.network[0].weights.values.tolist() == [1.0]
    assert merged.network[1].weights.values.tolist() == [2.0**-40, 1.0]
    rows = np.full((1, 1), 2.0**-100, np.float32)
    assert infer(network, rows, device="cpu", merging=True).dense.tolist() == [[2.0**-100]]


def test_weights_that_a_factor_makes_subnormal_keep_outputs_apart():
    first = layer([[1.0, 2.0**-30]])
    for weight, outputs in ((2.0**-90, 1), (2.0**-96, 1), (2.0**-97, 2)):
        merged = merge_equal_outputs(Network((first, layer([[1.0, 0.0], [0.0, weight]]))))
        assert merged.network[0].outputs == outputs
        assert merged.network[1].weights.values.tolist() == [1.0, weight * (2.0**-30 if outputs == 1 else 1)]


def test_subnormal_weights_of_the_next_layer_stay_as_they_are():
    """A weight that no factor changes is none that merging made, however small."""
    merged = merge_equal_outputs(Network((layer([[1.0, 0.5, 0.0], [0, 0, 1.0]]), layer([[1.0], [1.0], [2.0**-140]]))))
    assert merged.network[1].weights.values.tolist() == [1.5, 2.0**-140]


def test_outputs_that_become_multiples_of_each_other_merge():
    """The second layer reads copies that are multiples of each other, and is read with weights summed at scale."""
    first, last = layer([[1.0, 4.0]]), layer([[3.0], [5.0]])
    crossed = layer([[1.0, 0.0], [0.0, 0.5]])
    merged = merge_equal_outputs(Network((first, crossed, last)))
    assert [part.weights.to_scipy().toarray().tolist() for part in merged.network] == [[[4.0]], [[0.5]], [[5.0 + 1.5]]]
    rows = np.float32([[0.75], [-1.0]])
    assert infer(Network((first, crossed, last)), rows, merging=True).dense.tolist() == [[9.75], [0.0]]


def test_iso_weights_are_scaled_each_by_its_input():
    network = Network((layer([[1.0, 2.0, 4.0]]), layer(np.ones((3, 2)))))
    merged = merge_equal_outputs(network)
    assert merged.network[0].weights.values.tolist() == [4.0]
    assert merged.network[1].weights.values.tolist() == [1.75]


def test_multiples_that_are_computed_after_all_have_exact_sums_too():
    """The second layer's outputs would merge, but for the third; the sum of the smaller one is subnormal."""
    second = layer(np.outer([1.5, -1.0], [1.0, 2.0**-126]))
    merged = merge_equal_outputs(Network((layer([[1.0, 1.0]]), second, layer([[0.1], [0.7]]))))
    assert [part.weights.shape for part in merged.network] == [(1, 2), (2, 2), (2, 1)]
    assert np.array_equal(merged.network[1].weights.to_scipy().toarray(), second.weights.to_scipy().toarray())


@given(seeds, st.sampled_from([1, 30, 70]))
def test_networks_full_of_multiples_stay_the_same_function(seed, spread):
    rng = np.random.default_rng(seed)
    widths, made = rng.integers(1, 9, 5), []
    for inputs, outputs in pairwise(widths):
        weights = rng.choice([0.0, 1.0, 1.0, 3.0, -1.0, 0.1], (inputs, 3)) @ np.eye(3)[rng.integers(0, 3, outputs)].T
        scales = 2.0 ** rng.integers(-spread, spread + 1, outputs)
        bias = np.float32(rng.choice([0.0, 0.5]) * scales)
        made.append(layer(weights * scales, bias, ReLU() if rng.random() < 0.8 else Identity()))
    network = Network(tuple(made))
    merged = merge_equal_outputs(network)
    inputs = from_dense(rng.integers(-3, 4, (9, network.inputs)))
    found, expected = (backends.oracle.run(each, inputs).toarray() for each in (merged.network, network))
    found = found if merged.expansion is None else found[:, merged.expansion]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12 * np.abs(expected).max(initial=0))
