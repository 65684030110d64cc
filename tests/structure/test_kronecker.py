"""Kronecker factors: planted ones are found in any order of inputs, near misses are not."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sparse_layers import csc
from strategies import csc_matrices, seeds

from sparsenn import radixnet
from sparsenn.formats import CSC
from sparsenn.structure.blocks import independent_blocks
from sparsenn.structure.kronecker import Kronecker, kronecker_factors


def factors(dense):
    weights = dense if isinstance(dense, CSC) else csc(dense)
    return kronecker_factors(weights, independent_blocks(weights))


def permuted(dense, rng):
    return dense[rng.permutation(dense.shape[0])][:, rng.permutation(dense.shape[1])]


def connected(rng, rows, columns):
    """A matrix with no two equal rows or columns, in one block."""
    return rng.permutation(np.arange(1.0, rows * columns + 1)).reshape(rows, columns)


@given(seeds, st.tuples(*[st.integers(1, 4)] * 2), st.tuples(*[st.integers(1, 4)] * 2))
def test_blocks_of_ones_in_any_order(seed, core, ones):
    rng = np.random.default_rng(seed)
    found = factors(permuted(np.kron(connected(rng, *core), np.ones(ones)), rng))
    if ones == (1, 1):
        assert found is None
    elif min(core) == 1 < max(core):
        assert found.of_values
    else:
        assert found == Kronecker(1, core, ones, True)


@given(seeds, st.integers(2, 4), st.tuples(*[st.integers(2, 4)] * 2), st.tuples(*[st.integers(1, 3)] * 2))
@pytest.mark.parametrize("left", [True, False])
def test_copies_of_a_matrix(left, seed, copies, core, ones):
    """Inputs in any order; outputs of a block in the order of those of the others."""
    rng = np.random.default_rng(seed)
    parts = (np.eye(copies), connected(rng, *core))
    dense = np.kron(np.kron(*(parts if left else parts[::-1])), np.ones(ones))
    dense = dense[rng.permutation(dense.shape[0])]
    assert factors(dense) == Kronecker(copies, core, ones, True)
    assert factors(np.pad(dense, ((0, 0), (0, copies * ones[1])))) == Kronecker(
        copies, (core[0], core[1] + 1), ones, True
    )
    last = tuple(index[-1] for index in np.nonzero(dense))
    dense[last] = np.nextafter(np.float32(dense[last]), np.float32(0))
    assert factors(dense) is None or not factors(dense).of_values


@given(seeds, st.integers(2, 4), st.integers(1, 3))
def test_two_blocks_are_copies_where_another_order_of_inputs_makes_one_the_other(seed, rows, columns):
    rng = np.random.default_rng(seed)
    blocks = [rng.random((rows, columns)) < 0.8 for _ in range(2)]
    blocks[1] = rng.permutation(blocks[rng.integers(0, 2)])
    dense = np.zeros((2, rows, 2, columns))
    dense[0, :, 0], dense[1, :, 1] = blocks
    dense = dense.reshape(2 * rows, 2 * columns)
    apart = independent_blocks(csc(dense))
    assume(apart is not None and apart.count == 2 and dense.any(axis=0).all() and dense.any(axis=1).all())
    rows_of_other = sorted(blocks[1].tolist())
    ways = [each for each in permutations(range(columns)) if sorted(blocks[0][:, each].tolist()) == rows_of_other]
    found = factors(dense)
    if found is not None and found.copies == 2:
        assert ways
    else:
        assert tuple(range(columns)) not in ways


def test_copies_share_what_no_weight_leads_to_evenly(rng):
    dense = np.kron(np.eye(3), connected(rng, 2, 2))
    assert factors(np.pad(dense, ((0, 3), (0, 0)))) == Kronecker(3, (3, 2), (1, 1), True)
    assert factors(np.pad(dense, ((0, 1), (0, 0)))).of_values is False


def test_permutations_and_butterflies(rng):
    assert factors(permuted(0.5 * np.eye(6), rng)) == Kronecker(6, (1, 1), (1, 1), True)
    butterfly = np.kron(np.kron(np.eye(3), np.ones((2, 2))), np.eye(4))
    assert factors(permuted(butterfly, rng)) == Kronecker(12, (1, 1), (2, 2), True)


def test_layers_of_a_radixnet():
    network = radixnet(3 * 4 * 5 * 2, 6, radices=(3, 4, 5), kronecker=2)
    found = [factors(layer.weights) for layer in network]
    expected = [Kronecker(1, (60, 60), (2, 2), True), Kronecker(3, (20, 20), (2, 2), True)]
    expected.append(Kronecker(12, (1, 1), (10, 10), True))
    assert found == 2 * expected


def test_places_may_be_a_product_where_values_are_none(rng):
    dense = np.kron(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]]), np.ones((2, 3)))
    found = factors(dense * (1 + rng.random(dense.shape)))
    assert found == Kronecker(1, (3, 3), (2, 3), False)
    assert str(found) == "places of weights are a matrix of 3 × 3 ⊗ ones of 2 × 3, permuted"


@given(csc_matrices())
def test_any_matrix_is_as_large_as_its_factors(matrix):
    found = factors(matrix)
    if found is not None:
        sides = zip(found.core, found.ones, strict=True)
        assert tuple(found.copies * core * one for core, one in sides) == matrix.shape
        assert found.copies * found.ones[0] * found.ones[1] > 1


def test_nothing(rng):
    for dense in (np.zeros((0, 2)), np.zeros((4, 4)), np.eye(1), rng.normal(size=(9, 7))):
        assert factors(dense) is None


@pytest.mark.parametrize("turned", [False, True])
def test_outputs_without_weights_that_do_not_fit_the_blocks_of_ones(turned):
    """Two blocks of two equal outputs, and two outputs more: one for each block, of which J would take two."""
    dense = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]], np.float32)
    weights = csc(dense.T if turned else dense)
    found = kronecker_factors(weights, independent_blocks(weights))
    assert found == Kronecker(1, (3, 2) if turned else (2, 3), (2, 1) if turned else (1, 2), True)
    assert found.shape == weights.shape


@given(seed=seeds, core=st.integers(1, 3), wide=st.integers(1, 3), copies=st.integers(1, 3), empty=st.integers(0, 6))
def test_factors_make_the_shape_of_the_matrix_whatever_has_no_weights(seed, core, wide, copies, empty):
    rng = np.random.default_rng(seed)
    dense = np.kron(np.eye(copies), np.kron(rng.integers(1, 3, (core, core)), np.ones((1, wide))))
    dense = np.hstack([dense, np.zeros((len(dense), empty))]).astype(np.float32)
    for matrix in (dense, dense.T):
        weights = csc(matrix)
        found = kronecker_factors(weights, independent_blocks(weights))
        assert found is None or found.shape == weights.shape
