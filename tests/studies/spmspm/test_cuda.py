"""The ladder on a GPU: every rung equals the reference, on awkward shapes and on the official network."""

import numpy as np
import pytest
from oracle import assert_close

from sparsenn import backends, infer
from sparsenn.backends import StepInput
from sparsenn.backends.chains import SAME_ROWS
from sparsenn.backends.oracle import forward
from sparsenn.formats import COO, CSR, coo_to_csr, from_dense
from sparsenn.io import read_official
from sparsenn.layers import Identity, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.network import Network
from sparsenn.studies.ladder import rungs_of

pytestmark = pytest.mark.gpu

RUNGS = rungs_of("spmspm", "cuda")
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
        assert output.row_map is SAME_ROWS


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
    monkeypatch.setattr("sparsenn.studies.spmspm.cuda.MOST_ELEMENTS", 60 * 37)
    monkeypatch.setattr("sparsenn.studies.spmspm.cuda.MOST_BLOCKS_DOWN", 2)
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
    expected = forward(layer, features.to_scipy().astype(np.float64)).toarray()
    np.testing.assert_allclose(found.to_scipy().toarray(), expected, rtol=1e-4, atol=1e-6)
    back = SparseLinear.from_scipy(weights.to_scipy().T, -0.1, ReLU())
    found, _ = run(entry, back, from_dense(found.to_scipy().toarray()))
    assert found.shape == (5, 300)


@rungs
@pytest.mark.parametrize("switches", [{}, dict.fromkeys(("compaction", "deduplication", "merging"), False)], ids=str)
def test_official_categories_of_the_first_images(entry, switches, official_folder):
    dataset = read_official(official_folder)
    found = infer(dataset.network, dataset.inputs, device="cuda", kernel=entry.name, **switches)
    assert np.array_equal(found.categories, dataset.truth)
