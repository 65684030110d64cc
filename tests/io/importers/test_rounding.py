"""What float32 rounds of imported networks: measured, and told where it is much."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_graphs import chain, model
from real_networks import real_weights
from scipy.sparse import csc_array

import sparsenn
from sparsenn import Dataset, Model, Session, from_onnx, from_sklearn, from_weights, infer
from sparsenn.formats import from_dense
from sparsenn.io import files, read_dataset, read_model, write_dataset, write_model
from sparsenn.io.importers.rounding import MOST, RoundingWarning, rounding_of
from sparsenn.io.importers.signal import inputs
from sparsenn.layers import Linear, ReLU, Sigmoid, Softmax, SparseLinear, Tanh
from sparsenn.network import Network

STEEP = {
    "weight1": np.array([[2.0**33], [3 * 2.0**33]], np.float32),
    "bias1": np.array([-(2.0**32), -3 * 2.0**32 - 1024], np.float32),
    "weight2": np.array([[3.0, -1.0]], np.float32),
}
"""A step of height 1024 at 0.5, the difference of numbers up to 1.3e10, of which float32 keeps multiples of 1024."""


def perceptron(rng: np.random.Generator, sizes: list[int], activation: Any) -> Network:
    """Of the weights that initialisers draw: He's for ReLU, Glorot's for others."""
    pairs, gain = list(pairwise(sizes)), 2 if isinstance(activation, ReLU) else 1
    layers = [
        Linear(rng.standard_normal(pair) * np.sqrt(gain / pair[0]), rng.standard_normal(pair[1]) * 0.1, activation)
        for pair in pairs[:-1]
    ]
    return Network((*layers, Linear(rng.standard_normal(pairs[-1]) * np.sqrt(1 / pairs[-1][0])), Softmax()))


def test_weights_that_cancel_are_told() -> None:
    message = r'float32 rounds away .* in float64 unless precision="float32" [(]--precision float32[)]'
    with pytest.warns(RoundingWarning, match=message):
        network = from_weights(STEEP)
    assert network.needs_float64
    rows = np.linspace(0.6, 1, 50, dtype=np.float32)[:, None]
    default = Session(network)
    assert default.plan(rows).precisions == ("float64", "float64")
    assert "in float64: 1–2, because float32 rounds away too much of this network's outputs." in str(default.plan(rows))
    assert (default(rows) == 1024).all()
    assert np.abs(Session(network, device="cpu", precision="float32")(rows) - 1024).max() > 100


@pytest.fixture
def steep() -> Network:
    with pytest.warns(RoundingWarning):
        return from_weights(STEEP)


def test_what_needs_float64_is_remembered(steep: Network, tmp_path: Path) -> None:
    write_model(tmp_path / "model.h5", Model(steep, "mse", False))
    sparse = Network(
        tuple(SparseLinear.from_scipy(csc_array(layer.weights), layer.bias, layer.activation) for layer in steep),
        needs_float64=True,
    )
    write_dataset(Dataset("steep", sparse, from_dense(np.ones((1, 1), np.float32))), tmp_path / "dataset.h5")
    kept = [
        read_model(tmp_path / "model.h5").network,
        read_dataset(tmp_path / "dataset.h5").network,
        pickle.loads(pickle.dumps(steep)),
        copy.deepcopy(steep),
        steep.prefix(1),
        steep.pruned(1.0),
        steep.with_bias(0.0),
    ]
    assert all(network.needs_float64 for network in kept)
    rows = np.array([[0.7]], np.float32)
    for network in kept[:4]:
        assert Session(network)(rows) == infer(network, rows).dense == 1024
    assert pickle.loads(pickle.dumps(Session(steep)))(rows) == 1024
    write_model(tmp_path / "usual.h5", Model(Network(steep.layers), "mse", False))
    assert not read_model(tmp_path / "usual.h5").network.needs_float64


def test_scalings_of_the_input_are_looked_at() -> None:
    """Time stamps of this decade, in seconds, scaled by an hour."""
    pipeline = pytest.importorskip("sklearn.pipeline", reason="makes a pipeline")
    from sklearn.neural_network import MLPRegressor
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    hours, other = rng.standard_normal(300), rng.random(300)
    rows = np.stack([1.7e9 + 3600 * hours, other], axis=1)
    regressor = MLPRegressor(hidden_layer_sizes=(20,), max_iter=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = pipeline.make_pipeline(StandardScaler(), regressor).fit(rows, np.sin(2 * hours) + other)
    with pytest.warns(RoundingWarning):
        network = from_sklearn(fitted)
    assert Session(network)(rows)[:, 0] == pytest.approx(fitted.predict(rows), abs=1e-5)
    fitted[0].mean_[0], fitted[0].scale_[0] = 12.0, 7.0  # hours of a day, of which float32 has all digits
    assert not from_sklearn(fitted).needs_float64


@settings(max_examples=20)
@given(centre=st.floats(1e5, 1e10), scale=st.floats(1e-3, 90), seed=st.integers(0, 99))
def test_inputs_far_from_zero_are_moved_there_first(centre: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, standard = rng.standard_normal((3, 4)), rng.standard_normal((5, 3))
    signal = inputs(None, "").scaled(np.full(3, 1 / scale), np.full(3, -centre / scale)).connected(weights, np.ones(4))
    network, rows = signal.network(), standard * scale + centre
    expected = (rows - centre) / scale @ weights + 1
    left = centre / scale * 2.0**-24  # of the centre, which is a float32 number
    assert Session(network, precision="float64")(rows) == pytest.approx(expected, rel=1e-5, abs=1e-5 + 1e-6 * left)


@pytest.mark.parametrize("name", ["lenet300-dns", "lenet300-lobs"])
def test_real_networks_are_not(shared_data: Path, name: str) -> None:
    network = from_weights(real_weights(shared_data, name))  # a warning is an error in tests
    found = rounding_of(network)
    assert 0 < found < MOST / 100


@pytest.mark.parametrize("activation", [ReLU(), Tanh(), Sigmoid()])
@pytest.mark.parametrize("sizes", [[20, 1], [784, 300, 100, 10], [64] * 121])
def test_usual_weights_are_not(sizes: list[int], activation: Any, rng: np.random.Generator) -> None:
    found = rounding_of(perceptron(rng, sizes, activation))
    assert found < MOST / 10


def test_it_agrees_with_what_sessions_compute(rng: np.random.Generator) -> None:
    network = perceptron(rng, [50, 40, 30, 5], ReLU())
    rows = rng.uniform(-1, 1, (200, 50)).astype(np.float32)
    exact, rounded = (Session(network, device=device)(rows) for device in ("reference", "cpu"))
    found = rounding_of(network)
    assert 0.1 < found / (np.abs(exact - rounded).max() / np.abs(exact).max()) < 10


def test_files_are_looked_at(tmp_path: Path) -> None:
    np.savez(tmp_path / "steep.npz", **STEEP)
    with pytest.warns(RoundingWarning):
        files.read_model(tmp_path / "steep.npz")


def test_the_command_line_says_so_in_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "steep.npz", **STEEP)
    command = [sys.executable, "-m", "sparsenn", "info", str(tmp_path / "steep.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: float32 rounds away ")
    assert "in float64 unless" in line


def test_onnx_is_looked_at() -> None:
    nodes = chain(("Gemm w b", {"transB": 1}), "Relu", ("Gemm v", {"transB": 1}))
    numbers = {"w": STEEP["weight1"], "b": STEEP["bias1"], "v": STEEP["weight2"]}
    with pytest.warns(RoundingWarning):
        from_onnx(model(nodes, ["n", 1], **numbers))


def test_torch_is_looked_at() -> None:
    torch = pytest.importorskip("torch", reason="makes modules")
    first, last = torch.nn.Linear(1, 2), torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        for place, name in ((first.weight, "weight1"), (first.bias, "bias1"), (last.weight, "weight2")):
            place.copy_(torch.from_numpy(STEEP[name]))
    with pytest.warns(RoundingWarning):
        sparsenn.from_torch(torch.nn.Sequential(first, torch.nn.ReLU(), last))
