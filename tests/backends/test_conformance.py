"""One suite for every backend: each operation of the protocol, each kernel, on awkward shapes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import outputs_of
from sparse_layers import sparse_layer
from strategies import csr_matrices, inputs_for, layers, linear_layers

from sparsenn import backends
from sparsenn.backends import StepInput
from sparsenn.formats import CSR, from_dense
from sparsenn.layers import Identity, Linear, ReLU

DEVICES = {"reference": (), "cpu": (), "cuda": (pytest.mark.gpu,)}
KERNELS = [
    pytest.param(entry, marks=marks, id=f"{device}-{entry.name}")
    for device, marks in DEVICES.items()
    for entry in backends.kernels("spmspm", device)
    if not entry.groups_rows and entry.precision == "float32"
]
DENSE_KERNELS = [
    pytest.param(entry, marks=marks, id=f"{device}-{entry.name}")
    for device, marks in DEVICES.items()
    for entry in backends.kernels("mlp", device)
]
ALLOWED = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2}
"""In parts of what a sum's terms add up to without their signs."""

devices = pytest.mark.parametrize("device", [pytest.param(device, marks=marks) for device, marks in DEVICES.items()])


def dense(features):
    return features.to_scipy().toarray() if isinstance(features, CSR) else features


@st.composite
def steps(draw):
    """One layer, rows for it, as CSR or dense, and whether zeros may be dropped and non-zeros scattered."""
    width = draw(st.integers(1, 30))
    layer = draw(layers(width, draw(st.integers(1, 30))))
    inputs = draw(inputs_for(width, 50))
    return layer, inputs, draw(st.booleans()), draw(st.booleans()), draw(st.booleans())


@pytest.mark.parametrize("entry", KERNELS)
@given(step=steps())
def test_every_kernel_computes_the_layer(entry, step):
    layer, inputs, drop, as_dense, scatter = step
    backend = backends.backend_for(entry.device)
    features = backend.place(inputs.to_scipy().toarray() if as_dense else inputs)
    stack = backend.prepare([layer], [np.ones(layer.outputs, np.int64)])
    multiplicity = np.arange(1, inputs.shape[0] + 1)
    output = entry.launch(StepInput(stack, 0, 1, features, multiplicity, 0 if drop else 1, scatter))

    expected = outputs_of(layer, inputs.to_scipy().toarray())
    alive = expected.any(axis=1)
    rows = dense(backend.fetch(output.features))
    found = output.row_map.scatter(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if drop and entry.prepare is None:
        assert rows.any(axis=1).all()
    else:
        assert rows.shape[0] == inputs.shape[0]
    (counts,) = output.counts
    assert counts.rows == inputs.shape[0]
    found_alive = found.any(axis=1)
    assert counts.active_inputs == multiplicity[found_alive].sum()
    assert counts.nonzeros == (np.count_nonzero(found, axis=1) * multiplicity).sum()
    assert np.array_equal(found_alive, alive) or np.abs(expected[found_alive != alive]).max() < 1e-5


@st.composite
def dense_steps(draw):
    widths = draw(st.lists(st.integers(1, 30), min_size=2, max_size=4))
    stack = tuple(draw(linear_layers(*pair)) for pair in pairwise(widths))
    return stack, draw(inputs_for(widths[0], 50)), draw(st.booleans())


@pytest.mark.parametrize("entry", DENSE_KERNELS)
@given(step=dense_steps())
def test_every_kernel_computes_the_dense_layers(entry, step):
    stack, inputs, as_dense = step
    backend = backends.backend_for(entry.device)
    if entry.why_not(backend.machine, stack) is not None:
        random = np.random.default_rng(inputs.shape[0])
        kinds = zip(pairwise((72, 64, 64, 4)), (ReLU(), ReLU(), Identity()), strict=True)
        stack = tuple(Linear(random.normal(size=pair) / 8, 0.5, kind) for pair, kind in kinds)
        inputs = from_dense(random.normal(size=(inputs.shape[0], 72)))
    features = backend.as_dense(backend.place(inputs.to_scipy().toarray() if as_dense else inputs))
    prepared, before = backend.prepare(stack), np.array(backend.fetch(features))
    outputs = entry.launch(prepared, features)
    found = np.array(backend.fetch(outputs))

    expected, size = inputs.to_scipy().toarray().astype(np.float64), np.float64(1.0)
    for layer in stack:
        size = np.abs(expected).max(initial=1.0) * np.abs(layer.weights).sum(axis=0).max() + size
        expected = outputs_of(layer, expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= ALLOWED[entry.precision] * size * len(stack)
    assert np.array_equal(backend.fetch(features), before)
    again = entry.launch(prepared, features)
    assert np.array_equal(backend.fetch(again), found)
    assert np.array_equal(backend.fetch(outputs), found), "outputs are written over by the next launch"


@devices
@given(matrix=csr_matrices())
def test_either_form_becomes_dense_and_its_nonzeros_are_counted(device, matrix):
    backend = backends.backend_for(device)
    full = matrix.to_scipy().toarray()
    for features in (matrix, full):
        placed = backend.as_dense(backend.place(features))
        assert np.array_equal(backend.fetch(placed), full)
        counts = backend.count_nonzeros(placed)
        assert counts.dtype == np.int64
        assert np.array_equal(counts, np.count_nonzero(full, axis=1))


@pytest.mark.parametrize(("device", "name"), [("reference", "reference"), ("cpu", "panel"), ("cpu", "scipy")])
@given(matrix=csr_matrices())
def test_one_of_each_set_of_equal_rows_stays_in_order(device, name, matrix):
    backend = backends.backend_for(device)
    distinct_rows = backends.kernel_named("spmspm", name, device).distinct_rows
    full = matrix.to_scipy().toarray() + 0.0  # no negative zeros
    _, first = np.unique(full, axis=0, return_index=True)
    for features in (from_dense(full), full.copy()):
        distinct, row_map = distinct_rows(backend.place(features))
        rows = dense(backend.fetch(distinct))
        assert np.array_equal(rows, full[np.sort(first)])
        assert np.array_equal(row_map.scatter(rows), full)


@devices
def test_placing_keeps_the_values(device, rng):
    backend = backends.backend_for(device)
    matrix = rng.integers(0, 3, (5, 7)).astype(np.float64)
    for features in (matrix, np.asfortranarray(matrix), from_dense(matrix, np.float64)):
        placed = backend.place(features)
        backend.release()  # memory can be given back between launches
        assert np.array_equal(dense(backend.fetch(placed)), matrix)


@devices
def test_prepared_weights_are_weighed(device, rng):
    backend = backends.backend_for(device)
    dense = rng.normal(size=(60, 50)) * (rng.random((60, 50)) < 0.3)
    layer = sparse_layer(dense, -0.1)
    assert backend.prepared_bytes(layer) >= layer.weights.nbytes
    linear = Linear(dense, 0.5)
    assert backend.prepared_bytes(linear) >= linear.weights.nbytes
