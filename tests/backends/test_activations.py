"""Every activation in every kernel's code, against its formula; and what the table says of each."""

from __future__ import annotations

import ctypes
import math
import shutil

import numpy as np
import pytest
from compiled import compiled as stored
from formulas import EXAMPLES, FORMULAS, Unknown, value_of
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csc_array

from sparsenn import Session
from sparsenn.backends.cpu.activation import activate_line, activation_code, slope
from sparsenn.backends.cpu.dense import launch
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS, activation_header
from sparsenn.backends.cuda.runtime.activation import activation_code as device_code
from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Linear, SparseLinear
from sparsenn.layers.activation import ACTIVATIONS as TABLE
from sparsenn.network import Network
from sparsenn.runtime.jit import compiled
from sparsenn.studies.emulation import compiled_library, loaded

SPECIAL = [
    *(0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 1e-7, -1e-7, 0.5, -0.5, 1.0, -1.0),
    *(3.0, -3.0, 2.999, -2.999, 10.0, -10.0),
    *(39.9, -39.9, -40.1, 88.7, -88.7, -104.0, 1000.0, -1000.0, -1000.5, 1e10, -1e10, 3.4e38, -3.4e38),
    *(math.inf, -math.inf, math.nan),
]
RTOL, ATOL = 5e-6, 2e-38
"""Of float32: exp doubles the error of its argument's last digit up to 50 times; and the smallest normal numbers."""


def expected(activation, z):
    with np.errstate(over="ignore"):
        return np.array([value_of(activation, float(each)) for each in z])


@compiled
def each_activated(kind, parameter, z, outputs):
    outputs[:] = z
    activate_line(kind, outputs, 0, z.size, parameter)


@compiled
def each_slope(kind, parameter, y, outputs):
    for i in range(y.size):
        outputs[i] = slope(kind, y[i], parameter)


def by_numba(function, activation, z):
    kind, parameter = activation_code(activation)
    outputs = np.empty_like(z)
    function(kind, np.float32(parameter), z, outputs)
    return outputs


@pytest.fixture(scope="module")
def header():
    """The generated header, compiled for the host."""
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    loops = [
        f'extern "C" void {name}(int kind, float p, const float* in, float* out, int count) {{\n'
        f"    for (int i = 0; i < count; ++i) out[i] = {call};\n}}\n"
        for name, call in (("activated", "activate(in[i], kind, p)"), ("sloped", "slope(in[i], kind, p)"))
    ]
    cases = "".join(
        f"case {name}: for (int i = 0; i < count; ++i) out[i] = activate_as<{name}>(in[i], p); break;\n"
        for name in ACTIVATIONS
    )
    loops.append(
        'extern "C" void activated_as(int kind, float p, const float* in, float* out, int count) {\n'
        f"switch (kind) {{\n{cases}}}\n}}\n"
        'extern "C" int curved(int kind) { return is_curved(kind); }\n'
    )
    return loaded(compiled_library(f"{activation_header()}\n{''.join(loops)}", (), stored))


def by_header(function, code, parameter, z):
    outputs = np.empty_like(z)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (z, outputs))
    function(ctypes.c_int(code), ctypes.c_float(parameter), *pointers, ctypes.c_int(z.size))
    return outputs


def test_formulas_are_of_the_table():
    assert set(FORMULAS) == set(TABLE)
    assert {type(activation) for activation in EXAMPLES} == set(TABLE)
    assert len({kind.name for kind in TABLE}) == len(TABLE)


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40))
@example(values=SPECIAL)
def test_all_compute_the_formula(header, activation, values):
    z = np.array(values, np.float32)
    exact = expected(activation, z)
    code, parameter = (number.item() for number in device_code(Linear(np.ones((1, 1)), None, activation), 1))
    found = {
        "reference": activation(z),
        "compiled": by_numba(each_activated, activation, z),
        "CUDA": by_header(header.activated, code, parameter, z),
        "CUDA, one at a time": by_header(header.activated_as, code, parameter, z),
    }
    with np.errstate(over="ignore"):
        exact = exact.astype(np.float32)
    for name, outputs in found.items():
        assert outputs.dtype == np.float32, name
        np.testing.assert_allclose(outputs, exact, RTOL, ATOL, err_msg=name)
    assert found["CUDA"].tobytes() == found["CUDA, one at a time"].tobytes()
    wide = activation(z.astype(np.float64))
    np.testing.assert_allclose(wide, expected(activation, z), 1e-12, 1e-300)


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
@given(values=st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=30))
def test_what_the_table_says_is_so(header, activation, values):
    z = np.array([*values, 0.0])
    found = expected(activation, z)
    low, high = activation.bounds
    assert (found >= low - 1e-12).all()
    assert (found <= high + 1e-12).all()
    size = float(np.abs(z).max())
    assert np.abs(found).max() <= activation.largest(size) * (1 + 1e-12)
    if activation.is_homogeneous:
        assert (expected(activation, z * 0.25) == found * 0.25).all()
    if activation.is_monotone:
        assert (np.diff(expected(activation, np.sort(z))) >= 0).all()
    code = activation_code(activation)[0]
    assert bool(header.curved(code)) == activation.is_curved


@pytest.mark.parametrize("activation", [each for each in EXAMPLES if each.is_trainable], ids=str)
@given(z=st.floats(-15, 15))
def test_slopes_are_those_of_the_formula(header, activation, z):
    step, parameter = 1e-5, activation.parameter
    corners = (0.0, 3.0, -3.0, parameter, 0.5 / parameter, -0.5 / parameter)
    if any(abs(z - corner) < 1e-3 for corner in corners):
        return
    numeric = (value_of(activation, z + step) - value_of(activation, z - step)) / (2 * step)
    y = np.array([value_of(activation, z)])
    np.testing.assert_allclose(np.broadcast_to(activation.slope_at(y), 1), numeric, rtol=1e-4, atol=1e-6)
    single = y.astype(np.float32)
    exact = np.broadcast_to(activation.slope_at(single.astype(np.float64)), 1)
    code, parameter = activation_code(activation)
    for found in (by_numba(each_slope, activation, single), by_header(header.sloped, code, parameter, single)):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_no_kernel_takes_another_for_an_unknown_number(header):
    z, outputs = np.ones(3, np.float32), np.zeros(3, np.float32)
    each_activated(len(TABLE), np.float32(1), z, outputs)
    assert np.isnan(outputs).all()
    assert np.isnan(by_header(header.activated, len(TABLE), 1.0, z)).all()


def test_what_is_not_in_the_table_is_refused():
    layer = Linear(np.ones((2, 2)), None, Unknown())
    with pytest.raises(UsageError, match="do not know"):
        activation_code(layer.activation)
    with pytest.raises(UsageError, match=r"layer 3.*do not know"):
        device_code(layer, 3)
    with pytest.raises(UsageError, match="do not know"):
        Session(Network((layer,)))(np.ones((1, 2), np.float32))


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
@pytest.mark.parametrize("rows", [1, 40])
def test_layers_of_all_kinds(activation, rows, rng):
    """Whichever kernels a session takes: few rows, panels, dense tiles and windows."""
    x = rng.normal(size=(rows, 12)).astype(np.float32)
    weights = rng.normal(size=(12, 9)).astype(np.float32) * (rng.random((12, 9)) < 0.5)
    bias = rng.normal(size=9).astype(np.float32)
    sums = x.astype(np.float64) @ weights.astype(np.float64) + bias
    exact = np.vectorize(lambda z: value_of(activation, z))(sums)
    for layer in (SparseLinear.from_scipy(csc_array(weights), bias, activation), Linear(weights, bias, activation)):
        np.testing.assert_allclose(Session(Network((layer,)))(x), exact, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(launch((Linear(weights, bias, activation),), x), exact, rtol=1e-5, atol=2e-5)
    images = rng.normal(size=(rows, 2, 5, 6)).astype(np.float32)
    filters = rng.normal(size=(3, 2, 1, 1)).astype(np.float32)
    network = Network((Conv2d(filters, 0.25, activation),), (2, 5, 6))
    sums = np.einsum("fc,nchw->nfhw", filters[:, :, 0, 0].astype(np.float64), images) + 0.25
    exact = np.vectorize(lambda z: value_of(activation, z))(sums).reshape(rows, -1)
    found = np.asarray(Session(network)(images.reshape(rows, -1))).reshape(rows, -1)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=2e-5)
