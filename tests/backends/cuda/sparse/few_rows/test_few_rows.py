"""few_rows: its layout on the host, and its answers on a GPU."""

from itertools import pairwise

import numpy as np
import pytest
from sparse_layers import sparse_layer

from sparsenn import Network, Session, infer
from sparsenn.backends.cuda.sparse.few_rows import chain as few_rows
from sparsenn.backends.cuda.sparse.few_rows.chain import shape_for
from sparsenn.backends.cuda.sparse.few_rows.weights import RUN, pack_weights
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.backends.machine import A100, H200, WARP
from sparsenn.errors import NumericError
from sparsenn.layers import Identity, ReLU, Sigmoid

AWKWARD = [
    ([1, 1], 1, 1.0), ([33, 7], 2, 0.5), ([130, 77, 1], 5, 0.3), ([257, 259, 300, 31], 3, 0.05),
    ([1000, 515, 130], 67, 0.2), ([64, 40, 300], 4, 0.0), ([3000, 2900, 3100], 1, 0.02), ([70] * 30, 9, 0.2),
]  # fmt: skip
"""Widths, rows, and the density of each layer."""


def network_of(rng, widths, density, activation=None):
    """Layers with outputs that have no weights, and others that have far more than most."""
    layers = []
    for inputs, outputs in pairwise(widths):
        matrix = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
        matrix[:, rng.random(outputs) < 0.1] = 0
        if density:
            matrix[:, :1] = rng.normal(size=(inputs, 1))
        matrix *= np.sqrt(2 / max(1, inputs * density))
        layers.append(sparse_layer(matrix, rng.normal(size=outputs) / 10, activation or ReLU(4)))
    return Network(tuple(layers))


def numbers_of(layer):
    return LayerNumbers(layer.weights, layer.bias_vector(), np.ones(layer.outputs, np.int64))


@pytest.mark.parametrize(("inputs", "density"), [(300, 0.2), (300, 1.0), (3, 0.7), (2048, 0.05)])
def test_packed_halves_hold_each_weight_once(inputs, density, rng):
    layer = network_of(rng, [inputs, 77], density).layers[0]
    laid = pack_weights(numbers_of(layer))
    found = np.zeros((-(-inputs // 8) * 8 + 8, 77))
    in_place = in_lane = every = 0
    for output, run in enumerate(laid.runs.view(RUN)):
        first, fours, ones = (int(run[name]) for name in ("first", "fours", "ones"))
        own = laid.words[first * WARP : (first + 4 * fours + ones) * WARP]
        split = fours * 4 * WARP
        lanes = [
            *own[:split].reshape(fours, WARP, 4).transpose(0, 2, 1).reshape(-1, WARP),
            *own[split:].reshape(-1, WARP),
        ]
        for words in lanes:
            places, values = words >> 16, (words & 0xFFFF).astype(np.uint16).view(np.float16).astype(float)
            np.add.at(found[:, output], places, values * run["scale"])
            in_place += int((places % 8 == np.arange(WARP) % 8).sum())
            in_lane += int((places % WARP == np.arange(WARP)).sum())
            every += WARP
        assert run["bias"] == layer.bias_vector()[output]
    expected = layer.weights.to_scipy().toarray()
    assert np.abs(found[:inputs] - expected).max() <= 2**-11 * np.abs(expected).max()
    assert not found[inputs:].any()
    assert in_place >= 0.8 * every or inputs < 8
    assert in_lane >= 0.6 * every or inputs < WARP


def test_a_launch_fits_into_shared_memory_or_is_refused():
    for machine in (H200, A100):
        for width in (1, 512, 8_192, 40_000, 65_535):
            wide = [type("Layer", (), {"inputs": width, "outputs": width, "edges": 16 * width})]
            for rows in (1, 3, 64, 5_000):
                shape = shape_for(machine, wide, rows)
                if shape is None:
                    assert 4 * width > machine.block_bytes // 4
                    continue
                assert shape.shared_bytes(len(wide), width) <= machine.block_bytes
                assert shape.cluster > 1 or shape.blocks * shape.groups <= machine.multiprocessors


@pytest.mark.gpu
@pytest.mark.parametrize(("widths", "rows", "density"), AWKWARD)
@pytest.mark.parametrize("together", [True, False])
def test_bits_are_those_of_the_cpu(widths, rows, density, together, rng, monkeypatch, cupy):
    if not together:
        monkeypatch.setattr(few_rows, "CLUSTER_BYTES", -1)
    network, features = network_of(rng, widths, density), rng.normal(size=(rows, widths[0])).astype(np.float32)
    expected = infer(network, features, device="cpu", kernel="panel")
    session = Session(network, device="cuda", kernel="few_rows")
    for given in (features, *[cupy.asarray(features)] * 3):
        assert np.array_equal(cupy.asnumpy(session(given)), expected.dense)
    counted = session.run(features)
    assert np.array_equal(counted.dense, expected.dense)
    assert np.array_equal(counted.categories, expected.categories)
    assert [each.nonzeros for each in counted.statistics] == [each.nonzeros for each in expected.statistics]
    bound = session.bind(cupy.asarray(features))
    for _ in range(3):
        bound.inputs[:] = cupy.asarray(features)
        assert np.array_equal(cupy.asnumpy(bound()), expected.dense)


@pytest.mark.gpu
@pytest.mark.parametrize(("widths", "rows", "density"), AWKWARD)
def test_half_precision_is_within_its_rounding(widths, rows, density, rng, cupy):
    network, features = network_of(rng, widths, density), rng.normal(size=(rows, widths[0])).astype(np.float16)
    expected = infer(network, features.astype(np.float32), device="reference").dense
    session = Session(network, device="cuda", kernel="few_rows_float16", precision="float16")
    for given in (features, features.astype(np.float32), *[cupy.asarray(features)] * 3):
        found = cupy.asnumpy(session(given)).astype(float)
        assert np.abs(found - expected).max() <= 2e-2 * max(1.0, np.abs(expected).max())
    counted = session.run(features.astype(np.float32))
    assert np.abs(counted.dense - expected).max() <= 2e-2 * max(1.0, np.abs(expected).max())


@pytest.mark.gpu
def test_numbers_beyond_half_precision_become_nan(cupy):
    network = Network((sparse_layer([[400.0, 1.0]], 0.0), sparse_layer([[-1.0, 0.0], [0.0, 1.0]], 0.0)))
    session = Session(network, device="cuda", kernel="few_rows_float16", precision="float16")
    rows = np.float32([[1_000.0], [1.0]])
    found = cupy.asnumpy(session(cupy.asarray(rows)))
    assert np.isnan(found[0, 0])
    assert np.array_equal(found[1], [0, 1])
    with pytest.raises(NumericError, match="65,504"):
        session(rows)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [Identity(), Sigmoid(), ReLU()], ids=str)
def test_infinities_and_signs_are_those_of_the_cpu(activation, rng):
    network = network_of(rng, [40, 50, 30], 0.2, activation)
    features = rng.normal(size=(6, 40)).astype(np.float32)
    features[1, 3], features[2, 5], features[3] = np.inf, np.nan, -0.0
    expected = Session(network, device="cpu", kernel="panel", check_finite=False)(features)
    found = Session(network, device="cuda", kernel="few_rows", check_finite=False)(features)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    finite = np.isfinite(expected)
    if isinstance(activation, Sigmoid):
        assert np.allclose(found[finite], expected[finite], rtol=1e-6)
    else:
        assert np.array_equal(found[finite], expected[finite])


@pytest.mark.gpu
def test_more_rows_than_a_launch_takes(rng):
    network, features = network_of(rng, [50, 60, 40], 0.2), rng.normal(size=(1_300, 50)).astype(np.float32)
    few = Session(network, device="cuda", kernel="few_rows")
    assert np.array_equal(few(features), infer(network, features, device="cpu", kernel="panel").dense)
