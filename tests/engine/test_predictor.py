"""Predictor: rows from anywhere, outputs where the rows were."""

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import Linear, Network, Predictor, SparseLinear
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.layers import Identity, ReLU, Sigmoid


class Speaking:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Elsewhere(Speaking):
    """Says that it is on a GPU."""

    def __dlpack_device__(self):
        return 2, 0


@pytest.fixture
def network(rng):
    return Network(
        (
            Linear(rng.normal(size=(6, 9)), rng.normal(size=9), ReLU()),
            Linear(rng.normal(size=(9, 4)), 0.5, Sigmoid()),
            Linear(rng.normal(size=(4, 3)), None, Identity()),
        )
    )


def expected_of(network, rows):
    values = np.asarray(rows, np.float64)
    for layer in network:
        values = layer.activation(values @ layer.weights.astype(np.float64) + layer.bias_vector().astype(np.float64))
    return values


def close(found, network, rows):
    expected = expected_of(network, rows)
    return found.shape == expected.shape and np.abs(found - expected).max(initial=0.0) <= 1e-5 * np.abs(expected).max(
        initial=1.0
    )


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_rows_of_every_kind(network, rng, device, count):
    predictor = Predictor(network, device=device)
    rows = rng.normal(size=(count, 6)).astype(np.float32)
    given = (
        rows,
        rows.astype(np.float64),
        rows.tolist(),
        Speaking(rows),
        np.asfortranarray(rows),
        rows.astype(np.float16),
    )
    for kind in given if count else given[:2]:
        found = predictor(kind)
        assert isinstance(found, np.ndarray)
        assert close(found, network, rows.astype(np.float16) if kind is given[-1] else rows)
    assert close(predictor(np.ones((2, 6), bool)), network, np.ones((2, 6)))


def test_rows_that_cannot_be(network):
    predictor = Predictor(network, device="cpu")
    with pytest.raises(ShapeError, match="5 columns; the network takes 6"):
        predictor(np.ones((2, 5)))
    with pytest.raises(ShapeError, match=r"shape \(6,\); a matrix"):
        predictor(np.ones(6))
    with pytest.raises(InputError, match="type complex128; real numbers"):
        predictor(np.ones((2, 6), complex))
    with pytest.raises(UsageError, match="the rows are on a GPU"):
        predictor(Elsewhere(np.ones((2, 6))))


def test_networks_and_kernels_that_cannot_be(network):
    sparse = SparseLinear.from_scipy(sp.eye_array(3, format="csc"))
    with pytest.raises(UsageError):
        Predictor(Network((*network.layers, sparse)), device="cpu")
    with pytest.raises(UsageError, match="the network is a list; what is run"):
        Predictor(list(network), device="cpu")
    with pytest.raises(UsageError, match="not multiplied in tf32 on cpu"):
        Predictor(network, device="cpu", precision="tf32")
    with pytest.raises(UsageError, match="known: blas"):
        Predictor(network, device="cpu", kernel="panel")
    assert str(Predictor(network, device="cpu")).startswith("6 - 9 - 4 - 3 on cpu")


def test_outputs_are_not_overwritten(network, rng):
    predictor = Predictor(network, device="cpu")
    first = predictor(rng.normal(size=(5, 6)))
    kept = first.copy()
    predictor(rng.normal(size=(5, 6)))
    assert np.array_equal(first, kept)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "fp16"])
def test_rows_on_a_gpu_stay_there(network, rng, precision):
    import cupy

    predictor = Predictor(network, device="cuda", precision=precision)
    rows = rng.normal(size=(100, 6)).astype(np.float32)
    on_host, on_device = predictor(rows), predictor(cupy.asarray(rows))
    assert isinstance(on_host, np.ndarray)
    assert isinstance(on_device, cupy.ndarray)
    assert np.array_equal(on_host, cupy.asnumpy(on_device))
    assert np.array_equal(on_host, cupy.asnumpy(predictor(Speaking(cupy.asarray(rows)))))
    half = predictor(cupy.asarray(rows, np.float16))
    assert half.dtype == (np.float16 if precision == "fp16" else np.float32)
    assert np.abs(cupy.asnumpy(half) - expected_of(network, rows)).max() < 0.05
