"""The numbers of swept: which there may be, which it takes by itself, and that it is right with any of them."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, plain_geometries
from hypothesis import given

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import swept


def test_what_does_not_fit_is_told():
    assert "280 rows" in swept.fits(Geometry(1, 300, 300, 1, (280, 280)))
    assert "dilation (1, 2)" in swept.fits(Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2))


@given(plain_geometries())
def test_defaults_are_among_the_values_to_try(geometry):
    parameters = swept.defaults(geometry)
    assert swept.why_not_parameters(geometry, parameters) is None
    assert all(parameters[name] in values for name, values in swept.PARAMETERS.items())


def random_problem(rng, padding=0):
    weights = rng.normal(size=(6, 3, 3, 5)) / np.sqrt(45)
    layer = Conv2d(weights, rng.normal(size=6), padding=padding)
    return layer, rng.normal(size=(4, 3, 21, 30)).astype(np.float32)


def assert_right(launch, layer, images):
    found = cupy().asnumpy(launch(upload_conv(0, layer, images.shape[1:]), cupy().asarray(images)))
    assert_near_conv2d(found, images, layer.weights, layer.bias_vector(), layer.activation, padding=layer.padding)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters", [(8, 1, 1), (16, 4, 8), (17, 17, 4), (20, 7, 2), (32, 8, 16), (40, 20, 1)], ids=str
)
@pytest.mark.parametrize("padding", [0, (1, 2)], ids=str)
def test_swept_is_right_with_any_parameters(parameters, padding, rng):
    layer, images = random_problem(rng, padding)
    assert_right(swept.launch_with(dict(zip(swept.PARAMETERS, parameters, strict=True))), layer, images)


@pytest.mark.gpu
def test_swept_can_vary_its_pixels(rng):
    layer, images = random_problem(rng)
    for variant in swept.PIXELS_VARIED:
        assert_right(variant.launch, layer, images)
