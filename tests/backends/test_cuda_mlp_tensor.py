"""mlp on tensor cores: fragments, checked without a GPU by an emulated instruction; and the kernel, on one."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.dense.plain import described
from sparsenn.backends.cuda.dense.stack import DenseStack, upload_dense
from sparsenn.backends.cuda.dense.tensor_shared import MOST_WIDTH, PRECISIONS, RUNGS, fits, lay_out, shape_for
from sparsenn.errors import UsageError
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh

ROOM = 227 << 10
LAUNCHES = {precision: launch for precision, (_, launch, _) in RUNGS}
ALLOWED = {"float32": 3e-6, "tf32": 2e-3, "fp16": 2e-3}
"""Largest error of a layer, in parts of the largest output."""


RELUS = (ReLU(),)


def random_layers(widths, rng, activations=RELUS):
    return [
        Linear(
            rng.normal(0, (2 / before) ** 0.5, (before, after)),
            rng.normal(0, 0.1, after),
            activations[k % len(activations)],
        )
        for k, (before, after) in enumerate(pairwise(widths))
    ]


def expected_of(layers, features):
    rows = features.astype(np.float64)
    for layer in layers:
        rows = layer.activation(rows @ layer.weights.astype(np.float64) + layer.bias_vector().astype(np.float64))
    return rows


def emulated(fragments, number, rows, inputs):
    """Multiply rows by a layer's weights as the instruction does: positions of k by lane, for both operands."""
    record = fragments.layers[number]
    half = fragments.precision == "fp16"
    per_lane = 4 if half else 2
    step = 4 * per_lane
    dtype = np.float16 if half else np.float32
    parts = fragments.weights.view(dtype).reshape(fragments.weights.shape[0], -1)
    parts = parts[record["weights"] :][: record["tiles"] * record["steps"] * 32]
    values = parts.astype(np.float64).reshape(record["tiles"], record["steps"], 8, 4, -1)
    padded = np.zeros((rows.shape[0], record["steps"] * step))
    padded[:, :inputs] = rows
    by_lane = padded.reshape(rows.shape[0], record["steps"], 4, per_lane)
    weights = values[..., :per_lane] + (values[..., per_lane:] if values.shape[-1] > per_lane else 0)
    return np.einsum("rstj,osgtj->rog", by_lane, weights).reshape(rows.shape[0], -1)


@given(st.lists(st.integers(1, 80), min_size=2, max_size=4), st.sampled_from(PRECISIONS), st.integers(0, 99))
def test_fragments_multiply_to_the_product(widths, precision, seed):
    rng = np.random.default_rng(seed)
    layers = random_layers(widths, rng)
    fragments = lay_out(described(layers), precision)
    for number, layer in enumerate(layers):
        rows = rng.normal(size=(5, layer.inputs))
        product = rows @ layer.weights.astype(np.float64)
        found = emulated(fragments, number, rows, layer.inputs)
        allowed = {"float32": 2**-21, "tf32": 2**-10, "fp16": 2**-10}[precision]
        bound = allowed * (np.abs(rows) @ np.abs(layer.weights)) + 1e-7
        assert (np.abs(found[:, : layer.outputs] - product) <= bound).all()
        assert not found[:, layer.outputs :].any()
        bias = fragments.bias[fragments.layers[number]["bias"] :]
        assert np.array_equal(bias[: layer.outputs], layer.bias_vector())


@given(st.lists(st.integers(1, MOST_WIDTH), min_size=2, max_size=5), st.sampled_from(PRECISIONS), st.integers(1, 10**6))
def test_every_stack_has_a_shape_that_fits(widths, precision, rows):
    layers = [Linear(np.ones((before, after))) for before, after in pairwise(widths)]
    stack = described(layers)
    assert fits(stack) is None
    fragments = lay_out(stack, precision)
    shape = shape_for(fragments, rows, 132, ROOM)
    assert 1 <= shape.warps <= shape.most_warps
    assert shape.shared_bytes <= ROOM
    words = fragments.stride // 2 if precision == "fp16" else fragments.stride
    assert words % 16 == 8
    assert fragments.stride >= max(widths)
    targets = fragments.layers["target"]
    assert targets[0] == 1
    for before, after, tiles in zip(targets, targets[1:], fragments.layers["tiles"][1:], strict=False):
        assert after in (1, 2)
        assert (after == before) == (tiles <= 8)


def test_what_does_not_fit_is_told():
    assert "257 wide" in fits(described([Linear(np.ones((3, 257)))]))
    assert "33 layers" in fits(described([Linear(np.ones((2, 2)))] * 33))
    with pytest.raises(UsageError, match="1e\\+06 is beyond half precision"):
        lay_out(described([Linear(np.full((2, 2), 1e6))]), "fp16")


def on_gpu(layers, features, precision):
    import cupy

    stack = upload_dense(0, layers)
    assert isinstance(stack, DenseStack)
    return cupy.asnumpy(LAUNCHES[precision](stack, cupy.asarray(features)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 31, 33, 1000, 70_001])
@pytest.mark.parametrize(
    "widths", [(72, 64, 64, 4), (1, 1), (3, 5, 2), (7, 8, 9), (64, 129, 10), (200, 256, 200, 256, 1), (256, 256, 256)]
)
def test_stacks_equal_float64(rng, widths, rows, precision):
    layers = random_layers(widths, rng, (ReLU(), ReLU(1.5), Identity()))
    features = rng.normal(size=(rows, widths[0])).astype(np.float32)
    found = on_gpu(layers, features, precision)
    expected = expected_of(layers, features)
    assert found.shape == expected.shape
    error = np.abs(found - expected).max(initial=0.0) / max(1e-30, np.abs(expected).max(initial=0.0))
    assert error <= len(layers) * ALLOWED[precision]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()])
def test_every_activation(rng, activation, precision):
    layers = random_layers((20, 30, 40, 12), rng, (activation,))
    features = rng.normal(size=(333, 20)).astype(np.float32)
    found, expected = on_gpu(layers, features, precision), expected_of(layers, features)
    assert np.abs(found - expected).max() <= 3 * ALLOWED[precision] * np.abs(expected).max()


@pytest.mark.gpu
def test_splitting_is_as_exact_as_float32(rng):
    import cupy

    layers = random_layers((72, 64, 64, 4), rng)
    features = rng.normal(size=(20_000, 72)).astype(np.float32)
    expected = expected_of(layers, features)
    plain = cupy.asarray(features)
    for layer in layers:
        plain = cupy.maximum(plain @ cupy.asarray(layer.weights) + cupy.asarray(layer.bias_vector()), 0)
    ours = np.abs(on_gpu(layers, features, "float32") - expected).max()
    assert ours <= 2 * np.abs(cupy.asnumpy(plain) - expected).max()


@pytest.mark.gpu
def test_half_rows_in_and_out(rng):
    layers = random_layers((72, 64, 64, 4), rng)
    features = rng.normal(size=(5000, 72)).astype(np.float16)
    found, expected = on_gpu(layers, features, "fp16"), expected_of(layers, features)
    assert found.dtype == np.float16
    assert np.abs(found - expected).max() <= 0.005 * np.abs(expected).max()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_bits_and_unaligned_rows(rng, precision):
    import cupy

    layers = random_layers((13, 50, 3), rng)
    stack = upload_dense(0, layers)
    features = cupy.asarray(rng.normal(size=(999, 13)).astype(np.float32))
    first = LAUNCHES[precision](stack, features)
    assert (first == LAUNCHES[precision](stack, features)).all()
    assert (first[1:] == LAUNCHES[precision](stack, features[1:])).all()
