"""The rungs of conv2d's first story: their cuts, arithmetic and refusals; on a GPU, what they compute and stream."""

import numpy as np
import pytest
from convolutions import assert_near_conv2d, plain_geometries
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Conv2d
from sparsenn.studies.conv2d.direct import float32, half, streamed, swept
from sparsenn.studies.conv2d.direct.half import to_half

LAYERS = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))
GENERAL = Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2)


def random_layer(rng, filters, *shape, **options):
    weights = rng.normal(size=(filters, *shape)) / np.sqrt(np.prod(shape))
    return Conv2d(weights, rng.normal(size=filters), **options)


def assert_right(found, layer, images, *precision):
    numbers = images, layer.weights, layer.bias_vector(), layer.activation
    assert_near_conv2d(found, *numbers, *precision, padding=layer.padding)


def test_images_that_do_not_fit_are_refused():
    deep = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
    assert "2,359,296 weights" in float32.fits_constant(deep)
    assert "shared memory" in float32.fits_tiled(Geometry(1, 200, 200, 1, (100, 100)))
    assert "2 groups" in float32.fits_one_group(GENERAL)
    assert "280 rows" in swept.fits(Geometry(1, 300, 300, 1, (280, 280)))
    assert "dilation (1, 2)" in swept.fits(GENERAL)
    grouped = Conv2d(np.ones((10, 3, 3, 4)), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    assert "stride (2, 1)" in half.HALF.why_not(H200, grouped, (6, 9, 11))
    assert (half.HALF.precision, half.HALF.half_rows, half.HALF.adds_in_half) == ("float16", True, True)


@pytest.mark.parametrize("filters", [1, 4, 5, 16, 17, 64, 65, 512])
def test_product_tiles_are_rectangles_of_whole_threads(filters):
    tile = float32.product_tile(filters)
    threads = tile["ROWS"] // tile["ROWS_EACH"] * (tile["COLUMNS"] // tile["COLUMNS_EACH"])
    assert threads == 128
    assert max(threads, tile["COLUMNS"]) % min(threads, tile["COLUMNS"]) == 0
    assert tile["ROWS"] >= min(filters, 64)


# ---- Half precision ------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2047, 2048, 100_003])
def test_conversions_round_as_numpy_does(size, rng):
    cp = cupy()
    numbers = (rng.normal(size=size) * 10.0 ** rng.integers(-9, 6, size)).astype(np.float32)
    numbers[:5] = np.array([np.nan, np.inf, -0.0, 65_519.0, 65_520.0], np.float32)[:size]
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    made = cp.asnumpy(to_half(cp.asarray(numbers)))
    assert np.array_equal(made, expected, equal_nan=True)
    if size > 8:
        assert np.array_equal(cp.asnumpy(to_half(cp.asarray(numbers)[3:])), expected[3:], equal_nan=True)


@pytest.mark.gpu
def test_conversions_refuse_other_types():
    cp = cupy()
    with pytest.raises(UsageError, match="give float32"):
        to_half(cp.zeros(4, np.float64))
    with pytest.raises(UsageError, match="row-major"):
        to_half(cp.zeros((4, 3), np.float32).transpose(1, 0))


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
    layer = random_layer(rng, filters[0], image[0], *filters[1:], padding=(1, 2))
    images = rng.normal(size=(9, *image)).astype(np.float16)
    found = half.launch_half(upload_conv(0, layer, image), cupy().asarray(images))
    assert found.dtype == np.float16
    assert found.flags.c_contiguous
    assert_right(cupy().asnumpy(found), layer, images, "float16")


# ---- Images from host to host --------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(1, 50))
def test_pieces_make_up_the_images(images, pieces):
    cut = streamed.bounds(images, pieces)
    assert [number for first, end in cut for number in range(first, end)] == list(range(images))
    assert len(cut) <= pieces
    assert all(first % streamed.MULTIPLE == 0 for first, _ in cut)


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("locked", [False, True], ids=["pageable", "pinned"])
def test_pieces_give_what_all_images_at_once_give(pieces, locked, rng):
    layer = random_layer(rng, 5, 2, 7, 7)
    given_images = rng.normal(size=(61, 2, 17, 19)).astype(np.float32)
    uploaded = upload_conv(0, layer, (2, 17, 19))
    expected = streamed.run_streamed(uploaded, given_images, 1)
    assert_right(expected, layer, given_images)
    images, outputs = given_images, None
    if locked:
        images, outputs = streamed.pinned(given_images.shape), streamed.pinned(expected.shape)
        images[...], outputs[...] = given_images, np.nan
        assert streamed.is_pinned(outputs[3:])
    assert streamed.is_pinned(images) == locked
    found = streamed.run_streamed(uploaded, images, pieces, outputs)
    assert outputs is None or found is outputs
    # pieces may be cut otherwise than all images; but each sum is the same
    assert np.array_equal(found, expected)


@pytest.mark.gpu
def test_streamed_takes_images_where_they_are(rng):
    layer = random_layer(rng, 4, 1, 7, 7)
    images = rng.normal(size=(30, 1, 12, 12)).astype(np.float32)
    uploaded = upload_conv(0, layer, (1, 12, 12))
    here = streamed.launch_streamed(uploaded, images)
    assert type(here) is np.ndarray
    assert_right(here, layer, images)
    there = streamed.launch_streamed(uploaded, cupy().asarray(images))
    assert isinstance(there, cupy().ndarray)
    assert_right(cupy().asnumpy(there), layer, images)
    assert streamed.run_streamed(uploaded, images[:0]).shape == (0, 4, 6, 6)
    with pytest.raises(ShapeError, match="array for the outputs"):
        streamed.run_streamed(uploaded, images, 3, np.empty((30, 4, 6, 5), np.float32))
    with pytest.raises(UsageError, match="strides"):
        streamed.run_streamed(uploaded, images.transpose(0, 1, 3, 2))


# ---- The numbers of swept -----------------------------------------------------------------------------------------


@given(plain_geometries())
def test_defaults_are_among_the_values_to_try(geometry):
    parameters = swept.defaults(geometry)
    assert swept.why_not_parameters(geometry, parameters) is None
    assert all(parameters[name] in values for name, values in swept.PARAMETERS.items())


def assert_swept(launch, rng, padding=0):
    layer = random_layer(rng, 6, 3, 3, 5, padding=padding)
    images = rng.normal(size=(4, 3, 21, 30)).astype(np.float32)
    found = launch(upload_conv(0, layer, images.shape[1:]), cupy().asarray(images))
    assert_right(cupy().asnumpy(found), layer, images)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters", [(8, 1, 1), (16, 4, 8), (17, 17, 4), (20, 7, 2), (32, 8, 16), (40, 20, 1)], ids=str
)
@pytest.mark.parametrize("padding", [0, (1, 2)], ids=str)
def test_swept_is_right_with_any_parameters(parameters, padding, rng):
    assert_swept(swept.launch_with(dict(zip(swept.PARAMETERS, parameters, strict=True))), rng, padding)


@pytest.mark.gpu
def test_swept_can_vary_its_pixels(rng):
    for variant in swept.PIXELS_VARIED:
        assert_swept(variant.launch, rng)
