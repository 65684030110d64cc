"""Independent blocks and dense tiles: what was planted is found, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sparse_layers import csc
from strategies import csc_matrices, seeds

from sparsenn.structure.blocks import dense_tiles, independent_blocks


@given(csc_matrices())
def test_blocks_are_the_connected_components(matrix):
    places = sparse.csc_array((np.ones(matrix.nnz), matrix.indices.astype(int), matrix.indptr), matrix.shape)
    graph = sparse.block_array([[None, places], [places.T, None]]) if all(matrix.shape) else sparse.csr_array((1, 1))
    labels = connected_components(graph, directed=False)[1]
    held = {labels[row] for row in matrix.indices}
    found = independent_blocks(matrix)
    if len(held) < 2:
        assert found is None
        return
    assert found.count == len(held)
    assert set(found.inputs) | set(found.outputs) <= set(range(-1, found.count))
    ours = np.concatenate([found.inputs, found.outputs])
    pairs = {(mine, label if label in held else -1) for mine, label in zip(ours, labels, strict=True)}
    assert len(pairs) == len({mine for mine, _ in pairs}) == len({label for _, label in pairs})


@given(seeds)
def test_permuted_blocks_are_found_and_put_in_order(seed):
    rng = np.random.default_rng(seed)
    dense = sparse.block_diag([np.ones(shape) for shape in ((2, 3), (4, 1), (1, 1), (3, 5))]).toarray()
    dense = np.pad(dense, ((0, 2), (0, 1)))[rng.permutation(12)][:, rng.permutation(11)]
    found = independent_blocks(csc(dense))
    assert found.count == 4
    rows, columns = (np.argsort(labels, kind="stable") for labels in (found.inputs, found.outputs))
    ordered = dense[rows][:, columns]
    assert not ordered[:2].any()
    assert not ordered[:, :1].any()
    sizes = [np.bincount(labels[labels >= 0]) for labels in (found.inputs, found.outputs)]
    blocks = [np.ones(shape) for shape in zip(*sizes, strict=True)]
    assert np.array_equal(ordered[2:, 1:], sparse.block_diag(blocks).toarray())
    assert str(found) == "4 independent blocks of up to 4 × 5"


def test_one_weight_between_two_blocks_joins_them():
    dense = np.kron(np.eye(2), np.ones((3, 3)))
    assert str(independent_blocks(csc(dense))) == "2 independent blocks of 3 × 3"
    dense[0, 5] = 2.0**-149
    assert independent_blocks(csc(dense)) is None


def share(dense, width):
    """How much of the tiles that are touched is filled, by the book."""
    touched = [
        dense[top : top + width, left : left + width]
        for top in range(0, dense.shape[0], width)
        for left in range(0, dense.shape[1], width)
        if dense[top : top + width, left : left + width].any()
    ]
    return np.count_nonzero(dense) / sum(tile.size for tile in touched)


@given(seeds, st.integers(2, 9), st.sampled_from([1.0, 0.97, 0.8, 0.5]), st.integers(0, 3))
def test_the_widest_tiles_much_denser_than_the_layer_are_found(seed, width, fill, rest):
    rng = np.random.default_rng(seed)
    dense = np.kron(rng.random((7, 6)) < 0.3, np.ones((width, width)))[: 7 * width - rest]
    dense = dense * (rng.random(dense.shape) < fill)
    found, density = dense_tiles(csc(dense)), np.count_nonzero(dense) / dense.size
    least = (1 + density) / 2
    passing = [b for b in range(2, min(64, *dense.shape) + 1) if dense.any() and share(dense, b) >= least]
    if density in (0, 1) or not passing:
        assert found is None
    else:
        assert found.width == max(passing)
        assert found.fill == pytest.approx(share(dense, found.width), rel=1e-12)


def test_full_tiles():
    dense = np.kron(np.eye(4) + np.eye(4, k=1), np.ones((16, 16)))
    assert str(dense_tiles(csc(dense))) == "all of the places in aligned 16 × 16 blocks with a weight hold one"
    dense[0, 0] = 0
    assert str(dense_tiles(csc(dense))) == ("99.9 % of the places in aligned 16 × 16 blocks with a weight hold one")
    assert dense_tiles(csc(np.roll(dense, 1, axis=0))).fill < 1


@pytest.mark.parametrize("density", [0.01, 0.1, 0.4, 0.7, 0.95, 0.0, 1.0])
def test_weights_at_random_have_no_tiles(rng, density):
    assert dense_tiles(csc(rng.random((300, 200)) < density)) is None


def test_hardly_anything():
    for dense in (np.zeros((0, 3)), np.zeros((3, 0)), np.zeros((3, 3)), np.ones((1, 5)), np.ones((5, 1)), np.eye(1)):
        assert dense_tiles(csc(dense)) is None
        assert independent_blocks(csc(dense)) is None
