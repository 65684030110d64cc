"""The numbers of swept: which there may be, which it takes by itself, and that it is right with any of them."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, plain_geometries
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import swept

LAYERS = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))


def test_what_does_not_fit_is_told():
    assert "280 rows" in swept.fits(Geometry(1, 300, 300, 1, (280, 280)))
    assert "dilation (1, 2)" in swept.fits(Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2))


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"pixels": 20, "filters": 16}, "320 sums"),
        ({"tile": 129}, "wider than a block"),
        ({"pixels": 0}, "at least 1"),
        ({"rows": 1}, "filters, pixels, tile"),
    ],
)
def test_parameters_that_cannot_be_are_refused(wrong, part):
    parameters = swept.defaults(LAYERS[0]) | wrong
    assert part in swept.why_not_parameters(LAYERS[0], parameters)
    with pytest.raises(UsageError, match=part):
        swept.launch_with(parameters)(upload_like(LAYERS[0]), np.zeros((1, 1, 86, 86), np.float32))


def upload_like(geometry):
    """A layer of that geometry with nothing in it: enough to be refused."""

    class Layer:
        pass

    layer = Layer()
    layer.geometry = geometry
    return layer


@given(plain_geometries())
def test_defaults_are_among_the_values_to_try(geometry):
    parameters = swept.defaults(geometry)
    assert swept.why_not_parameters(geometry, parameters) is None
    assert all(parameters[name] in values for name, values in swept.PARAMETERS.items())


@given(plain_geometries(), st.sampled_from(swept.PARAMETERS["pixels"]))
def test_the_others_follow_a_number_that_is_given(geometry, pixels):
    usual = swept.defaults(geometry)
    found = swept.completed(geometry, {"pixels": pixels})
    assert swept.why_not_parameters(geometry, found) is None
    assert (found["pixels"], found["tile"]) == (pixels, usual["tile"])
    assert found["filters"] <= usual["filters"]
    assert found["filters"] == usual["filters"] or 2 * found["filters"] * pixels > swept.MOST_SUMS
    assert swept.completed(geometry, usual) == usual
    given_all = {"tile": 8, "pixels": pixels, "filters": 16}
    assert swept.completed(geometry, given_all) == given_all


@pytest.mark.parametrize(("wrong", "part"), [({"pixels": 0}, "at least 1"), ({"rows": 1}, "filters, pixels, tile")])
def test_a_number_alone_that_cannot_be_is_refused(wrong, part):
    with pytest.raises(UsageError, match=part):
        swept.launch_with(wrong)(upload_like(LAYERS[0]), np.zeros((1, 1, 86, 86), np.float32))


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
