"""The fused mlp kernels: layouts and plans; and the kernels, on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from dense_chains import exact, launched, layers_of
from formulas import Unknown
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.dense.fused import (
    FUSED_FMA,
    IN_REGISTERS,
    KERNELS,
    MOST_LAYERS,
    MOST_TILES,
    TENSOR_FLOAT32,
    TENSOR_HALF,
    WIDEST,
    fits,
    fits_any_depth,
    plan,
    rows_of_block,
)
from sparsenn.backends.cuda.dense.image import FLOAT32, HALF, HALF_ROWS, TF32, fma_floats, fma_image, tile_places
from sparsenn.backends.cuda.dense.stack import DenseLayer, DenseStack, StackShape, shape_of, upload_dense
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.machine import A100, H200, RTX_4090
from sparsenn.errors import UsageError
from sparsenn.layers import Identity, Linear, ReLU, Tanh

UNIT = {"float32": 2.0**-23, "tf32": 2.0**-11, "float16": 2.0**-11}
"""What a number that is multiplied may be off by, relatively; to each precision's nearest it is half of that."""


rungs = pytest.mark.parametrize("rung", KERNELS, ids=lambda rung: rung.name)


def on_host(layers):
    arrays = (
        DenseLayer(layer.weights, layer.bias_vector(), np.int32(0), np.float32(np.inf), layer) for layer in layers
    )
    return DenseStack(-1, tuple(arrays))


def bound(layers, features, unit):
    """How far an answer may be off: each product by two roundings, each sum by one for each term, in float32."""
    values, error = np.abs(features.astype(np.float64)), np.zeros(features.shape)
    found = features.astype(np.float64)
    for layer in layers:
        sizes, bias = np.abs(layer.weights.astype(np.float64)), np.abs(layer.bias_vector().astype(np.float64))
        total = (values + error) @ sizes + bias
        error = error @ sizes + (2 * unit + (layer.inputs + 2) * UNIT["float32"]) * total + 8 * UNIT["float32"] + 2e-7
        found = layer.activation(found @ layer.weights.astype(np.float64) + layer.bias_vector())
        values = np.abs(found)
    return error + unit * values  # what is stored may be rounded


# ---- Layouts ----------------------------------------------------------------------------------------------------


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_is_the_sum_of_its_parts(value):
    whole = np.float32([value])
    high, low = split_tf32(whole)
    assert np.isfinite(high).all()
    for part in (high, low):
        assert not (part.view(np.uint32) & 0x1FFF).any()
    tiny = np.abs(whole) < 2.0**-100
    assert tiny or np.abs(whole.astype(np.float64) - high - low) <= 2.0**-22 * np.abs(whole)


@given(st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_every_weight_is_held_once(inputs, outputs, first):
    places = tile_places(inputs, outputs, first)
    assert places.shape == (-(-inputs // 8), -(-outputs // 8), 32, 2)
    held = np.sort(places[places >= 0])
    assert np.array_equal(held, np.arange(inputs * outputs))


def test_image_of_the_plain_kernel(rng):
    layers = layers_of(rng, (3, 5, 2))
    made = fma_image(on_host(layers).layers)
    assert made.size == fma_floats((3, 5, 2)) == 3 * 8 + 5 * 4 + 16
    assert np.array_equal(made[:24].reshape(3, 8)[:, :5], layers[0].weights)
    assert np.array_equal(made[24:44].reshape(5, 4)[:, :2], layers[1].weights)
    assert np.array_equal(made[44:49], layers[0].bias_vector())
    assert np.array_equal(made[52:54], layers[1].bias_vector())
    assert np.array_equal(made[56:], [np.inf, np.inf, 0, 0])


# ---- Plans ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, WIDEST), min_size=2, max_size=6),
    st.integers(1, 1 << 24),
    st.sampled_from((H200, A100, RTX_4090)),
)
def test_a_plan_stays_within_the_device(widths, rows, limits):
    shape = StackShape(tuple(widths), ((0, False),) * (len(widths) - 1))
    for kind in (FLOAT32, TF32, HALF, HALF_ROWS):
        if fits(kind, limits, shape) is None:
            made = plan(kind, tuple(widths), rows, limits)
            assert made.shared_bytes <= limits.block_bytes
            assert 1 <= made.warps <= made.most_warps
            assert 16 * made.row_tiles * made.tiles >= rows
    size, _, shared = rows_of_block(tuple(widths), rows, limits)
    assert shared <= limits.block_bytes
    assert size % 8 == 0


def test_few_rows_reach_all_multiprocessors():
    made = plan(FLOAT32, (72, 64, 64, 4), 12_800, H200)
    assert (made.row_tiles, made.tiles, made.warps) == (1, 800, 7)
    made = plan(FLOAT32, (72, 64, 64, 4), 5_120_000, H200)
    assert (made.row_tiles, made.tiles, made.warps) == (1, 320_000, 8)
    made = plan(TF32, (72, 64, 64, 4), 5_120_000, H200)
    assert (made.row_tiles, made.tiles, made.warps) == (2, 160_000, 8)


def test_deep_chains_do_not_fit():
    deepest = (256,) * (MOST_TILES // 1024 + 1)
    assert fits_any_depth(H200, StackShape(deepest, ((0, False),) * (len(deepest) - 1))) is None
    reason = fits_any_depth(H200, StackShape((*deepest, 8), ((0, False),) * len(deepest)))
    assert f"{MOST_TILES + 32:,} tiles" in reason


def test_tensor_cores_take_few_layers():
    for layers, is_fine in ((MOST_LAYERS, True), (MOST_LAYERS + 1, False)):
        reason = fits(FLOAT32, H200, StackShape((8,) * (layers + 1), ((0, False),) * layers))
        assert (reason is None) == is_fine
    assert reason.startswith(f"{MOST_LAYERS + 1} layers")


@pytest.mark.gpu
def test_deep_stacks_are_run_in_groups(rng, cupy):
    layers = layers_of(rng, (24,) * (2 * MOST_LAYERS + 4))
    rows = cupy.asarray(rng.normal(size=(77, 24)).astype(np.float32))
    expected = rows
    for first in range(0, len(layers), 5):
        expected = FUSED_FMA.launch(upload_dense(0, layers[first : first + 5]), expected)
    stack = upload_dense(0, layers)
    for _ in range(2):
        assert cupy.array_equal(FUSED_FMA.launch(stack, rows), expected)


def test_wide_layers_do_not_fit(rng):
    for machine in (H200, A100, RTX_4090):
        assert fits_any_depth(machine, shape_of(layers_of(rng, (4, WIDEST, 3)))) is None
        assert "257" in fits_any_depth(machine, shape_of(layers_of(rng, (4, WIDEST + 1, 3))))
        assert fits(FLOAT32, machine, shape_of(layers_of(rng, (4, IN_REGISTERS, 3)))) is None
        assert "129" in fits(FLOAT32, machine, shape_of(layers_of(rng, (4, IN_REGISTERS + 1, 3))))


def test_weights_beyond_shared_memory_do_not_fit(rng):
    shape = shape_of(layers_of(rng, (128, 128, 128)))
    assert "265 KiB of shared memory; a block has 227" in fits(FLOAT32, H200, shape)
    assert fits(TF32, H200, shape) is None
    assert "a block has 99" in fits(TF32, RTX_4090, shape)


def test_a_shape_tells_widths_and_activations(rng):
    layers = layers_of(rng, (3, 4, 5, 6), [ReLU(), ReLU(6.0), Tanh()])
    shape = shape_of(layers)
    assert shape == StackShape((3, 4, 5, 6), ((0, False), (0, True), (2, False)))
    codes = [(np.int32(0), np.inf), (np.int32(0), 6.0), (np.int32(2), np.inf)]
    uploaded = (
        DenseLayer(layer.weights, layer.bias, code, np.float32(clip), layer)
        for layer, (code, clip) in zip(layers, codes, strict=True)
    )
    stack = DenseStack(-1, tuple(uploaded))
    assert (stack.shape, stack.widths) == (shape, (3, 4, 5, 6))
    with pytest.raises(UsageError, match=r"layer 2: .* activation"):
        shape_of([layers[0], replace(layers[1], activation=Unknown())])


# ---- On a GPU ---------------------------------------------------------------------------------------------------


def skip_unless_it_fits(rung, layers):
    if reason := rung.why_not(machine_of(0), layers):
        pytest.skip(reason)


def assert_near(found, layers, features, precision):
    expected = exact(layers, features)
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= bound(layers, features, UNIT[precision])).all()


@pytest.mark.gpu
@rungs
def test_many_rows_take_large_tiles(rung, rng):
    layers = layers_of(rng, (72, 64, 64, 4))
    features = rng.normal(size=(150_001, 72)).astype(np.float32)
    found = launched(rung, layers, features)
    assert_near(found, layers, features, rung.precision)
    if rung is not FUSED_FMA:
        assert np.array_equal(launched(rung, layers, features[-1000:]), found[-1000:])  # small tiles, the same bits


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("widths", [(72, 64, 64, 4), (200, 140, 3)], ids=str)
def test_integers_are_exact(rung, widths, rng):
    layers = layers_of(rng, widths[:2], [Identity()], integers=2)
    layers += (Linear(np.eye(widths[1], widths[2]), np.arange(widths[2]), ReLU()),)
    skip_unless_it_fits(rung, layers)
    features = rng.integers(-2, 3, (333, widths[0])).astype(np.float32)
    assert np.array_equal(launched(rung, layers, features), exact(layers, features))


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(72, 64, 64, 4), (128, 128, 10)], ids=str)
def test_tensor_cores_are_as_precise_as_plain_float32(widths, rng):
    layers = layers_of(rng, widths)
    for features in (rng.normal(size=(20_000, widths[0])), rng.random((20_000, widths[0]))):
        given_rows = features.astype(np.float32)
        right = exact(layers, given_rows)
        errors = {rung.name: np.abs(launched(rung, layers, given_rows) - right) for rung in (FUSED_FMA, TENSOR_FLOAT32)}
        assert errors["tensor_float32"].max() <= 2 * errors["fused_fma"].max()
        assert np.sqrt((errors["tensor_float32"] ** 2).mean()) <= 2 * np.sqrt((errors["fused_fma"] ** 2).mean())


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [FUSED_FMA, TENSOR_FLOAT32], ids=lambda rung: rung.name)
@pytest.mark.parametrize("widths", [(72, 64, 64, 4), (120, 100, 3)], ids=str)
def test_strange_rows_give_what_float32_gives(rung, widths, rng):
    layers = layers_of(rng, widths, [ReLU(6.0)] * (len(widths) - 2) + [Identity()])
    features = rng.normal(size=(100, widths[0])).astype(np.float32)
    plain = launched(rung, layers, features)
    strange = features.copy()
    strange[3, 5], strange[40, 0], strange[77, 9] = np.inf, np.nan, -np.inf
    strange[50] *= np.float32(1e37)
    strange[51, 7] = np.finfo(np.float32).max
    found = launched(rung, layers, strange)
    others = np.setdiff1d(np.arange(100), [3, 40, 50, 51, 77])
    assert np.array_equal(found[others], plain[others])
    with np.errstate(all="ignore"):
        right = exact(layers, strange)
        for row in (3, 40, 77):
            assert np.array_equal(np.isnan(found[row]), np.isnan(right[row]))
            here = ~np.isnan(right[row])
            np.testing.assert_allclose(found[row][here], right[row][here], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[[50, 51]], right[[50, 51]], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_half_precision_overflows_to_infinity(rng):
    layers = (Linear(np.float32([[2.0]]), None, Identity()), Linear(np.float32([[1.0]]), None, Identity()))
    found = launched(TENSOR_HALF, layers, np.float32([[1.0], [40_000.0], [70_000.0], [np.nan]]))
    np.testing.assert_array_equal(found, np.float32([[2.0], [np.inf], [np.inf], [np.nan]]))
