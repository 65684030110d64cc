"""Dense layers on a GPU: what holds for all kernels."""

from functools import partial

import numpy as np
import pytest
from captures import assert_captured
from dense_chains import exact, launched, layers_of

from sparsenn.backends.cuda.dense import cublas, fused, warpgroup
from sparsenn.backends.cuda.dense.stack import upload_dense
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.errors import ShapeError, UsageError
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh

pytestmark = pytest.mark.gpu

KERNELS = (*fused.KERNELS, *warpgroup.KERNELS, *cublas.KERNELS)
WIDTHS = (
    (1, 1),
    (7, 8, 9),
    (72, 64, 64, 4),
    (9, 129, 3),
    (200, 7, 256, 64),
    (130, 192, 10),
    (256, 256, 256, 10),
    (784, 512, 36, 10),
    (1000, 128, 128, 128, 10),
)
ROWS = (0, 1, 15, 16, 17, 31, 33, 1000)
ALLOWED = {"float32": 5e-6, "tf32": 5e-3, "float16": 5e-3}  # in parts of the largest output


def parametrized(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=lambda kernel: kernel.name)


def skip_unless_it_runs(kernel, layers):
    if reason := kernel.why_not(machine_of(0), layers):
        pytest.skip(reason)


def assert_near(found, layers, features, precision):
    expected = exact(layers, features)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= ALLOWED[precision] * np.abs(expected).max(initial=1e-30)


def assert_any_rows(kernel, widths, kind, rng):
    layers = layers_of(rng, widths)
    skip_unless_it_runs(kernel, layers)
    for rows in ROWS:
        features = rng.normal(size=(rows, widths[0])).astype(kind)
        assert_near(launched(kernel, layers, features), layers, features, kernel.precision)


@parametrized(KERNELS)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_any_widths_and_rows(kernel, widths, rng):
    assert_any_rows(kernel, widths, np.float32, rng)


@parametrized([fused.TENSOR_HALF, warpgroup.WARPGROUP_HALF, cublas.CUBLAS_FLOAT16])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_half_rows(kernel, widths, rng):
    assert_any_rows(kernel, widths, np.float16, rng)


@parametrized(KERNELS)
@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 72, 129, 200, 256])
@pytest.mark.parametrize("activation", [ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity()], ids=str)
def test_any_activation(kernel, width, activation, rng):
    layers = layers_of(rng, (width, width, 5), [activation] * 2)
    skip_unless_it_runs(kernel, layers)
    features = rng.normal(size=(100, width)).astype(np.float32)
    assert_near(launched(kernel, layers, features), layers, features, kernel.precision)


@parametrized(KERNELS)
def test_rows_that_begin_anywhere_give_the_same_bits_each_time(kernel, rng):
    layers = layers_of(rng, (72, 64, 64, 4))
    skip_unless_it_runs(kernel, layers)
    flat = cupy().asarray(rng.normal(size=1 + 5000 * 72).astype(np.float32))
    stack, features = upload_dense(0, layers), flat[1:].reshape(5000, 72)
    first = kernel.launch(stack, features)
    assert_near(cupy().asnumpy(first), layers, cupy().asnumpy(features), kernel.precision)
    if kernel not in cublas.KERNELS:
        assert all(bool((kernel.launch(stack, features) == first).all()) for _ in range(10))


@parametrized(KERNELS)
def test_bad_features_are_refused(kernel, rng):
    layers = layers_of(rng, (4, 3))
    skip_unless_it_runs(kernel, layers)
    with pytest.raises(ShapeError, match="takes"):
        launched(kernel, layers, np.zeros((2, 5), np.float32))
    with pytest.raises(UsageError, match="float64"):
        launched(kernel, layers, np.zeros((2, 4)))
    with pytest.raises(UsageError, match="row order"):
        kernel.launch(upload_dense(0, layers), cupy().zeros((4, 2), np.float32).T)
    if kernel not in cublas.KERNELS:
        with pytest.raises(UsageError, match="257"):
            launched(kernel, layers_of(rng, (4, 257)), np.zeros((2, 4), np.float32))


@parametrized([fused.TENSOR_HALF, cublas.CUBLAS_FLOAT16])
def test_weights_beyond_half_precision_are_refused(kernel):
    with pytest.raises(UsageError, match="layer 1 has a weight of 70000"):
        launched(kernel, (Linear(np.float32([[7e4]])),), np.ones((1, 1), np.float32))


@parametrized(KERNELS)
def test_a_launch_can_be_captured(kernel, rng):
    layers = layers_of(rng, (72, 64, 64, 4))
    skip_unless_it_runs(kernel, layers)
    features = cupy().asarray(rng.normal(size=(300, 72)).astype(np.float32))
    assert_captured(partial(kernel.launch, upload_dense(0, layers), features))
