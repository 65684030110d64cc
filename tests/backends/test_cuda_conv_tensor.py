"""The tensor-core convolutions of few channels: layouts, proven by emulated products; and the rungs, on a GPU."""

import numpy as np
import pytest
from convolutions import absolute_sums, assert_near_conv2d, reference_conv2d
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, study, upload_conv
from sparsenn.backends.cuda.conv.tensor import FITS, PRECISIONS, RUNGS, copied_at_once
from sparsenn.backends.cuda.conv.tensor_image import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    Layout,
    columns_of,
    places,
    weight_image,
)
from sparsenn.backends.cuda.conv.tensor_plan import LEAST_LIMITS, fits_any_precision, fits_float32, plan
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.sparse.tiling import Limits
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Conv2d, Identity, ReLU, Sigmoid, Tanh

KINDS = {"float32": FLOAT32, "tf32": TF32, "half": HALF, "half rows": HALF_ROWS}
ACTIVATIONS = [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()]
LIMITS = [Limits(), Limits(108, 163 << 10, 164 << 10), LEAST_LIMITS]

LANES = np.arange(32)
G, T = LANES // 4, LANES % 4

rungs = pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung[0])
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


# ---- Layouts, from the PTX ISA's figures of the instructions' fragments ------------------------------------------


def numbers_of(kind, across, quads, quad):
    """Return which numbers of an item's row lanes read for one of its quads: (32, numbers of a lane)."""
    if kind.quad == 8:
        return 8 * quad + 2 * T[:, None] + np.arange(2)
    paired = across > 1 and quad // 2 < quads // 2
    return (8 * (quad // 2) + 2 * T + quad % 2 if paired else 4 * quad + T)[:, None]


def product(inputs, weights):
    """Multiply 16 items by 8 columns, as lanes hold them: (2 quads, 2 items, 32, n) and (2 quads, 32, n).

    In its half of the inputs, lane 4 g + t has n neighbours from n t on: of the items g and g + 8, and of column g.
    """
    count = inputs.shape[3]
    left, right = np.zeros((16, 8 * count)), np.zeros((8 * count, 8))
    for quad in range(2):
        for i in range(count):
            inner = 4 * count * quad + count * T + i
            left[G, inner], left[G + 8, inner] = inputs[quad, :, :, i]
            right[inner, G] = weights[quad, :, i]
    return left @ right


def held_weights(kind, geometry, layout, weights):
    """Take an image apart: (parts, panels, turns, steps, tiles, 32, 2 quads, numbers), whole numbers or both parts."""
    made = weight_image(np, kind, geometry, layout, weights)
    assert made.dtype == np.uint8
    assert made.size == layout.weight_bytes(kind, geometry)
    shape = layout.panels(geometry), layout.turns(geometry), layout.steps(kind, geometry), layout.panel, 32
    numbers = made.view(np.float16 if kind.quad == 8 else np.float32).astype(np.float64)
    return np.moveaxis(numbers.reshape(*shape, kind.passes // 2 + 1, 2, -1), 5, 0)


def emulated(kind, geometry, layout, image, weights):
    """Convolve an image as the kernels do, one output row of an item after the other."""
    (down, right), across = geometry.padding, layout.across
    quads, (height, width) = layout.quads(kind, geometry), (geometry.output_height, geometry.output_width)
    padded = np.pad(image.astype(np.float64), ((0, 0), (down, down), (right, right + 8 + quads * kind.quad)))
    held = held_weights(kind, geometry, layout, weights)
    beside = -(-width // across)
    sums = np.zeros((-(-height * beside // 16) * 16, held.shape[1] * held.shape[4] * 8))
    for first in range(0, len(sums), 16):
        items = np.minimum(first + np.arange(16), height * beside - 1)
        y, x = items // beside, items % beside * across
        for panel, turn, step, tile in np.ndindex(held.shape[1:5]):
            inputs = np.zeros((2, 2, 32, max(1, kind.quad // 4)))
            for i, quad in enumerate((2 * step, 2 * step + 1)):
                row, place = divmod(quad, quads)
                if row >= layout.at_once * geometry.kernel[0]:
                    continue  # a last step of one quad
                channel = turn * layout.at_once + row // geometry.kernel[0]
                for which in range(2):
                    item = G + 8 * which
                    across_row = x[item][:, None] + numbers_of(kind, across, quads, place)
                    inputs[i, which] = padded[channel, (y[item] + row % geometry.kernel[0])[:, None], across_row]
            column = 8 * (panel * held.shape[4] + tile)
            found = product(inputs, np.moveaxis(held[0, panel, turn, step, tile], 1, 0))
            if kind is FLOAT32:
                found += product(inputs, np.moveaxis(held[1, panel, turn, step, tile], 1, 0))
            sums[first : first + 16, column : column + 8] += found
    used = sums[: height * beside, : geometry.filters * across].reshape(height, beside, geometry.filters, across)
    return used.transpose(2, 0, 1, 3).reshape(geometry.filters, height, -1)[:, :, :width]


CUT = [
    (Geometry(1, 20, 22, 4, (7, 7)), Layout(2, 1, 1)),
    (Geometry(4, 10, 12, 16, (7, 7)), Layout(2, 1, 4)),
    (Geometry(4, 10, 11, 16, (7, 7)), Layout(2, 4, 2)),
    (Geometry(3, 9, 7, 5, (5, 3), padding=(2, 1)), Layout(2, 3, 2)),
    (Geometry(2, 6, 9, 3, (2, 4), padding=(0, 3)), Layout(4, 1, 2)),
    (Geometry(5, 3, 20, 1, (3, 11)), Layout(8, 5, 1)),
    (Geometry(1, 4, 5, 17, (1, 1)), Layout(2, 1, 3)),
]


def integers(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


@kinds
@pytest.mark.parametrize(("geometry", "layout"), CUT, ids=str)
def test_lanes_hold_what_the_instructions_multiply(kind, geometry, layout, rng):
    image = integers(rng, geometry.channels, geometry.height, geometry.width)
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    expected = reference_conv2d(image[None], weights, padding=geometry.padding)[0]
    assert np.array_equal(emulated(kind, geometry, layout, image, weights), expected)


def test_items_of_one_pixel(rng):
    geometry = Geometry(3, 8, 9, 10, (4, 5), padding=(1, 2))
    image, weights = integers(rng, 3, 8, 9), integers(rng, 10, 3, 4, 5)
    expected = reference_conv2d(image[None], weights, padding=(1, 2))[0]
    for kind in (FLOAT32, TF32):
        for layout in (Layout(1, 3, 2), Layout(1, 1, 1)):
            assert np.array_equal(emulated(kind, geometry, layout, image, weights), expected)


def test_a_corrupted_image_is_noticed(rng, monkeypatch):
    geometry, layout = Geometry(1, 12, 12, 4, (7, 7)), Layout(2, 1, 1)
    image, weights = integers(rng, 1, 12, 12), 1 + np.abs(integers(rng, 4, 1, 7, 7))
    swapped = weight_image(np, TF32, geometry, layout, weights).view(np.float32)[::-1].copy().view(np.uint8)
    monkeypatch.setitem(emulated.__globals__, "weight_image", lambda *_: swapped)
    expected = reference_conv2d(image[None], weights)[0]
    assert not np.array_equal(emulated(TF32, geometry, layout, image, weights), expected)


def test_split_weights_keep_float32s_precision(rng):
    geometry, layout = Geometry(2, 5, 5, 3, (5, 5)), Layout(2, 2, 1)
    weights = rng.normal(size=(3, 2, 5, 5)).astype(np.float32)
    found = places(FLOAT32, geometry, layout)
    sums = held_weights(FLOAT32, geometry, layout, weights).sum(0)
    expected = np.where(found < 0, 0.0, weights.ravel()[found])
    assert (np.abs(sums - expected) <= 2.0**-22 * np.abs(expected)).all()


@st.composite
def geometries(draw):
    """Plain convolutions of few channels, windows larger than the image but for its padding among them."""
    kernel = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    padding = draw(st.sampled_from([0, 0, 1, 3])), draw(st.sampled_from([0, 0, 1, 2]))
    size = [draw(st.integers(max(1, taps - 2 * added), 40)) for taps, added in zip(kernel, padding, strict=True)]
    return Geometry(draw(st.integers(1, 6)), *size, draw(st.integers(1, 40)), kernel, padding=padding)


@given(geometries(), st.sampled_from([1, 2, 4, 8]), st.sampled_from(list(KINDS)))
def test_every_weight_is_held_once_for_each_pixel(geometry, across, name):
    if across == 1 and KINDS[name].quad == 8:
        return
    layout = Layout(across, geometry.channels, columns_of(geometry.filters, across) // 8)
    held = places(KINDS[name], geometry, layout)
    assert held.shape[:5] == (1, 1, layout.steps(KINDS[name], geometry), layout.panel, 32)
    counts = np.bincount(held[held >= 0], minlength=geometry.filters * geometry.depth)
    assert (counts == across).all()


# ---- Plans -------------------------------------------------------------------------------------------------------


@given(geometries(), st.integers(1, 1 << 20), st.sampled_from(LIMITS), st.sampled_from(list(KINDS)))
def test_a_plan_stays_within_the_device(geometry, images, limits, name):
    kind = KINDS[name]
    made = plan(kind, geometry, images, limits)
    if made is None:
        assert fits_any_precision(geometry) is not None
        return
    layout = made.layout
    assert made.shared_bytes <= limits.block_bytes
    assert made.warps in (8, 12, 16)
    assert made.stages >= 2
    assert geometry.channels % layout.at_once == 0
    assert layout.panels(geometry) * layout.panel * 8 >= geometry.filters * layout.across
    assert not made.held or (layout.turns(geometry) == layout.panels(geometry) == 1)
    assert 4 * made.down * layout.panel <= 64
    assert made.band * made.bands(geometry) >= geometry.output_height
    assert made.bands(geometry) == 1 or made.band % made.down == 0
    assert kind.quad == 4 or layout.across > 1
    assert layout.across == 1 or made.pitch % 2 == 0
    rows = -(-made.band // made.down) * made.down + geometry.kernel[0] - 1
    last = made.pitch * (geometry.channels - 1) * (made.band + geometry.kernel[0] - 1) + made.pitch * (rows - 1)
    reach = (-(-geometry.output_width // layout.across) - 1) * layout.across + layout.quads(kind, geometry) * kind.quad
    assert kind.number * (last + reach) <= made.slot_bytes
    assert made.stages * made.slot_bytes <= made.shared_bytes


def test_many_images_are_taken_whole_and_few_in_bands():
    geometry = Geometry(1, 86, 86, 4, (7, 7))
    for kind in KINDS.values():
        assert plan(kind, geometry, 10_000, Limits()).bands(geometry) == 1
        assert plan(kind, geometry, 10, Limits()).bands(geometry) > 5
        assert plan(kind, geometry, 9_000, Limits()) is plan(kind, geometry, 10_000, Limits())  # one kernel for both


@given(geometries(), st.integers(0, 64), st.sampled_from(list(KINDS)), st.sampled_from([1, 10_000]))
def test_pieces_that_are_copied_begin_at_multiples_of_their_size(geometry, numbers, name, images):
    kind = KINDS[name]
    made = plan(kind, geometry, images, LEAST_LIMITS)
    if made is None:
        return
    address = kind.number * numbers
    piece = copied_at_once(kind, geometry, made, address)
    assert piece in (2, 4, 8, 16)
    assert piece >= kind.number
    image = kind.number * geometry.channels * geometry.height * geometry.width
    assert address % piece == image % piece == 0
    if made.pitch != geometry.width or geometry.padding != (0, 0):
        assert kind.number * geometry.width % piece == 0
        assert kind.number * made.pitch % piece == 0


def test_which_convolutions_fit():
    assert list(FITS) == list(PRECISIONS) == [name for name, _, _ in RUNGS]
    for geometry in (Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))):
        assert [name for name, why_not in FITS.items() if why_not(geometry) is not None] == []
    few = Geometry(3, 30, 30, 8, (3, 3))
    assert "27 products" in fits_float32(few)
    assert fits_any_precision(few) is None
    assert "stride (2, 2)" in fits_any_precision(Geometry(4, 30, 30, 8, (3, 3), stride=(2, 2)))
    assert "groups 2" in fits_any_precision(Geometry(4, 30, 30, 8, (3, 3), groups=2))
    assert "99 KiB" in fits_any_precision(Geometry(64, 56, 56, 64, (3, 3)))
    assert "99 KiB" in fits_any_precision(Geometry(16, 100, 8_000, 4, (3, 3)))
    assert "numbers" in fits_any_precision(Geometry(1, 50_000, 50_000, 4, (3, 3)))


# ---- On a GPU ----------------------------------------------------------------------------------------------------


def random_layer(rng, geometry, activation=None):
    shape = geometry.filters, geometry.channels, *geometry.kernel
    weights = rng.normal(size=shape) / np.sqrt(geometry.depth)
    return Conv2d(weights, rng.normal(size=geometry.filters), activation or ReLU(), padding=geometry.padding)


def random_images(rng, geometry, count):
    return rng.normal(size=(count, geometry.channels, geometry.height, geometry.width)).astype(np.float32)


def launched(rung, layer, images):
    """Launch a rung on host images; returns its outputs on the host."""
    cp = cupy()
    found = rung[1](upload_conv(0, layer, images.shape[1:]), cp.asarray(images))
    assert found.dtype == images.dtype
    assert found.flags.c_contiguous
    return cp.asnumpy(found)


def assert_right(found, layer, images, precision):
    assert_near_conv2d(
        found, images, layer.weights, layer.bias_vector(), layer.activation, precision, padding=layer.padding
    )


AWKWARD = [
    (Geometry(1, 86, 86, 4, (7, 7)), 300),
    (Geometry(4, 40, 40, 16, (7, 7)), 137),
    (Geometry(1, 7, 7, 1, (7, 7)), 33),
    (Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1)), 2),
    (Geometry(6, 14, 15, 40, (4, 5), padding=(0, 3)), 100),
    (Geometry(1, 100, 100, 1, (11, 11)), 7),
    (Geometry(2, 17, 300, 3, (1, 19)), 5),
    (Geometry(1, 28, 28, 100, (6, 6)), 29),
    (Geometry(5, 30, 31, 7, (3, 3)), 1),
    (Geometry(16, 12, 12, 16, (5, 5), padding=(2, 2)), 200),
]


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize(("geometry", "count"), AWKWARD, ids=str)
def test_awkward_sizes(rung, geometry, count, rng):
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, count)
    for few in (0, 1, count):
        assert_right(launched(rung, layer, images[:few]), layer, images[:few], PRECISIONS[rung[0]])


@pytest.mark.gpu
@rungs
@settings(max_examples=12)
@given(geometry=geometries(), count=st.integers(1, 20), seed=st.integers(0, 1 << 30))
def test_integers_are_exact(rung, geometry, count, seed):
    if FITS[rung[0]](geometry) is not None:
        return
    rng = np.random.default_rng(seed)
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    layer = Conv2d(weights, integers(rng, geometry.filters), Identity(), padding=geometry.padding)
    images = integers(rng, count, geometry.channels, geometry.height, geometry.width)
    expected = reference_conv2d(images, weights, layer.bias, padding=geometry.padding)
    assert np.array_equal(launched(rung, layer, images), expected)


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_any_activation(rung, activation, rng):
    geometry = Geometry(2, 20, 21, 5, (5, 5))
    layer, images = random_layer(rng, geometry, activation), random_images(rng, geometry, 50)
    assert_right(launched(rung, layer, images), layer, images, PRECISIONS[rung[0]])


@pytest.mark.gpu
@pytest.mark.parametrize(("geometry", "count"), AWKWARD, ids=str)
def test_half_rows(geometry, count, rng):
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, count).astype(np.float16)
    assert_right(launched(RUNGS[-1], layer, images), layer, images, "fp16")


@pytest.mark.gpu
def test_float32_images_are_rounded_as_halves_are(rng):
    geometry = Geometry(4, 40, 40, 16, (7, 7))
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, 20)
    wide, narrow = (launched(RUNGS[-1], layer, images.astype(kind)) for kind in (np.float32, np.float16))
    np.testing.assert_allclose(narrow, wide, rtol=2.0**-10, atol=2.0**-20)


@pytest.mark.gpu
@pytest.mark.parametrize("geometry", [geometry for geometry, _ in AWKWARD[:2]], ids=str)
@pytest.mark.parametrize("sign", ["both", "positive"])
def test_split_products_are_as_precise_as_plain_float32(geometry, sign, rng):
    layer, images = random_layer(rng, geometry, Identity()), random_images(rng, geometry, 30)
    if sign == "positive":
        layer, images = Conv2d(np.abs(layer.weights), np.abs(layer.bias), Identity()), np.abs(images)
    expected = reference_conv2d(images, layer.weights, layer.bias)
    size = absolute_sums(images, layer.weights, layer.bias)
    errors = []
    for rung in (RUNGS[0], study.RUNGS[0]):
        distance = np.abs(launched(rung, layer, images) - expected) / size
        errors.append((np.sqrt(np.mean(distance**2)), distance.max()))
    assert errors[0][0] <= errors[1][0]
    assert errors[0][1] <= 1.2 * errors[1][1]  # of single outputs, a matter of luck


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("geometry", [geometry for geometry, _ in AWKWARD[:5]], ids=str)
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan], ids=str)
def test_infinities_and_nan_go_where_they_should(rung, geometry, special, rng):
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    weights[weights == 0] = 1
    layer = Conv2d(weights, integers(rng, geometry.filters), Identity(), padding=geometry.padding)
    images = integers(rng, 3, geometry.channels, geometry.height, geometry.width)
    for _ in range(4):
        images[tuple(rng.integers(0, size) for size in images.shape)] = special
    with np.errstate(invalid="ignore"):
        expected = reference_conv2d(images, weights, layer.bias, padding=geometry.padding)
    np.testing.assert_array_equal(launched(rung, layer, images), expected)
    if rung[0] == "tensor_half":
        found = launched(rung, layer, images.astype(np.float16))
        np.testing.assert_array_equal(found, expected.astype(np.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("pixel", [float(np.finfo(np.float32).max), 3.0e38])
def test_sums_beyond_float32_are_infinite(pixel):
    layer = Conv2d(np.ones((4, 1, 7, 7)), activation=Identity())
    images = np.zeros((2, 1, 30, 30), np.float32)
    images[0, 0, 10, 10:12] = pixel
    images[1, 0, 10, 10] = pixel
    expected = reference_conv2d(images, layer.weights)
    with np.errstate(over="ignore"):
        expected = expected.astype(np.float32)
    assert np.isinf(expected[0]).any()
    assert np.isfinite(expected[1]).all()
    np.testing.assert_array_equal(launched(RUNGS[0], layer, images), expected)


@pytest.mark.gpu
def test_half_precision_ends_where_it_ends(rng):
    geometry = Geometry(1, 12, 12, 2, (7, 7))
    images = np.ones((1, 1, 12, 12), np.float32)
    images[0, 0, 0, 0] = 70_000
    found = launched(RUNGS[-1], random_layer(rng, geometry, Identity()), images)
    assert np.isinf(found[0, :, 0, 0]).all()
    assert np.isfinite(found[0, :, 1:]).all()
    weights = np.ones((2, 1, 7, 7))
    weights[1, 0, 3, 3] = 65_505
    with pytest.raises(UsageError, match="65505"):
        launched(RUNGS[-1], Conv2d(weights), images)


@pytest.mark.gpu
@rungs
def test_images_at_any_address(rung, rng):
    cp = cupy()
    geometry = Geometry(2, 15, 15, 4, (5, 5))
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, 40)
    uploaded = upload_conv(0, layer, images.shape[1:])
    for kind in (np.float32, *((np.float16,) if rung[0] == "tensor_half" else ())):
        given_images = images.astype(kind)
        for offset in range(1, 6):
            memory = cp.zeros(images.size + offset, kind)
            shifted = memory[offset:].reshape(images.shape)
            shifted[...] = cp.asarray(given_images)
            assert_right(cp.asnumpy(rung[1](uploaded, shifted)), layer, given_images, PRECISIONS[rung[0]])


@pytest.mark.gpu
@rungs
def test_wrong_images_are_refused(rung, rng):
    cp = cupy()
    geometry = Geometry(2, 15, 16, 4, (5, 5))
    layer = upload_conv(0, random_layer(rng, geometry), (2, 15, 16))
    with pytest.raises(ShapeError, match="15, 16"):
        rung[1](layer, cp.zeros((3, 2, 16, 15), np.float32))
    with pytest.raises(UsageError, match="float64"):
        rung[1](layer, cp.zeros((3, 2, 15, 16), np.float64))
    with pytest.raises(UsageError, match="strides"):
        rung[1](layer, cp.zeros((2, 3, 15, 16), np.float32).transpose(1, 0, 2, 3))
    strided = upload_conv(0, Conv2d(np.ones((4, 2, 5, 5)), stride=2), (2, 15, 16))
    with pytest.raises(UsageError, match="stride"):
        rung[1](strided, cp.zeros((3, 2, 15, 16), np.float32))


@pytest.mark.gpu
@rungs
def test_a_launch_is_queued_on_the_current_stream(rung, rng):
    cp = cupy()
    geometry = Geometry(4, 40, 40, 16, (7, 7))
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, 500)
    uploaded, on_device = upload_conv(0, layer, images.shape[1:]), cp.asarray(images)
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        found = rung[1](uploaded, on_device)
        again = rung[1](uploaded, on_device)
    stream.synchronize()
    assert bool((found == again).all())
    assert_right(cp.asnumpy(found[-3:]), layer, images[-3:], PRECISIONS[rung[0]])
