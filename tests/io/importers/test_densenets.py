"""Dense blocks, in which poolings come first in concatenations: from ONNX, PyTorch and Keras alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import conv2d, layer, write_functional

from sparsenn import Session, from_keras, from_torch


def outputs_of(network: Any, x: Any) -> Any:
    return Session(network, device="cpu")(np.asarray(x).reshape(len(x), -1))


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("after", ["BatchNormalization", "Relu", "Clip", "Mul", "Add", "Conv"])
def test_a_pool_that_comes_first_in_a_concatenation(pool: str, after: str) -> None:
    pytest.importorskip("onnx", reason="reads ONNX files")
    from onnx_graphs import check, model, node, normal

    whole = pool.startswith("Global")
    attributes: dict[str, Any] = {} if whole else {"kernel_shape": [2, 2], "strides": [2, 2]}
    other = {"strides": [6, 6], "kernel_shape": [1, 1]} if whole else {"strides": [2, 2], "kernel_shape": [1, 1]}
    numbers = {name: normal(5) for name in ("s", "b", "m")} | {"v": np.abs(normal(5)) + 1, "c": normal(5, 1, 1)}
    taken = {"BatchNormalization": ["s", "b", "m", "v"], "Clip": ["low"], "Mul": ["c"], "Add": ["c"], "Conv": ["G"]}
    nodes = [
        node(pool, "x", to="p", **attributes),
        node("Conv", "x", "F", to="f", **other),
        node("Concat", "p", "f", to="k", axis=1),
        node(after, "k", *taken.get(after, [])),
    ]
    constants = {**numbers, "F": normal(3, 2, 1, 1), "G": normal(4, 5, 1, 1), "low": np.float32(-0.5)}
    check(model(nodes, ["n", 2, 6, 6], **constants), normal(3, 2, 6, 6))


def test_a_pool_that_comes_first_in_a_module() -> None:
    torch = pytest.importorskip("torch", reason="takes modules of PyTorch")

    class Reduction(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, 2, 1)
            self.norm = torch.nn.BatchNorm2d(7)
            self.last = torch.nn.Conv2d(7, 2, 3)

        def forward(self, x: Any) -> Any:
            both = torch.cat([torch.nn.functional.max_pool2d(x, 2), self.conv(x)], 1)
            return self.last(self.norm(both).relu()).flatten(1)

    torch.manual_seed(0)
    module, x = Reduction(), torch.randn(4, 3, 8, 8)
    module(x)  # so that its running means are some
    module.eval()
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_allclose(outputs_of(from_torch(module, x), x.numpy()), want, rtol=1e-4, atol=1e-5)


def test_a_pool_that_comes_first_in_a_model_of_keras(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    kernel, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 2, 3), (3,)))
    gamma, beta, mean, variance = rng.uniform(0.5, 1.5, (4, 5)).astype(np.float32)
    numbers = {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance}
    layers = [
        layer("MaxPooling2D", pool_size=(2, 2), strides=(2, 2), padding="valid", data_format="channels_last"),
        conv2d(kernel, bias, strides=(2, 2)),
        layer("Concatenate", axis=-1),
        layer("BatchNormalization", numbers, axis=-1, epsilon=1e-3, center=True, scale=True),
        layer("GlobalAveragePooling2D", data_format="channels_last", keepdims=False),
    ]
    taken = [["input"], ["input"], ["l1", "l2"], ["l3"], ["l4"]]
    network = from_keras(write_functional(tmp_path / "model.keras", (4, 6, 2), layers, taken))
    x = rng.standard_normal((3, 4, 6, 2)).astype(np.float32)
    pooled = x.reshape(3, 2, 2, 3, 2, 2).max((2, 4))
    both = np.concatenate([pooled, x[:, ::2, ::2] @ kernel[0, 0] + bias], axis=-1)
    want = ((both - mean) / np.sqrt(variance + 1e-3) * gamma + beta).mean((1, 2))
    np.testing.assert_allclose(outputs_of(network, x.transpose(0, 3, 1, 2)), want, rtol=1e-4, atol=1e-5)
