"""The kernels of conv2d on tensor cores, on a GPU: what holds for all of them."""

from functools import partial

import numpy as np
import pytest
from captures import assert_captured
from convolutions import (
    CASES,
    absolute_sums,
    assert_near_conv2d,
    drawn_numbers,
    launched,
    options_of,
    reference_conv2d,
    uploaded,
)

from sparsenn.backends.cuda.conv import Geometry, channels_last, cudnn, implicit, tensor, warpgroup
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Conv2d, Identity, ReLU, Sigmoid, Tanh

pytestmark = pytest.mark.gpu

KERNELS = [
    implicit.IMPLICIT_FLOAT32,
    warpgroup.WARPGROUP_FLOAT32,
    warpgroup.WARPGROUP_TF32,
    warpgroup.WARPGROUP_HALF,
    cudnn.CUDNN_FLOAT32,
    channels_last.CUDNN_TF32,
    channels_last.CUDNN_FLOAT16,
    tensor.TENSOR_FLOAT32,
    tensor.TENSOR_TF32,
    tensor.TENSOR_HALF,
]


def parametrized(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=lambda kernel: kernel.name)


kernels = parametrized(KERNELS)
halves = parametrized([kernel for kernel in KERNELS if kernel.half_rows])
splitting = parametrized([kernel for kernel in KERNELS if kernel.tf32_products])


def drawn(kernel, case, rng, **how):
    """Return a case's geometry and numbers for it, or skip the test where the kernel cannot run it."""
    count, geometry = case
    layer = Conv2d(np.ones((geometry.filters, geometry.channels, *geometry.kernel)), **options_of(geometry))
    if reason := kernel.why_not(current_machine(), layer, (geometry.channels, geometry.height, geometry.width)):
        pytest.skip(reason)
    return geometry, drawn_numbers(rng, count, geometry, **how)


@kernels
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_any_convolution(kernel, case, rng):
    geometry, given = drawn(kernel, case, rng, integers=False)
    outputs = launched(kernel.launch, geometry, given, ReLU())
    assert_near_conv2d(outputs, *given, ReLU(), precision=kernel.precision, **options_of(geometry))


@halves
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_rows(kernel, case, rng):
    geometry, given = drawn(kernel, case, rng, dtype=np.float16, integers=False)
    outputs = launched(kernel.launch, geometry, given, Identity())
    assert_near_conv2d(outputs, *given, precision="float16", **options_of(geometry))


@kernels
@pytest.mark.parametrize("name", ["ragged", "strips", "strided", "spread", "deep", "far"])
def test_integers_are_exact(kernel, name, rng):
    geometry, given = drawn(kernel, CASES[name], rng)
    expected = reference_conv2d(*given, **options_of(geometry))
    assert np.array_equal(launched(kernel.launch, geometry, given, Identity()), expected)


@kernels
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
@pytest.mark.parametrize("name", ["ragged", "few"])
def test_any_activation(kernel, name, activation, rng):
    geometry, given = drawn(kernel, CASES[name], rng, integers=False)
    outputs = launched(kernel.launch, geometry, given, activation)
    assert_near_conv2d(outputs, *given, activation, precision=kernel.precision, **options_of(geometry))


@splitting
@pytest.mark.parametrize("name", ["square", "deep", "wide"])
def test_tensor_cores_are_as_precise_as_plain_float32(kernel, name, rng):
    for sign in (np.positive, np.abs):
        geometry, given = drawn(kernel, CASES[name], rng, integers=False)
        images, weights, bias = map(sign, given)
        every = images, weights, np.zeros_like(bias)
        error = np.abs(
            launched(kernel.launch, geometry, every, Identity()) - reference_conv2d(*every, **options_of(geometry))
        )
        sizes = absolute_sums(images, weights, **options_of(geometry))
        assert (error <= 2 * np.sqrt(geometry.depth) * 2.0**-24 * sizes).all()
        assert np.sqrt((error**2).mean()) <= 0.25 * np.sqrt(geometry.depth) * 2.0**-24 * sizes.mean()


@kernels
@pytest.mark.parametrize("name", ["square", "last"])
def test_the_same_bits_from_run_to_run(kernel, name, rng):
    cp = cupy()
    geometry, (images, weights, bias) = drawn(kernel, CASES[name], rng, integers=False)
    layer, given_images = uploaded(geometry, weights, bias, ReLU()), cp.asarray(images)
    first = kernel.launch(layer, given_images)
    assert all(bool((kernel.launch(layer, given_images) == first).all()) for _ in range(10))


@halves
@pytest.mark.parametrize("name", ["square", "few"])
def test_images_that_begin_anywhere(kernel, name, rng):
    cp = cupy()
    geometry, given = drawn(kernel, CASES[name], rng, dtype=np.float16)
    images, weights, bias = given
    flat = cp.zeros(images.size + 1, np.float16)
    flat[1:] = cp.asarray(images.ravel())
    outputs = kernel.launch(uploaded(geometry, weights, bias, Identity()), flat[1:].reshape(images.shape))
    expected = reference_conv2d(*given, **options_of(geometry)).astype(np.float16)
    assert np.array_equal(cp.asnumpy(outputs), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@splitting
@pytest.mark.parametrize("name", ["ragged", "last"])
def test_strange_pixels_give_what_float32_gives(kernel, name, rng):
    geometry, (images, weights, bias) = drawn(kernel, CASES[name], rng, integers=False)
    images[0, 1, 4, 4], images[1, 2, 0, 5], images[2, 0, 6, 0] = np.inf, np.nan, np.finfo(np.float32).max
    outputs = launched(kernel.launch, geometry, (images, weights, bias), Identity())
    right = reference_conv2d(images, weights, bias, **options_of(geometry)).astype(np.float32)
    ordinary = np.isfinite(right)
    assert np.array_equal(outputs[~ordinary], right[~ordinary], equal_nan=True)
    np.testing.assert_allclose(outputs[ordinary], right[ordinary], rtol=1e-4, atol=1e-3)


@halves
def test_weights_beyond_half_precision_are_refused(kernel, rng):
    geometry = Geometry(2, 4, 4, 3, (3, 3))
    images, weights, bias = drawn_numbers(rng, 1, geometry)
    weights[1, 1, 1, 1] = 7e4
    with pytest.raises(UsageError, match="70000"):
        launched(kernel.launch, geometry, (images, weights, bias), Identity())


@kernels
def test_bad_images_are_refused(kernel, rng):
    cp = cupy()
    geometry = Geometry(4, 4, 4, 3, (3, 3))
    _, weights, bias = drawn_numbers(rng, 1, geometry)
    layer = uploaded(geometry, weights, bias, Identity())
    with pytest.raises(ShapeError, match="uploaded"):
        kernel.launch(layer, cp.zeros((1, 4, 4, 5), np.float32))
    with pytest.raises(UsageError, match="float64"):
        kernel.launch(layer, cp.zeros((1, 4, 4, 4)))


@kernels
@pytest.mark.parametrize("name", ["square", "last", "few"])
def test_a_launch_can_be_captured(kernel, name, rng):
    cp = cupy()
    geometry, (images, weights, bias) = drawn(kernel, CASES[name], rng, integers=False)
    layer, given_images = uploaded(geometry, weights, bias, ReLU()), cp.asarray(images)
    assert_captured(partial(kernel.launch, layer, given_images), launched_there=True)
