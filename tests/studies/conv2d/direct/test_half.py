"""The rung of conv2d in half precision: its arithmetic, and, on a GPU, what it takes and refuses."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import half

LAYERS = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))


def test_what_does_not_fit_is_told():
    grouped = Conv2d(np.ones((10, 3, 3, 4)), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    assert "stride (2, 1)" in half.HALF.why_not(H200, grouped, (6, 9, 11))
    assert (half.HALF.precision, half.HALF.half_rows, half.HALF.adds_in_half) == ("float16", True, True)


@pytest.mark.parametrize("geometry", LAYERS, ids=str)
def test_chains_in_half_precision_stay_within_the_tolerance(geometry, rng):
    """The arithmetic of `conv_half` in NumPy: products of float16 numbers, added up in float16 a chain at a time."""
    depth, outputs = geometry.depth, 20_000
    pixels = rng.random((outputs, depth)).astype(np.float16)
    weights = (rng.normal(size=depth) / np.sqrt(depth)).astype(np.float16)
    exact = pixels.astype(np.float64) @ weights.astype(np.float64)
    sums = np.zeros(outputs, np.float32)
    window = geometry.kernel[0] * geometry.kernel[1]
    for channel in range(0, depth, window):
        for first in range(channel, channel + window, half.CHAIN):
            chain = np.zeros(outputs, np.float16)
            for tap in range(first, min(first + half.CHAIN, channel + window)):
                product = pixels[:, tap].astype(np.float64) * float(weights[tap])
                chain = (product + chain).astype(np.float16)
            sums += chain
    assert np.abs(sums - exact).max() <= 2e-3 * np.abs(exact).max()


@pytest.mark.gpu
@pytest.mark.parametrize(("image", "filters"), [((1, 18, 20), (4, 7, 7)), ((3, 9, 11), (5, 4, 2))])
def test_half_takes_and_gives_half_rows(image, filters, rng):
    weights = rng.normal(size=(filters[0], image[0], *filters[1:])) / np.sqrt(image[0] * filters[1] * filters[2])
    layer = Conv2d(weights, rng.normal(size=filters[0]), padding=(1, 2))
    images = rng.normal(size=(9, *image)).astype(np.float16)
    found = half.launch_half(upload_conv(0, layer, image), cupy().asarray(images))
    assert found.dtype == np.float16
    assert found.flags.c_contiguous
    given = images, layer.weights, layer.bias_vector(), layer.activation, "float16"
    assert_near_conv2d(cupy().asnumpy(found), *given, padding=(1, 2))
