"""The tensor-core convolutions of few channels: how they are cut, what fits, and, on a GPU, what they compute."""

import numpy as np
import pytest
from convolutions import absolute_sums, few_channels, reference_conv2d
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, upload_conv
from sparsenn.backends.cuda.conv.geometry import smallest
from sparsenn.backends.cuda.conv.tensor import TENSOR_FLOAT32, TENSOR_HALF, TENSOR_TF32, copied_at_once
from sparsenn.backends.cuda.conv.tensor_plan import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    fits_any_precision,
    fits_float32,
    plan,
)
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.machine import H200, MACHINES, RTX_4090
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Identity, ReLU
from sparsenn.studies.conv2d.direct.float32 import BASELINE

KINDS = {"float32": FLOAT32, "tf32": TF32, "half": HALF, "half rows": HALF_ROWS}
KERNELS = [TENSOR_FLOAT32, TENSOR_TF32, TENSOR_HALF]

kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


# ---- Plans -------------------------------------------------------------------------------------------------------


@given(few_channels(), st.integers(1, 1 << 20), st.sampled_from(list(MACHINES.values())), st.sampled_from(list(KINDS)))
def test_a_plan_stays_within_the_device(geometry, images, machine, name):
    kind = KINDS[name]
    made = plan(kind, geometry, images, machine)
    if made is None:
        assert fits_any_precision(machine, geometry) is not None
        return
    layout = made.layout
    assert made.shared_bytes <= machine.block_bytes
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
        assert plan(kind, geometry, 10_000, H200).bands(geometry) == 1
        assert plan(kind, geometry, 10, H200).bands(geometry) > 5
        assert plan(kind, geometry, 9_000, H200) is plan(kind, geometry, 10_000, H200)  # one kernel for both


@given(few_channels(), st.integers(0, 64), st.sampled_from(list(KINDS)), st.sampled_from([1, 10_000]))
def test_pieces_that_are_copied_begin_at_multiples_of_their_size(geometry, numbers, name, images):
    kind = KINDS[name]
    made = plan(kind, geometry, images, RTX_4090)
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


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_which_convolutions_fit(machine):
    for geometry in (Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))):
        assert fits_float32(machine, geometry) is None
        assert fits_any_precision(machine, geometry) is None
    few = Geometry(3, 30, 30, 8, (3, 3))
    assert "27 products" in fits_float32(machine, few)
    assert fits_any_precision(machine, few) is None
    assert "stride (2, 2)" in fits_any_precision(machine, Geometry(4, 30, 30, 8, (3, 3), stride=(2, 2)))
    assert "groups 2" in fits_any_precision(machine, Geometry(4, 30, 30, 8, (3, 3), groups=2))
    assert "99 KiB" in fits_any_precision(machine, Geometry(64, 56, 56, 64, (3, 3)))
    assert "99 KiB" in fits_any_precision(machine, Geometry(16, 100, 8_000, 4, (3, 3)))
    assert "numbers" in fits_any_precision(machine, Geometry(1, 50_000, 50_000, 4, (3, 3)))


def test_the_same_convolutions_fit_every_machine():
    """More shared memory than the smallest machine has is for plans, and not for what is refused."""
    large = Geometry(32, 28, 28, 64, (3, 3))
    assert plan(FLOAT32, large, 1, H200) is not None
    assert plan(FLOAT32, large, 1, smallest(H200)) is None
    assert fits_float32(H200, large) == fits_float32(RTX_4090, large) is not None


# ---- On a GPU ----------------------------------------------------------------------------------------------------


def integers(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


def random_layer(rng, geometry, activation=None):
    shape = geometry.filters, geometry.channels, *geometry.kernel
    weights = rng.normal(size=shape) / np.sqrt(geometry.depth)
    return Conv2d(weights, rng.normal(size=geometry.filters), activation or ReLU(), padding=geometry.padding)


def random_images(rng, geometry, count):
    return rng.normal(size=(count, geometry.channels, geometry.height, geometry.width)).astype(np.float32)


def launched(kernel, layer, images):
    cp = cupy()
    found = kernel.launch(upload_conv(0, layer, images.shape[1:]), cp.asarray(images))
    assert found.dtype == images.dtype
    assert found.flags.c_contiguous
    return cp.asnumpy(found)


AWKWARD = [
    (Geometry(1, 86, 86, 4, (7, 7)), 300),
    (Geometry(4, 40, 40, 16, (7, 7)), 137),
    (Geometry(1, 7, 7, 1, (7, 7)), 33),
    (Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1)), 2),
    (Geometry(6, 14, 15, 40, (4, 5), padding=(0, 3)), 100),
]


@pytest.mark.gpu
@kernels
@settings(max_examples=12)
@given(geometry=few_channels(), count=st.integers(1, 20), seed=st.integers(0, 1 << 30))
def test_integers_are_exact(kernel, geometry, count, seed):
    rng = np.random.default_rng(seed)
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    layer = Conv2d(weights, integers(rng, geometry.filters), Identity(), padding=geometry.padding)
    if kernel.why_not(current_machine(), layer, (geometry.channels, geometry.height, geometry.width)):
        return
    images = integers(rng, count, geometry.channels, geometry.height, geometry.width)
    expected = reference_conv2d(images, weights, layer.bias, padding=geometry.padding)
    assert np.array_equal(launched(kernel, layer, images), expected)


@pytest.mark.gpu
def test_float32_images_are_rounded_as_halves_are(rng):
    geometry = Geometry(4, 40, 40, 16, (7, 7))
    layer, images = random_layer(rng, geometry), random_images(rng, geometry, 20)
    wide, narrow = (launched(TENSOR_HALF, layer, images.astype(kind)) for kind in (np.float32, np.float16))
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
    for kernel in (TENSOR_FLOAT32, BASELINE):
        distance = np.abs(launched(kernel, layer, images) - expected) / size
        errors.append((np.sqrt(np.mean(distance**2)), distance.max()))
    assert errors[0][0] <= errors[1][0]
    assert errors[0][1] <= 1.2 * errors[1][1]  # of single outputs, a matter of luck


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("geometry", [geometry for geometry, _ in AWKWARD], ids=str)
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan], ids=str)
def test_infinities_and_nan_go_where_they_should(kernel, geometry, special, rng):
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    weights[weights == 0] = 1
    layer = Conv2d(weights, integers(rng, geometry.filters), Identity(), padding=geometry.padding)
    images = integers(rng, 3, geometry.channels, geometry.height, geometry.width)
    for _ in range(4):
        images[tuple(rng.integers(0, size) for size in images.shape)] = special
    with np.errstate(invalid="ignore"):
        expected = reference_conv2d(images, weights, layer.bias, padding=geometry.padding)
    np.testing.assert_array_equal(launched(kernel, layer, images), expected)
    if kernel is TENSOR_HALF:
        found = launched(kernel, layer, images.astype(np.float16))
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
    np.testing.assert_array_equal(launched(TENSOR_FLOAT32, layer, images), expected)


@pytest.mark.gpu
def test_half_precision_ends_where_it_ends(rng):
    geometry = Geometry(1, 12, 12, 2, (7, 7))
    images = np.ones((1, 1, 12, 12), np.float32)
    images[0, 0, 0, 0] = 70_000
    found = launched(TENSOR_HALF, random_layer(rng, geometry, Identity()), images)
    assert np.isinf(found[0, :, 0, 0]).all()
    assert np.isfinite(found[0, :, 1:]).all()
    weights = np.ones((2, 1, 7, 7))
    weights[1, 0, 3, 3] = 65_505
    with pytest.raises(UsageError, match="65505"):
        launched(TENSOR_HALF, Conv2d(weights), images)
