"""What float32 rounds of imported networks: measured, and told where it is much."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_networks import real_weights

from sparsenn import Session, from_weights
from sparsenn.io import model_files
from sparsenn.io import rounding as module
from sparsenn.io.rounding import MOST, RoundingWarning, check_rounding, rounding_of
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Identity, Linear, MaxPool2d, ReLU, Sigmoid, Softmax, Tanh
from sparsenn.network import Network

STEEP = {
    "weight1": np.array([[2.0**33], [3 * 2.0**33]], np.float32),
    "bias1": np.array([-(2.0**32), -3 * 2.0**32 - 1024], np.float32),
    "weight2": np.array([[3.0, -1.0]], np.float32),
}
"""A step of height 1024 at 0.5, the difference of numbers up to 1.3e10, of which float32 keeps multiples of 1024."""


def steep_convolution() -> Network:
    first = Conv2d(STEEP["weight1"].reshape(2, 1, 1, 1), STEEP["bias1"], ReLU())
    second = Conv2d(STEEP["weight2"].reshape(1, 2, 1, 1))
    return Network((first, second, Flatten()), image=(1, 2, 2))


def perceptron(rng: np.random.Generator, sizes: list[int], activation: Any) -> Network:
    """Of the weights that initialisers draw: He's for ReLU, Glorot's for others."""
    pairs, gain = list(pairwise(sizes)), 2 if isinstance(activation, ReLU) else 1
    layers = [
        Linear(rng.standard_normal(pair) * np.sqrt(gain / pair[0]), rng.standard_normal(pair[1]) * 0.1, activation)
        for pair in pairs[:-1]
    ]
    return Network((*layers, Linear(rng.standard_normal(pairs[-1]) * np.sqrt(1 / pairs[-1][0])), Softmax()))


def test_weights_that_cancel_are_told() -> None:
    with pytest.warns(RoundingWarning, match=r'float32 rounds away .* precision="float64" [(]--precision float64[)]'):
        network = from_weights(STEEP)
    rows = np.linspace(0.6, 1, 50, dtype=np.float32)[:, None]
    wrong, right = (Session(network, device="cpu", precision=name)(rows) for name in ("float32", "float64"))
    assert (right == 1024).all()
    assert np.abs(wrong - right).max() > 100


def test_what_overflows_is_told() -> None:
    large = np.full((1, 2), 1e30, np.float32)
    network = Network((Linear(large, None, Identity()), Linear(large.T, None, Identity())))
    assert rounding_of(network) == np.inf
    with pytest.warns(RoundingWarning, match="rounds away all of this network's outputs"):
        check_rounding(network)


def test_convolutions_that_cancel_are_told() -> None:
    with pytest.warns(RoundingWarning):
        check_rounding(steep_convolution())


@pytest.mark.parametrize("name", ["lenet300-dns", "lenet300-lobs"])
def test_real_networks_are_not(shared_data: Path, name: str) -> None:
    network = from_weights(real_weights(shared_data, name))  # a warning is an error in tests
    found = rounding_of(network)
    assert found is not None
    assert 0 < found < MOST / 100


def test_a_real_network_of_images_is_not(shared_data: Path) -> None:
    steps = ["conv1", MaxPool2d(2), "conv2", MaxPool2d(2), Flatten(), "ip1", ReLU(), "ip2"]
    network = from_weights(real_weights(shared_data, "lenet5-dns"), steps, image=(1, 28, 28))
    found = rounding_of(network)
    assert found is not None
    assert 0 < found < MOST / 50


@pytest.mark.parametrize("activation", [ReLU(), Tanh(), Sigmoid()])
@pytest.mark.parametrize("sizes", [[20, 1], [784, 300, 100, 10], [64] * 121])
def test_usual_weights_are_not(sizes: list[int], activation: Any, rng: np.random.Generator) -> None:
    found = rounding_of(perceptron(rng, sizes, activation))
    assert found is not None
    assert found < MOST / 10


def test_pools_and_shares_are_followed(rng: np.random.Generator) -> None:
    filters = rng.standard_normal((4, 2, 3, 3))
    image = (Conv2d(filters, rng.standard_normal(4), ReLU()), MaxPool2d(2), AvgPool2d(3), Flatten(), Softmax())
    found = rounding_of(Network(image, image=(2, 8, 8)))
    assert found is not None
    assert 0 < found < 1e-5


def test_it_agrees_with_what_sessions_compute(rng: np.random.Generator) -> None:
    network = perceptron(rng, [50, 40, 30, 5], ReLU())
    rows = rng.uniform(-1, 1, (200, 50)).astype(np.float32)
    exact, rounded = (Session(network, device=device)(rows) for device in ("reference", "cpu"))
    found = rounding_of(network)
    assert found is not None
    assert 0.1 < found / (np.abs(exact - rounded).max() / np.abs(exact).max()) < 10


def test_it_is_the_same_each_time(rng: np.random.Generator) -> None:
    network = perceptron(rng, [50, 40, 5], ReLU())
    assert rounding_of(network) == rounding_of(network)


def test_large_networks_take_fewer_rows_or_none(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    network = perceptron(rng, [50, 40, 5], ReLU())
    monkeypatch.setattr(module, "MOST_WORK", network.multiply_adds)
    assert rounding_of(network) is not None
    monkeypatch.setattr(module, "MOST_WORK", network.multiply_adds - 1)
    assert rounding_of(network) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_rounding(network) is network


def test_too_little_memory_is_no_error(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    def fail(network: Network) -> float:
        raise MemoryError

    monkeypatch.setattr(module, "rounding_of", fail)
    network = perceptron(rng, [5, 4], ReLU())
    assert check_rounding(network) is network


def test_files_are_looked_at(tmp_path: Path) -> None:
    np.savez(tmp_path / "steep.npz", **STEEP)
    with pytest.warns(RoundingWarning):
        model_files.read_model(tmp_path / "steep.npz")


def test_the_command_line_says_so_in_a_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "steep.npz", **STEEP)
    command = [sys.executable, "-m", "sparsenn", "info", str(tmp_path / "steep.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: float32 rounds away ")
    assert "--precision float64" in line


def test_onnx_is_looked_at() -> None:
    graphs = pytest.importorskip("onnx_graphs", reason="makes ONNX files", exc_type=ImportError)
    from sparsenn import from_onnx

    nodes = [graphs.node("Gemm", "x", "w", "b", to="a", transB=1), graphs.node("Relu", "a", to="h")]
    given = {"w": STEEP["weight1"], "b": STEEP["bias1"], "v": STEEP["weight2"]}
    with pytest.warns(RoundingWarning):
        from_onnx(graphs.model([*nodes, graphs.node("Gemm", "h", "v", transB=1)], ["n", 1], **given))


def test_torch_is_looked_at() -> None:
    torch = pytest.importorskip("torch", reason="makes modules")
    from sparsenn import from_torch

    first, last = torch.nn.Linear(1, 2), torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        for place, name in ((first.weight, "weight1"), (first.bias, "bias1"), (last.weight, "weight2")):
            place.copy_(torch.from_numpy(STEEP[name]))
    with pytest.warns(RoundingWarning):
        from_torch(torch.nn.Sequential(first, torch.nn.ReLU(), last))
