"""gather_chunks on a GPU: what the kernel computes."""

import numpy as np
import pytest
from oracle import EPSILON
from sparse_layers import csc

from sparsenn import backends
from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse.chunks.chain import _launch_of
from sparsenn.backends.cuda.sparse.chunks.tiling import BLOCKS, TEAM_BLOCK, Tiling, teams_of_weights
from sparsenn.backends.cuda.sparse.chunks.weights import lay_out
from sparsenn.backends.cuda.sparse.rows import rows_to_tiles, tiles_to_rows
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh

ACTIVATIONS = (ReLU(0.75), Sigmoid(), Tanh(), Identity())
AWKWARD = [
    (1, 1, 1, 1.0), (33, 1, 7, 0.5), (130, 77, 1, 0.3), (257, 300, 259, 0.05), (1000, 515, 130, 0.2),
    (64, 40, 300, 0.0), (5, 0, 9, 0.0), (0, 20, 30, 0.5),
]  # fmt: skip


def test_the_kernel_fuses_layers():
    assert backends.kernel_named("spmspm", "chunks", "cuda").fuses


def problem(rng, rows, inputs, outputs, density):
    """Dense rows, weights with empty columns, and a bias of both signs."""
    matrix = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
    matrix[:, rng.random(outputs) < 0.1] = 0
    bias = rng.normal(size=outputs).astype(np.float32)
    return rng.normal(size=(rows, inputs)).astype(np.float32), matrix.astype(np.float32), bias


def run(features, weights, bias, block, activation, groups=None, chunk=None):
    import cupy as cp

    rows, (inputs, outputs) = features.shape[0], weights.shape
    least = max(1, -(-outputs // block.slots))
    tiling = Tiling(block, max(least, groups or least), chunk or max(1, min(inputs, 50)))
    sparse = csc(weights)
    teams = [teams_of_weights(sparse) if block.teams else None]
    (chunked,) = lay_out([LayerNumbers(sparse, bias, np.ones(outputs, np.int64))], [tiling], current_machine(), teams)
    tiles = rows_to_tiles(cp.asarray(features), block.rows)
    code = activation_code(Linear(np.zeros((1, 1)), None, activation), 1)
    found = cp.empty((tiles.shape[0], outputs, block.rows), np.float32)
    if tiles.shape[0] and outputs:
        kernel, grid, threads, arguments, shared_bytes = _launch_of(chunked, *code, tiles, found)
        launch("spmspm", kernel, grid, threads, *arguments, shared_bytes=shared_bytes)
    return cp.asnumpy(tiles_to_rows(found, rows))


@pytest.mark.gpu
@pytest.mark.parametrize("block", [*BLOCKS, TEAM_BLOCK], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_kernel_computes_the_layer(block, activation, rng):
    for rows, inputs, outputs, density in AWKWARD:
        features, weights, bias = problem(rng, rows, inputs, outputs, density)
        found = run(features, weights, bias, block, activation)
        wide = features.astype(np.float64), weights.astype(np.float64)
        expected = activation(wide[0] @ wide[1] + bias)
        bound = (inputs + 2) * EPSILON * (np.abs(wide[0]) @ np.abs(wide[1]) + np.abs(bias)) + 4 * EPSILON
        assert found.shape == expected.shape
        assert (np.abs(found - expected) <= bound).all(), (rows, inputs, outputs)


@pytest.mark.gpu
def test_bits_are_the_same_in_every_run_and_for_every_tiling(rng):
    features, weights, bias = problem(rng, 300, 400, 500, 0.1)
    expected = run(features, weights, bias, BLOCKS[0], ReLU())
    for block in (*BLOCKS, TEAM_BLOCK):
        for more, chunk in ((0, 50), (7, 13), (0, 400)):
            found = run(features, weights, bias, block, ReLU(), -(-500 // block.slots) + more, chunk)
            assert np.array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_infinity_and_nan_reach_only_the_outputs_that_read_them(activation, rng):
    features, weights, bias = problem(rng, 70, 60, 50, 0.2)
    features[3, 7], features[40, 11], features[69, 59] = np.inf, np.nan, -np.inf
    for block in (*BLOCKS, TEAM_BLOCK):
        found = run(features, weights, bias, block, activation)
        for row, column in ((3, 7), (40, 11), (69, 59)):
            reads = weights[column] != 0
            clean = np.where(np.arange(60) == column, 0, features[row])
            expected = activation(clean.astype(np.float64) @ weights + bias)
            np.testing.assert_allclose(found[row, ~reads], expected[~reads], rtol=1e-5, atol=1e-5)
            if column == 11:
                assert np.isnan(found[row, reads]).all()
            elif activation == 3:
                assert np.array_equal(found[row, reads], np.sign(weights[column, reads]) * features[row, column])
