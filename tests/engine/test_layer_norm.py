"""Layer normalisations between sparse layers that positions share, as a transformer's perceptron has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import (
    GELU,
    Add,
    LayerNorm,
    Model,
    Network,
    Node,
    PerPosition,
    Session,
    SparseLinear,
    plan,
    read_model,
    write_model,
)
from sparsenn.backends.machine import H200
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import Identity

POSITIONS, WIDTH, HIDDEN = 5, 24, 64
DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
RNG = np.random.default_rng(5)
SCALE, SHIFT = RNG.normal(size=(2, WIDTH)).astype(np.float32)


def sparse(inputs: int, outputs: int, activation: Any) -> SparseLinear:
    matrix = RNG.normal(size=(inputs, outputs)) * (RNG.random((inputs, outputs)) < 0.2)
    return SparseLinear.from_scipy(sp.csc_array(matrix.astype(np.float32)), RNG.normal(size=outputs), activation)


UP, DOWN = sparse(WIDTH, HIDDEN, GELU()), sparse(HIDDEN, WIDTH, Identity())
BLOCK = Network(
    (
        LayerNorm(SCALE, SHIFT, positions=POSITIONS),
        PerPosition(UP, POSITIONS),
        PerPosition(DOWN, POSITIONS),
        Node(Add(), (0, 3)),
        LayerNorm(SCALE, SHIFT, 1e-3, POSITIONS),
    )
)


def rows_of(count: int) -> Array:
    rows: Array = np.random.default_rng(count).normal(size=(count, POSITIONS * WIDTH)).astype(np.float32)
    rows[::3] = 0
    return rows


def normalised(numbers: Array, epsilon: float) -> Array:
    mean, variance = numbers.mean(axis=-1, keepdims=True), numbers.var(axis=-1, keepdims=True)
    found: Array = (numbers - mean) / np.sqrt(variance + epsilon) * SCALE + SHIFT
    return found


def expected(rows: Array) -> Array:
    tokens = rows.reshape(-1, POSITIONS, WIDTH).astype(np.float64)
    hidden = GELU()(normalised(tokens, 1e-5) @ UP.weights.to_scipy().toarray() + UP.bias_vector())
    summed = tokens + hidden @ DOWN.weights.to_scipy().toarray() + DOWN.bias_vector()
    return normalised(summed, 1e-3).reshape(rows.shape)


@DEVICES
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"weight_memory": 1}], ids=str)
def test_outputs(device: str, options: dict[str, Any]) -> None:
    session = Session(BLOCK, device=device, **options)
    for count in (0, 1, 6, 64):
        for _ in range(2):
            np.testing.assert_allclose(session(rows_of(count)), expected(rows_of(count)), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_outputs_on_a_gpu_in_half_precision(cupy: Any) -> None:
    found = Session(BLOCK, device="cuda", precision="float16")(cupy.asarray(rows_of(6), cupy.float16))
    np.testing.assert_allclose(cupy.asnumpy(found), expected(rows_of(6)), rtol=3e-2, atol=3e-2)


def test_bits_do_not_depend_on_other_rows() -> None:
    network = Network((LayerNorm(SCALE, SHIFT, positions=POSITIONS),))
    session, rows = Session(network, device="cpu"), rows_of(64)
    together = session(rows)
    for first, last in ((0, 1), (3, 20), (63, 64)):
        np.testing.assert_array_equal(session(rows[first:last]), together[first:last])


@DEVICES
def test_zeros_without_a_shift_stay_zeros(device: str) -> None:
    network = Network((LayerNorm(SCALE, np.zeros(WIDTH)), sparse(WIDTH, 3, Identity())))
    found = Session(network, device=device)(np.zeros((4, WIDTH), np.float32))
    np.testing.assert_allclose(found, np.tile(network[1].bias_vector(), (4, 1)), rtol=1e-6)


def test_double_precision() -> None:
    rows = rows_of(6)
    found = Session(BLOCK, device="cpu", precision="float64")(rows)
    np.testing.assert_allclose(found, expected(rows), rtol=1e-12, atol=1e-12)


def test_plans_name_them_and_gpus_refuse_them_in_double_precision() -> None:
    for options in ({"device": "cpu"}, {"machine": H200}):
        assert "layer_norm" in str(plan(BLOCK, rows_of(6), **options))
    with pytest.raises(UsageError, match="do not compute layer_norm in float64"):
        Session(BLOCK, device="cuda", precision="float64")


def test_files_hold_them(tmp_path: Path) -> None:
    write_model(tmp_path / "block.h5", Model(BLOCK, "mse", False))
    read = read_model(tmp_path / "block.h5").network
    np.testing.assert_array_equal(Session(read, device="cpu")(rows_of(6)), Session(BLOCK, device="cpu")(rows_of(6)))
