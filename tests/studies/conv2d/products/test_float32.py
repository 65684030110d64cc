"""The second story's rungs of conv2d on a GPU against a float64 convolution; what they refuse; how weights are laid."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d

from sparsenn.backends.cuda.conv import upload_conv
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Conv2d, Identity, ReLU, Sigmoid, Tanh
from sparsenn.studies.conv2d import LADDER
from sparsenn.studies.conv2d.products import float32 as products
from sparsenn.studies.gemm.tiling import TILINGS, Cut

NAMES = ["conv_naive", "conv_coalesced", "conv_block_tiled", "conv_shared_tiled", "conv_vectorized", "conv_library"]
RUNGS = [rung for rung in LADDER.rungs["cuda"] if rung.name in NAMES]

CASES = {
    "one pixel": ((1, 1, 1, 1), (1, 1, 1), {}),
    "3 x 3, padded": ((3, 3, 9, 7), (5, 3, 3), {"padding": 1}),
    "8 channels": ((2, 8, 14, 14), (70, 3, 3), {"padding": 1}),
    "16 channels, all uneven": ((5, 16, 11, 7), (33, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    "7 x 7": ((4, 4, 20, 20), (16, 7, 7), {}),
    "padding beyond the filter": ((2, 24, 6, 5), (130, 3, 3), {"padding": 4, "stride": 3}),
    "many small images": ((300, 2, 4, 4), (3, 4, 4), {}),
    "a filter as wide as the image": ((3, 5, 3, 40), (4, 1, 40), {}),
    "no images": ((0, 3, 9, 7), (5, 3, 3), {}),
}
"""Shape of the images; filters and their height and width; and the layer's other numbers."""

rungs = pytest.mark.parametrize("entry", RUNGS, ids=lambda entry: entry.name)


def made(rng, case, activation=None):
    shape, (filters, *kernel), options = CASES[case]
    weights = rng.normal(size=(filters, shape[1], *kernel)).astype(np.float32)
    layer = Conv2d(weights, rng.normal(size=filters).astype(np.float32), activation or ReLU(), **options)
    return layer, rng.normal(size=shape).astype(np.float32)


def launched(launch, layer, images):
    found = launch(upload_conv(0, layer, images.shape[1:]), cupy().asarray(images))
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    return cupy().asnumpy(found)


def assert_right(found, layer, images):
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    assert_near_conv2d(found, images, layer.weights, layer.bias, layer.activation, **options)


def test_groups_and_sizes_beyond_counting_are_refused(rng):
    layer = Conv2d(rng.normal(size=(4, 2, 3, 3)), None, ReLU(), groups=2)
    huge = Geometry(1, 65_536, 65_536, 1, (1, 1))
    for entry in RUNGS:
        assert "2 groups" in entry.why_not(H200, layer, (4, 9, 9))
        assert entry.why_not(H200, Conv2d(layer.weights, None, ReLU(), stride=2, dilation=2), (2, 9, 9)) is None
    assert "an image would have 4,294,967,296 numbers" in products.fits(huge)


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("case", CASES)
def test_rung_is_near_the_exact_convolution(entry, case, rng):
    layer, images = made(rng, case)
    assert_right(launched(entry.launch, layer, images), layer, images)


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("activation", [ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
def test_rung_applies_every_activation(entry, activation, rng):
    layer, images = made(rng, "8 channels", activation)
    assert_right(launched(entry.launch, layer, images), layer, images)


@pytest.mark.gpu
@rungs
def test_rung_puts_every_number_in_its_place(entry):
    """Filters that pick one input each: outputs are inputs, shifted, and tell from where."""
    weights = np.zeros((9, 8, 3, 3), np.float32)
    for number in range(9):
        weights[number, number % 8, number // 3, number % 3] = 1
    layer = Conv2d(weights, np.arange(9) / 16, Identity(), padding=1)
    images = np.arange(2 * 8 * 10 * 11, dtype=np.float32).reshape(2, 8, 10, 11)
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.stack(
        [padded[:, n % 8, n // 3 : n // 3 + 10, n % 3 : n % 3 + 11] + np.float32(n / 16) for n in range(9)], axis=1
    )
    assert np.array_equal(launched(entry.launch, layer, images), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.columns}")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", ["3 x 3, padded", "16 channels, all uneven", "padding beyond the filter"])
def test_every_tiling_with_every_number_of_parts(tiling, parts, case, monkeypatch, rng):
    layer, images = made(rng, case)
    tiles = -(-int(np.prod(layer.weights.shape[1:])) // 8)
    deep = -(-tiles // parts)
    monkeypatch.setattr(products, "cut_for", lambda *_: Cut(tiling, deep, -(-tiles // deep)))
    assert_right(launched(products.launch_vectorized, layer, images), layer, images)
