"""cuBLAS's products with bias and activation: padding; the kernel after a product, emulated; and all on a GPU."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from captures import assert_captured
from dense_chains import exact, launched, layers_of
from emulation import emulated

from sparsenn.backends.cuda.dense import cublas
from sparsenn.backends.cuda.dense.cublas import CUBLAS, CUBLAS_FLOAT16, CUBLAS_TF32, KERNELS, padded_widths, seconds
from sparsenn.backends.cuda.dense.stack import upload_dense
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh

ALLOWED = {"float32": 5e-6, "tf32": 5e-3, "float16": 5e-3}
"""In parts of the largest output."""

ACTIVATIONS = (ReLU(), ReLU(0.5), Sigmoid(), Tanh(), Identity())

kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


# ---- Without a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "widths", "rows", "padded"),
    [
        ("float32", (1001, 333, 1777), 10_000, (1001, 333, 1777)),
        ("tf32", (1001, 333, 1777), 10_000, (1004, 336, 1780)),
        ("float16", (1001, 333, 1777), 10_000, (1008, 336, 1784)),
        ("float16", (1001, 333, 1777), 100, (1001, 336, 1777)),  # copying rows takes longer than it saves
        ("float16", (784, 1001, 10), 10_000, (784, 1008, 10)),
        ("float16", (1001, 10), 1_000_000, (1001, 10)),
        ("tf32", (1001, 2043), 10_000, (1004, 2044)),
        ("float16", (1024, 1024), 60_000, (1024, 1024)),
    ],
)
def test_widths_are_padded_where_that_saves_time(precision, widths, rows, padded):
    assert padded_widths(precision, widths, rows) == padded


def test_hidden_widths_are_padded_without_passes():
    def prior(widths):
        return seconds("tf32", H200, [Linear(np.ones(shape, np.float32)) for shape in pairwise(widths)], 10_000)

    whole, hidden, outer = map(prior, ((1024,) * 3, (1024, 1021, 1024), (1021, 1024, 1021)))
    assert hidden == whole
    assert whole < outer < 2.5 * whole  # two passes more


@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
@pytest.mark.parametrize(("outputs", "vector"), [(12, 1), (12, 0), (7, 0)])
@pytest.mark.parametrize(
    "activation", [(RELU, np.inf), (RELU, 0.5), (IDENTITY, np.inf)], ids=["relu", "clipped", "identity"]
)
def test_bias_and_activation_in_emulation(half, outputs, vector, activation, rng):
    defines = {"THREADS": 64, "VECTOR": vector, "RESULT": "half_bits" if half else "float"}
    kernel = emulated("mlp/epilogue.cu", defines)
    sums = rng.normal(size=(37, outputs)).astype(np.float32)
    sums[5, 3] = np.nan
    bias = rng.normal(size=outputs).astype(np.float32)
    code, clip = activation
    right = np.clip(sums + bias, 0, clip) if code == RELU else sums + bias
    results = np.zeros(sums.shape, np.float16) if half else sums
    units, width = sums.size // (4 if vector else 1), outputs // (4 if vector else 1)
    given = np.int64(units), np.int32(width), sums, results, bias, np.int32(code), np.float32(clip)
    kernel.launch(3, 64, *given)
    np.testing.assert_array_equal(results, right.astype(results.dtype))


# ---- On a GPU ----------------------------------------------------------------------------------------------------


def assert_near(found, expected, precision):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max(initial=0.0) <= ALLOWED[precision] * np.abs(expected).max(initial=1e-30)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [CUBLAS_TF32, CUBLAS_FLOAT16], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_layers_that_are_padded(kernel, activation, rng, monkeypatch):
    monkeypatch.setattr(cublas, "PADDED_WORK", 0)
    monkeypatch.setattr(cublas, "PADDED_SIDE", 0)
    layers = layers_of(rng, (33, 57, 131, 7), [activation, activation, Identity()])
    for rows in (1, 17, 1000):
        for kind in (np.float32, np.float16) if kernel is CUBLAS_FLOAT16 else (np.float32,):
            features = rng.normal(size=(rows, 33)).astype(kind)
            features[rows // 2, 5] = np.nan
            found = launched(kernel, layers, features)
            assert np.isnan(found[rows // 2]).all()
            there = np.arange(rows) != rows // 2
            assert_near(found[there], exact(layers, features[there]), kernel.precision)


@pytest.mark.gpu
@kernels
def test_nan_stays_nan(kernel, rng):
    layers = layers_of(rng, (20, 30, 5))
    features = rng.normal(size=(10, 20)).astype(np.float32)
    features[3, 7] = np.nan
    found = launched(kernel, layers, features)
    assert np.isnan(found[3]).all()
    assert not np.isnan(np.delete(found, 3, axis=0)).any()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [CUBLAS, CUBLAS_TF32], ids=lambda kernel: kernel.name)
def test_what_is_rounded_is_what_was_asked_for(kernel, rng):
    layers = (Linear(np.full((512, 64), 1 + 2.0**-14, np.float32), None, Identity()),)
    found = launched(kernel, layers, np.ones((128, 512), np.float32))
    right = 512 * (1 + 2.0**-14)
    assert (np.abs(found / right - 1) < 2.0**-20).all() == (kernel is CUBLAS)


@pytest.mark.gpu
@kernels
def test_a_launch_can_be_captured(kernel, rng):
    cp = cupy()
    layers = layers_of(rng, (783, 301, 10), [Tanh(), Identity()])
    stack = upload_dense(0, layers)
    for rows in (300, 4000):  # which are padded
        features = cp.asarray(rng.normal(size=(rows, 783)).astype(np.float32))
        assert_captured(partial(kernel.launch, stack, features))


@pytest.mark.gpu
def test_a_stack_forgets_numbers_of_rows_and_the_memory_goes_with_it(rng):
    cp = cupy()
    layers = layers_of(rng, (64, 300, 10))
    stack, pool = upload_dense(0, layers), cp.get_default_memory_pool()
    for rows in (1000, 1):
        CUBLAS.launch(stack, cp.zeros((rows, 64), np.float32))
    used = pool.used_bytes()
    for rows in range(1, 700):
        CUBLAS.launch(stack, cp.zeros((rows, 64), np.float32))
    assert len(stack.ready) <= 256
    assert pool.used_bytes() <= used
