"""The ladder on a GPU: every rung equals the reference, on awkward shapes and on the official network.

A rung that fuses layers gives the same bits and counts as layer by layer.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_close
from strategies import networks_with_inputs

from sparsenn import backends, infer
from sparsenn.backends import StepInput
from sparsenn.backends.cuda.sparse.chunks import TILE_ROWS
from sparsenn.formats import COO, CSR, coo_to_csr, from_dense
from sparsenn.io import read_official
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network

pytestmark = pytest.mark.gpu

RUNGS = [entry for entry in backends.variants("spmspm", "cuda") if not entry.groups_rows]
rungs = pytest.mark.parametrize("entry", RUNGS, ids=lambda entry: entry.name)

SHAPES = ((1, 1, 1), (1, 40, 1), (33, 1, 65), (0, 5, 4), (31, 300, 129), (65, 64, 2500), (257, 1024, 1000))
"""Rows, inputs and outputs: one wide, none, and no multiples of 32 or of any tile."""


def problem(shape, rng, activation, bias=None):
    """Unstructured, with every third row, input and output empty."""
    rows, inputs, outputs = shape
    weights = rng.normal(size=(inputs, outputs)).astype(np.float32) * (rng.random((inputs, outputs)) < 0.2)
    features = rng.normal(size=(rows, inputs)).astype(np.float32) * (rng.random((rows, inputs)) < 0.4)
    if min(rows, inputs, outputs) > 2:
        weights[:, ::3] = 0
        weights[1::3] = 0
        features[::3] = 0
    return SparseLinear.from_scipy(from_dense(weights).to_scipy(), bias, activation), from_dense(features)


def run(entry, layer, features, droppable_from=1):
    backend = backends.backend_for("cuda")
    stack = backend.prepare([layer], [np.ones(layer.outputs, np.int64)])
    count = features.shape[0]
    step = StepInput(stack, 0, 1, backend.place(features), np.ones(count, np.int64), droppable_from)
    output = entry.launch(step)
    found = backend.fetch(output.features)
    return (found.validate() if isinstance(found, CSR) else from_dense(found)), output


@rungs
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation", [ReLU(32.0), Sigmoid(), Tanh(), Identity()], ids=str)
def test_rung_equals_the_reference(entry, shape, activation, rng):
    bias = rng.normal(size=shape[2]).astype(np.float32)
    for chosen in (None, -0.3, bias):
        layer, features = problem(shape, rng, activation, chosen)
        found, output = run(entry, layer, features)
        assert_close(found, Network((layer,)), features)
        assert output.kept.tolist() == list(range(shape[0]))


@rungs
def test_rung_takes_iso_valued_matrices_and_dense_rows(entry, rng):
    mask = rng.random((70, 96)) < 0.3
    weights = from_dense(np.where(rng.random((96, 50)) < 0.2, 0.0625, 0)).to_scipy()
    layer = SparseLinear.from_scipy(weights, -0.1, ReLU(32.0))
    assert layer.weights.iso
    for features in (from_dense(mask.astype(np.float32)), mask.astype(np.float32)):
        found, _ = run(entry, layer, features)
        assert_close(found, Network((layer,)), from_dense(mask.astype(np.float32)))


@rungs
def test_rows_of_zeros_are_dropped_where_that_is_allowed(entry, rng):
    layer, features = problem((90, 64, 64), rng, ReLU(), -0.1)
    everything, _ = run(entry, layer, features)
    alive = np.flatnonzero(np.diff(everything.indptr))
    found, output = run(entry, layer, features, droppable_from=0)
    assert 0 < alive.size < 90
    assert np.array_equal(output.kept, alive)
    assert np.array_equal(found.to_scipy().toarray(), everything.to_scipy().toarray()[alive])


@rungs
def test_a_rung_gives_the_same_bits_in_every_run(entry, rng):
    layer, features = problem((600, 512, 700), rng, ReLU(32.0), -0.2)
    first, _ = run(entry, layer, features)
    for _ in range(5):
        again, _ = run(entry, layer, features)
        assert again.values.tobytes() == first.values.tobytes()
        assert again.indices.tobytes() == first.indices.tobytes()
        assert again.indptr.tobytes() == first.indptr.tobytes()


@rungs
def test_rows_that_do_not_fit_at_once_are_computed_in_parts(entry, rng, monkeypatch):
    layer, features = problem((150, 80, 60), rng, ReLU(), -0.1)
    whole, _ = run(entry, layer, features)
    monkeypatch.setattr("sparsenn.backends.cuda.sparse.spmspm.MOST_ELEMENTS", 60 * 37)
    monkeypatch.setattr("sparsenn.backends.cuda.sparse.spmspm.MOST_BLOCKS_DOWN", 2)
    parts, _ = run(entry, layer, features)
    assert parts.indptr.tobytes() == whole.indptr.tobytes()
    assert parts.values.tobytes() == whole.values.tobytes()


@rungs
def test_wide_layers_take_32_bit_indices(entry, rng):
    width = 70_000
    places = rng.integers(0, width, (2, 4000))
    weights = coo_to_csr(COO.from_arrays((300, width), places[0] % 300, places[1], rng.random(4000, np.float32)))
    layer = SparseLinear.from_scipy(weights.to_scipy(), -0.1, ReLU())
    _, features = problem((5, 300, 3), rng, ReLU())
    found, _ = run(entry, layer, features)
    expected = backends.reference.forward(layer, features.to_scipy().astype(np.float64)).toarray()
    np.testing.assert_allclose(found.to_scipy().toarray(), expected, rtol=1e-4, atol=1e-6)
    back = SparseLinear.from_scipy(weights.to_scipy().T, -0.1, ReLU())
    found, _ = run(entry, back, from_dense(found.to_scipy().toarray()))
    assert found.shape == (5, 300)


@rungs
def test_official_categories_of_the_first_images(entry, official_folder):
    dataset = read_official(official_folder)
    found = infer(
        dataset.network,
        dataset.inputs,
        device="cuda",
        kernel=entry.name,
        compaction=False,
        deduplication=False,
        merging=False,
    )
    assert np.array_equal(found.categories, dataset.truth)


@rungs
def test_the_engine_drops_groups_and_merges_with_every_rung(entry, official_folder):
    dataset = read_official(official_folder)
    found = infer(dataset.network, dataset.inputs, device="cuda", kernel=entry.name)
    assert np.array_equal(found.categories, dataset.truth)


# ---- Several layers in a launch ---------------------------------------------------------------------------------

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
        weights = from_dense(matrix.astype(np.float32)).to_scipy()
        made.append(SparseLinear.from_scipy(weights, bias.astype(np.float32), activation_of(number)))
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
    """Run layers in one launch; returns the rows left, dense on the host, and what the launch gave."""
    backend = backends.backend_for(device)
    kernel = backends.variant("spmspm", "chunks" if device == "cuda" else "reference", device)
    last = len(layers) if last is None else last
    stack = backend.prepare(layers, copies or [np.ones(layer.outputs, np.int64) for layer in layers])
    step = StepInput(
        stack,
        first,
        last,
        backend.place(features),
        np.ones(features.shape[0], np.int64) if multiplicity is None else multiplicity,
        last if droppable_from is None else droppable_from,
    )
    output = kernel.launch(step)
    rows = backend.fetch(output.features)
    return rows.to_scipy().toarray() if isinstance(rows, CSR) else rows, output


def counted(output):
    """What was counted, without the name of the kernel."""
    return [(one.rows, one.active_inputs, one.nonzeros, one.performed_edges) for one in output.counts]


@pytest.fixture(params=[None, *TILE_ROWS])
def tile_rows(request, monkeypatch):
    """All layers in tiles of so many rows; None for those that the launch chooses."""
    if request.param:
        monkeypatch.setattr("sparsenn.backends.cuda.sparse.chunks.TILE_ROWS", (request.param,))
    return request.param


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=str)
@pytest.mark.parametrize("activation", EVERY_ACTIVATION, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_layers_in_one_launch_are_those_of_many(widths, activation, rows, tile_rows, rng):
    layers = random_layers(rng, widths, lambda number: activation)
    for features in rows_of_every_form(rng, rows, widths[0]):
        found, output = launched("cuda", layers, features)
        given = features if isinstance(features, CSR) else from_dense(features)
        assert_close(from_dense(found), Network(tuple(layers)), given)
        assert np.array_equal(output.kept, np.arange(rows))
        single, counts = features, []
        for number in range(len(layers)):
            single, one = launched("cuda", layers, single, number, number + 1, len(layers))
            counts += counted(one)
            assert counts[-1][2] == np.count_nonzero(single)
        assert np.array_equal(found.view(np.int32), single.view(np.int32))
        assert counted(output) == counts


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
            for droppable_from in (last, last - 1):  # no row goes, or those go that are dead at the end
                chosen = (layers, given, first, last, droppable_from, copies, multiplicity)
                (found, output), (right, expected) = launched("cuda", *chosen), launched("reference", *chosen)
                assert np.array_equal(found, right)
                assert np.array_equal(output.kept, expected.kept)
                assert counted(output) == counted(expected)


def test_rows_that_die_and_come_back_are_all_there(tile_rows, rng):
    activations = (ReLU(), Sigmoid(), ReLU(), ReLU())
    layers = random_layers(rng, (60, 50, 40, 70, 30), activations.__getitem__, exact=True)
    layers[0] = SparseLinear(layers[0].weights, -3.0, ReLU())
    features = (rng.random((310, 60)) < 0.1).astype(np.float32)
    for last in (2, 3, 4):
        found, output = launched("cuda", layers, features, 0, last, droppable_from=1)
        whole, _ = launched("cuda", layers, features, 0, last)
        alive = np.flatnonzero(whole.any(axis=1))
        assert output.counts[0].active_inputs < 310
        assert output.counts[1].active_inputs == 310
        assert np.array_equal(output.kept, alive)
        assert np.array_equal(found.view(np.int32), whole[alive].view(np.int32))
        assert_close(from_dense(whole), Network(tuple(layers[:last])), from_dense(features))


def test_rows_that_all_die_leave_nothing(rng):
    layers = [
        SparseLinear(layer.weights, -1e6, ReLU()) for layer in random_layers(rng, (9, 8, 7), lambda number: Tanh())
    ]
    found, output = launched("cuda", layers, rng.random((40, 9), dtype=np.float32), droppable_from=0)
    assert found.shape == (0, 7)
    assert output.kept.size == 0
    assert [one.active_inputs for one in output.counts] == [0, 0]
    assert output.counts[1].performed_edges == 0


@settings(max_examples=100)
@given(networks_with_inputs(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 7]))
def test_the_engine_gives_any_network_its_answer(problem, compaction, deduplication, merging, batch_size):
    network, inputs = problem
    options = {"compaction": compaction, "deduplication": deduplication, "merging": merging, "batch_size": batch_size}
    result = infer(network, inputs, device="cuda", kernel="chunks", **options)
    assert_close(result.outputs, network, inputs)
    assert np.array_equal(result.categories, np.flatnonzero(np.diff(result.outputs.indptr)))
    assert result.statistics[-1].active_rows == result.categories.size
