"""Layers that `chunks` runs in one launch: the bits and counts are those of layer by layer, and of the reference."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_close
from sparse_layers import sparse_layer
from strategies import networks_with_inputs

from sparsenn import backends, infer
from sparsenn.backends import SparseProblem
from sparsenn.backends.cuda.sparse.chunks.tiling import TILE_ROWS
from sparsenn.backends.stepwise import chain_of
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network

pytestmark = pytest.mark.gpu

WIDTHS = {1: (130, 77), 2: (300, 1, 65), 5: (40, 300, 33, 515, 1, 257)}
EVERY_ACTIVATION = [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()]


def random_layers(rng, widths, activation_of, exact=False):
    """Layers with empty inputs and outputs and a bias of both signs; small integers where they are to be `exact`."""
    made = []
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        shape = inputs, outputs
        values = rng.integers(-2, 3, shape) if exact else rng.normal(size=shape)
        matrix = values * (rng.random(shape) < min(1.0, 8 / inputs))
        matrix[1::7], matrix[:, 2::5] = 0, 0
        bias = rng.integers(-4, 2, outputs) if exact else rng.normal(size=outputs) - 0.5
        made.append(sparse_layer(matrix, bias, activation_of(number)))
    return made


def rows_of_every_form(rng, rows, width):
    """Valued rows as CSR and dense, and rows of one value; every fourth is empty."""
    mask = rng.random((rows, width)) < 0.3
    mask[::4] = False
    valued = from_dense((rng.integers(1, 6, mask.shape) * mask).astype(np.float32))
    iso = from_dense(np.where(mask, np.float32(3), np.float32(0)))
    assert iso.iso or iso.nnz == 0
    return valued, valued.to_scipy().toarray(), iso


def launched(device, layers, features, first=0, last=None, droppable_from=None, copies=None, multiplicity=None):
    """Run layers `first` to `last` in one run; returns each input's row, dense on the host, and what was counted."""
    backend = backends.backend_for(device)
    kernel = backends.kernel_named("spmspm", "chunks" if device == "cuda" else "reference", device)
    each = [np.ones(layer.outputs, np.int64) for layer in layers] if copies is None else copies
    layers = layers[first:last]
    stack, count = backend.prepare(layers, each[first:last]), features.shape[0]
    problem = SparseProblem(count, "csr", len(layers) if droppable_from is None else droppable_from - first, False)
    chain = chain_of(backend, kernel, stack, layers, problem)
    left = chain.run(backend.place(features), True, multiplicity)
    rows = backend.fetch(left.features)
    dense = rows.to_scipy().toarray() if isinstance(rows, CSR) else rows
    return left.row_map.scatter(dense), counted(chain.counts())


def counted(counts):
    """What was counted, without the name of the kernel."""
    return [(one.rows, one.active_inputs, one.nonzeros, one.performed_edges) for one in counts]


@pytest.fixture(params=[None, *TILE_ROWS])
def tile_rows(request, monkeypatch):
    """All layers in tiles of so many rows; None for those that the launch chooses."""
    if request.param:
        monkeypatch.setattr("sparsenn.backends.cuda.sparse.chunks.tiling.TILE_ROWS", (request.param,))
    return request.param


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=str)
@pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_layers_in_one_run_are_those_of_many(widths, activation, rows, tile_rows, rng):
    layers = random_layers(rng, widths, lambda number: activation)
    for features in rows_of_every_form(rng, rows, widths[0]):
        found, counts = launched("cuda", layers, features)
        given = features if isinstance(features, CSR) else from_dense(features)
        assert_close(from_dense(found), Network(tuple(layers)), given)
        single, singly = features, []
        for number in range(len(layers)):
            single, one = launched("cuda", layers, single, number, number + 1)
            singly += one
            assert singly[-1][2] == np.count_nonzero(single)
        assert np.array_equal(found.view(np.int32), single.view(np.int32))
        assert counts == singly


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=str)
@pytest.mark.parametrize("clip", [None, 6.0])
@pytest.mark.parametrize("rows", [33, 500])
def test_counts_are_those_of_the_reference(widths, clip, rows, tile_rows, rng):
    layers = random_layers(rng, widths, lambda number: ReLU(clip), exact=True)
    copies = [rng.integers(1, 9, layer.outputs) for layer in layers]
    multiplicity = rng.integers(1, 50, rows)
    for features in rows_of_every_form(rng, rows, widths[0]):
        for first, last in {(0, len(layers)), (len(layers) // 2, len(layers)), (0, 1)}:
            given = features if first == 0 else rng.integers(0, 3, (rows, widths[first])).astype(np.float32)
            chosen = (layers, given, first, last, None, copies, multiplicity)
            (found, counts), (right, expected) = launched("cuda", *chosen), launched("reference", *chosen)
            assert np.array_equal(found, right)
            assert [one[:3] for one in counts] == [one[:3] for one in expected]
            assert [one[3] for one in counts] == [rows * layer.weights.nnz for layer in layers[first:last]]


def test_rows_that_die_and_come_back_are_all_there(tile_rows, rng):
    activations = (ReLU(), Sigmoid(), ReLU(), ReLU())
    layers = random_layers(rng, (60, 50, 40, 70, 30), activations.__getitem__, exact=True)
    layers[0] = SparseLinear(layers[0].weights, -3.0, ReLU())
    features = (rng.random((310, 60)) < 0.1).astype(np.float32)
    for last in (2, 3, 4):
        found, counts = launched("cuda", layers, features, 0, last, droppable_from=1)
        assert counts[0][1] < 310
        assert counts[1][1] == 310
        assert_close(from_dense(found), Network(tuple(layers[:last])), from_dense(features))


def test_rows_that_all_die_are_zeros(rng):
    layers = [
        SparseLinear(layer.weights, -1e6, ReLU()) for layer in random_layers(rng, (9, 8, 7), lambda number: Tanh())
    ]
    found, counts = launched("cuda", layers, rng.random((40, 9), dtype=np.float32), droppable_from=0)
    assert found.shape == (40, 7)
    assert not found.any()
    assert [active for _, active, _, _ in counts] == [0, 0]


@settings(max_examples=100)
@given(networks_with_inputs(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 7]))
def test_the_engine_gives_any_network_its_answer(problem, compaction, deduplication, merging, batch_size):
    network, inputs = problem
    options = {"compaction": compaction, "deduplication": deduplication, "merging": merging, "batch_size": batch_size}
    result = infer(network, inputs, device="cuda", kernel="chunks", **options)
    assert_close(result.outputs, network, inputs)
    assert np.array_equal(result.categories, np.flatnonzero(np.diff(result.outputs.indptr)))
    assert result.statistics[-1].active_rows == result.categories.size
