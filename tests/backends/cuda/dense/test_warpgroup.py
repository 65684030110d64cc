"""Chains of dense layers by whole warpgroups: emulated on the host; plans and images; and on a GPU."""

from itertools import product

import numpy as np
import pytest
from dense_chains import exact, launched, layers_of
from emulation import aligned, emulated
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.dense.fused import WIDEST
from sparsenn.backends.cuda.dense.stack import DenseLayer, shape_of
from sparsenn.backends.cuda.dense.warpgroup import KERNELS, SOURCE, WARPGROUP_FLOAT32, defines, fits
from sparsenn.backends.cuda.dense.warpgroup_plan import (
    LEAST_STAGES,
    MOST_ROWS,
    NEURONS,
    Tile,
    arranged,
    is_curved,
    plan,
    slabs_of,
    terms_of,
    tiles,
    unit_list,
    units_read,
)
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU, activation_code
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32
from sparsenn.backends.machine import A100, H200, RTX_4090
from sparsenn.layers import Identity, Linear, ReLU

KINDS = (FLOAT32, TF32, HALF)


kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def on_host(layers):
    return tuple(
        DenseLayer(layer.weights, layer.bias_vector(), *activation_code(layer, number), layer)
        for number, layer in enumerate(layers, start=1)
    )


def by_emulation(tile, layers, features, seed=1, stages=3):
    """The outputs as the kernel computes them; what it does not write stays NaN."""
    held = on_host(layers)
    widths = (layers[0].inputs, *(layer.outputs for layer in layers))
    vector = widths[0] * features.itemsize % 16 == 0
    made = defines(tile, H200, features.dtype == np.float16, vector, is_curved(shape_of(layers).activations))
    kernel = emulated(SOURCE, {**made, "STAGES": stages})
    outputs = np.full((features.shape[0], widths[-1]), np.nan, features.dtype)
    plain = np.concatenate([layer.weights.ravel() for layer in held])
    units = units_read(tile.kind, layers[0].weights)
    listed = unit_list(tile, widths[0], units)
    arrays = aligned(features), outputs, aligned(arranged(tile, held, units)), plain, listed
    numbers = (
        np.int64(features.shape[0]),
        np.int32(widths[0]),
        np.int32(len(layers)),
        np.int32(sum(slabs_of(tile, (units.size * terms_of(tile.kind), *widths[1:])))),
    )
    blocks = -(-features.shape[0] // tile.rows)
    kernel.launch(blocks, tile.threads, *arrays, *numbers, seed=seed)
    return outputs


# ---- The kernel, emulated ----------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(
    ("widths", "rows", "groups", "steps"),
    [
        ((5, 3), 16, 1, 4),
        ((40, 20, 7), 16, 1, 2),
        ((130, 100, 3), 32, 2, 4),
        ((33, 65, 70, 9), 48, 2, 2),
        ((200, 20, 129, 1), 16, 3, 4),
    ],
    ids=str,
)
def test_integers_are_exact_in_emulation(kind, widths, rows, groups, steps, rng):
    layers = layers_of(rng, widths, integers=1)
    features = rng.integers(-2, 3, (rows + 5, widths[0])).astype(np.float32)
    tile = Tile(kind, rows, groups, steps)
    for seed, stages in ((1, 2), (2, 4)):
        assert np.array_equal(by_emulation(tile, layers, features, seed, stages), exact(layers, features))


@kinds
def test_a_warpgroup_may_only_bring_rows_in(kind, rng):
    layers = layers_of(rng, (90, 60, 33, 5), integers=1)
    features = rng.integers(-2, 3, (50, 90)).astype(np.float32)
    tile = Tile(kind, 32, 2, 4, 1)
    assert tile.neurons == NEURONS
    assert np.array_equal(by_emulation(tile, layers, features), exact(layers, features))
    if kind is FLOAT32:
        features[7, 3] = np.inf
        others = np.delete(np.arange(50), 7)
        with np.errstate(invalid="ignore"):
            found, right = by_emulation(tile, layers, features), exact(layers, features)
        assert np.array_equal(found[others], right[others])
        assert np.array_equal(np.isnan(found), np.isnan(right))


def pruned_first(layers, rng, most):
    """Leave but a few inputs of the first layer a weight."""
    keep = rng.permutation(layers[0].inputs)[: rng.integers(0, most + 1)]
    weights = np.zeros_like(layers[0].weights)
    weights[keep] = layers[0].weights[keep]
    return (Linear(weights, layers[0].bias, layers[0].activation), *layers[1:])


@kinds
@pytest.mark.parametrize("most", [0, 3, 12])
def test_inputs_without_weights_are_passed_over_in_emulation(kind, most, rng):
    layers = pruned_first(layers_of(rng, (150, 30, 7), integers=1), rng, most)
    features = rng.integers(-2, 3, (40, 150)).astype(np.float32)
    tile = Tile(kind, 32, 2, 4)
    assert units_read(kind, layers[0].weights).size <= most
    assert np.array_equal(by_emulation(tile, layers, features), exact(layers, features))


# ---- Plans and images --------------------------------------------------------------------------------------------


@given(kind=st.sampled_from(KINDS), widest=st.integers(1, WIDEST), rows=st.integers(1, 1 << 22))
def test_a_plan_stays_within_the_device(kind, widest, rows):
    tile = plan(kind, widest, rows, H200)
    assert 0 <= tile.neurons - widest < NEURONS
    assert tile.stages(H200) >= LEAST_STAGES
    assert tile.shared_bytes(H200) <= H200.block_bytes
    assert tile.rows <= MOST_ROWS[kind, tile.steps][tile.warpgroups]


@pytest.mark.parametrize(
    ("widest", "rows", "tiles"),
    [
        (128, 1, (16, 16, 16)),
        (128, 10_000, (80, 80, 80)),  # 125 blocks, one a multiprocessor
        (128, 60_000, (128, 128, 128)),
        (64, 10_000, (80, 48, 48)),  # two a multiprocessor
        (256, 10_000, (48, 80, 48)),
    ],
)
def test_tiles_have_the_fewest_waves_and_the_deepest_slabs(widest, rows, tiles):
    assert tuple(plan(kind, widest, rows, H200).rows for kind in KINDS) == tiles


@kinds
def test_no_other_tile_has_fewer_waves(kind):
    for widest, rows in product((10, 64, 128, 200, 256), (1, 500, 4_096, 25_000, 1_000_000)):
        tile = plan(kind, widest, rows, H200)
        for other in tiles(kind, widest, H200):
            assert (tile.waves(rows, H200), -tile.steps, tile.rows) <= (
                other.waves(rows, H200),
                -other.steps,
                other.rows,
            )


@kinds
def test_every_weight_lies_where_the_kernel_looks(kind, rng):
    layers = layers_of(rng, (50, 70, 3))
    tile = Tile(kind, 16, 2, 4)
    made, at = arranged(tile, on_host(layers), units_read(kind, layers[0].weights)), 0

    def take(number, *shape):
        nonlocal at
        size = int(np.prod(shape)) * np.dtype(number).itemsize
        at += size
        return made[at - size : at].view(number).reshape(shape)

    told, biases = take(np.int32, 2, 4), take(np.float32, 2, 128)
    assert told[:, 0].tolist() == slabs_of(tile, (50, 70, 3))
    assert told[:, 1:3].tolist() == [[70, RELU], [3, IDENTITY]]
    assert np.isinf(told[:, 3].view(np.float32)).all()
    assert np.array_equal(biases[0, :70], layers[0].bias_vector())
    number, terms = (np.float16, 8) if kind is HALF else (np.float32, 4)
    for layer, slabs in zip(layers, told[:, 0], strict=True):
        held = take(number, slabs, 2, tile.pieces, 8, 64, terms)
        whole = held.transpose(2, 0, 3, 5, 1, 4).reshape(tile.pieces, slabs * tile.depth, 128)
        high, low = split_tf32(layer.weights)
        right = {"float32": (high, low), "tf32": (high,), "float16": (layer.weights.astype(np.float16),)}[kind.name]
        assert np.array_equal(whole[:, : layer.inputs, : layer.outputs], right)
        assert np.count_nonzero(whole) == sum(map(np.count_nonzero, right))
    assert at == made.size


def test_what_they_cannot_run(rng):
    shape = shape_of(layers_of(rng, (5000, 256, 3)))
    assert fits(H200, shape) is None
    for machine in (A100, RTX_4090):
        assert "compute capability" in fits(machine, shape)
    assert "257" in fits(H200, shape_of(layers_of(rng, (4, 257))))


# ---- On a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu_kernel(kernel):
    if reason := fits(current_machine(), shape_of([Linear(np.ones((1, 1), np.float32))])):
        pytest.skip(reason)
    return kernel


@pytest.mark.gpu
@kernels
def test_deep_chains(gpu_kernel, rng):
    widths = (784, *[128] * 60, 10)
    layers = layers_of(rng, widths)
    features = rng.random((10_000, 784)).astype(np.float32)
    allowed = {"float32": 2e-5, "tf32": 3e-2, "float16": 3e-2}[gpu_kernel.precision]
    right = exact(layers, features)
    assert np.abs(launched(gpu_kernel, layers, features) - right).max() <= allowed * np.abs(right).max()


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_every_tile_gives_the_same_integers(gpu_kernel, groups, rng):
    widths = (300, 64 * groups, 64 * groups - 9, 20)
    layers = layers_of(rng, widths, [Identity()] * 3, integers=1)
    layers = (layers[0], *(Linear(np.eye(*layer.weights.shape), layer.bias, ReLU()) for layer in layers[1:]))
    for rows in (3, 2_000, 5_000, 9_000, 13_000, 60_000):
        features = rng.integers(-1, 2, (rows, 300)).astype(np.float32)
        assert np.array_equal(launched(gpu_kernel, layers, features), exact(layers, features))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [WARPGROUP_FLOAT32], ids=lambda kernel: kernel.name)
def test_strange_rows_give_what_float32_gives(gpu_kernel, rng):
    layers = layers_of(rng, (200, 140, 3), [ReLU(6.0), Identity()])
    features = rng.normal(size=(100, 200)).astype(np.float32)
    plain = launched(gpu_kernel, layers, features)
    strange = features.copy()
    strange[3, 5], strange[40, 0], strange[77, 9] = np.inf, np.nan, -np.inf
    strange[51, 7] = np.finfo(np.float32).max
    found = launched(gpu_kernel, layers, strange)
    others = np.setdiff1d(np.arange(100), [3, 40, 51, 77])
    assert np.array_equal(found[others], plain[others])
    with np.errstate(all="ignore"):
        right = exact(layers, strange)
    assert np.array_equal(np.isnan(found), np.isnan(right))
    here = ~np.isnan(right)
    np.testing.assert_allclose(found[here], right[here], rtol=1e-4, atol=1e-4)
