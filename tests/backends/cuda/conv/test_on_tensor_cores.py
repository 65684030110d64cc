"""The kernels of conv2d on tensor cores, on a GPU: what holds for all of them."""

from functools import partial

import numpy as np
import pytest
from captures import assert_captured
from convolutions import (
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

SAME = {"padding": (1, 1)}
CASES = {
    "square": (2, Geometry(64, 14, 14, 64, (3, 3), **SAME)),
    "ragged": (3, Geometry(70, 9, 10, 70, (3, 3), **SAME)),
    "strips": (1, Geometry(5, 12, 70, 20, (3, 3), **SAME)),
    "odd": (1, Geometry(5, 11, 37, 20, (3, 5), (1, 1), (1, 2))),
    "pairs": (2, Geometry(9, 5, 98, 10, (3, 3), **SAME)),
    "fours": (1, Geometry(9, 5, 100, 10, (3, 3), (1, 1), (0, 1))),
    "strided": (2, Geometry(3, 23, 31, 20, (5, 3), (2, 2), (2, 1))),
    "spread": (2, Geometry(3, 23, 31, 20, (3, 4), (3, 2), (2, 3), (2, 3))),
    "dilated": (2, Geometry(3, 23, 31, 20, (3, 4), (1, 1), (2, 3), (2, 3))),
    "pointwise": (5, Geometry(130, 7, 7, 33, (1, 1))),
    "even": (5, Geometry(130, 5, 6, 33, (2, 2))),
    "grown": (2, Geometry(6, 4, 5, 7, (2, 2), (1, 1), (3, 4))),
    "single": (70, Geometry(64, 1, 1, 40, (1, 1))),
    "far": (3, Geometry(20, 6, 6, 18, (2, 2), (3, 3), (3, 3), (3, 3))),
    "none": (0, Geometry(64, 14, 14, 64, (3, 3), **SAME)),
    "wide": (2, Geometry(64, 50, 224, 64, (3, 3), **SAME)),
    "deep": (16, Geometry(512, 14, 14, 512, (3, 3), **SAME)),
    "last": (4, Geometry(512, 7, 7, 512, (3, 3), **SAME)),
    "first": (4, Geometry(3, 112, 112, 64, (7, 7), (2, 2), (3, 3))),
    "many": (300, Geometry(24, 9, 9, 40, (3, 3), **SAME)),
    "tall": (3, Geometry(33, 301, 5, 65, (5, 1), (1, 1), (2, 0))),
    "flat": (3, Geometry(33, 1, 301, 65, (1, 5), (1, 1), (0, 2))),
    "few": (50, Geometry(2, 20, 21, 5, (5, 5))),
    "digits": (300, Geometry(1, 86, 86, 4, (7, 7))),
    "several": (137, Geometry(4, 40, 40, 16, (7, 7))),
    "one number": (33, Geometry(1, 7, 7, 1, (7, 7))),
    "bands": (2, Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1))),
    "one filter": (7, Geometry(1, 100, 100, 1, (11, 11))),
    "line": (5, Geometry(2, 17, 300, 3, (1, 19))),
    "filters": (29, Geometry(1, 28, 28, 100, (6, 6))),
    "padded": (200, Geometry(16, 12, 12, 16, (5, 5), padding=(2, 2))),
}
"""Images, and their geometry."""


def parametrized(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=lambda kernel: kernel.name)


kernels = parametrized(KERNELS)
halves = parametrized([kernel for kernel in KERNELS if kernel.half_rows])
splitting = parametrized([kernel for kernel in KERNELS if kernel.tf32_products])


def skip_unless_it_runs(kernel, geometry):
    layer = Conv2d(np.ones((geometry.filters, geometry.channels, *geometry.kernel)), **options_of(geometry))
    if reason := kernel.why_not(current_machine(), layer, (geometry.channels, geometry.height, geometry.width)):
        pytest.skip(reason)


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_any_convolution(kernel, case, rng):
    count, geometry = case
    skip_unless_it_runs(kernel, geometry)
    given = drawn_numbers(rng, count, geometry, integers=False)
    assert_near_conv2d(
        launched(kernel.launch, geometry, given, ReLU()),
        *given,
        ReLU(),
        precision=kernel.precision,
        **options_of(geometry),
    )


@pytest.mark.gpu
@halves
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_rows(kernel, case, rng):
    count, geometry = case
    skip_unless_it_runs(kernel, geometry)
    given = drawn_numbers(rng, count, geometry, np.float16, integers=False)
    outputs = launched(kernel.launch, geometry, given, Identity())
    assert_near_conv2d(outputs, *given, precision="float16", **options_of(geometry))


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("name", ["ragged", "strips", "strided", "spread", "deep", "far"])
def test_integers_are_exact(kernel, name, rng):
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    given = drawn_numbers(rng, count, geometry)
    expected = reference_conv2d(*given, **options_of(geometry))
    assert np.array_equal(launched(kernel.launch, geometry, given, Identity()), expected)


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
@pytest.mark.parametrize("name", ["ragged", "few"])
def test_any_activation(kernel, name, activation, rng):
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    given = drawn_numbers(rng, count, geometry, integers=False)
    outputs = launched(kernel.launch, geometry, given, activation)
    assert_near_conv2d(outputs, *given, activation, precision=kernel.precision, **options_of(geometry))


@pytest.mark.gpu
@splitting
@pytest.mark.parametrize("name", ["square", "deep", "wide"])
def test_tensor_cores_are_as_precise_as_plain_float32(kernel, name, rng):
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    for sign in (np.positive, np.abs):
        images, weights, bias = map(sign, drawn_numbers(rng, count, geometry, integers=False))
        every = images, weights, np.zeros_like(bias)
        error = np.abs(
            launched(kernel.launch, geometry, every, Identity()) - reference_conv2d(*every, **options_of(geometry))
        )
        sizes = absolute_sums(images, weights, **options_of(geometry))
        assert (error <= 2 * np.sqrt(geometry.depth) * 2.0**-24 * sizes).all()
        assert np.sqrt((error**2).mean()) <= 0.25 * np.sqrt(geometry.depth) * 2.0**-24 * sizes.mean()


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("name", ["square", "last"])
def test_the_same_bits_from_run_to_run(kernel, name, rng):
    cp = cupy()
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    images, weights, bias = drawn_numbers(rng, count, geometry, integers=False)
    layer, given_images = uploaded(geometry, weights, bias, ReLU()), cp.asarray(images)
    first = kernel.launch(layer, given_images)
    assert all(bool((kernel.launch(layer, given_images) == first).all()) for _ in range(10))


@pytest.mark.gpu
@halves
@pytest.mark.parametrize("name", ["square", "few"])
def test_images_that_begin_anywhere(kernel, name, rng):
    cp = cupy()
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    given = drawn_numbers(rng, count, geometry, np.float16)
    images, weights, bias = given
    flat = cp.zeros(images.size + 1, np.float16)
    flat[1:] = cp.asarray(images.ravel())
    outputs = kernel.launch(uploaded(geometry, weights, bias, Identity()), flat[1:].reshape(images.shape))
    expected = reference_conv2d(*given, **options_of(geometry)).astype(np.float16)
    assert np.array_equal(cp.asnumpy(outputs), expected)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@splitting
@pytest.mark.parametrize("name", ["ragged", "last"])
def test_strange_pixels_give_what_float32_gives(kernel, name, rng):
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    images, weights, bias = drawn_numbers(rng, count, geometry, integers=False)
    images[0, 1, 4, 4], images[1, 2, 0, 5], images[2, 0, 6, 0] = np.inf, np.nan, np.finfo(np.float32).max
    outputs = launched(kernel.launch, geometry, (images, weights, bias), Identity())
    right = reference_conv2d(images, weights, bias, **options_of(geometry)).astype(np.float32)
    ordinary = np.isfinite(right)
    assert np.array_equal(outputs[~ordinary], right[~ordinary], equal_nan=True)
    np.testing.assert_allclose(outputs[ordinary], right[ordinary], rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@halves
def test_weights_beyond_half_precision_are_refused(kernel, rng):
    geometry = Geometry(2, 4, 4, 3, (3, 3))
    images, weights, bias = drawn_numbers(rng, 1, geometry)
    weights[1, 1, 1, 1] = 7e4
    with pytest.raises(UsageError, match="70000"):
        launched(kernel.launch, geometry, (images, weights, bias), Identity())


@pytest.mark.gpu
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


@pytest.mark.gpu
@kernels
@pytest.mark.parametrize("name", ["square", "last", "few"])
def test_a_launch_can_be_captured(kernel, name, rng):
    cp = cupy()
    count, geometry = CASES[name]
    skip_unless_it_runs(kernel, geometry)
    images, weights, bias = drawn_numbers(rng, count, geometry, integers=False)
    layer, given_images = uploaded(geometry, weights, bias, ReLU()), cp.asarray(images)
    assert_captured(partial(kernel.launch, layer, given_images), launched_there=True)
