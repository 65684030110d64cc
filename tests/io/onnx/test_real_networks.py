"""Pruned networks that others trained, through ONNX files of dense and of sparse weights: what they get right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="reads ONNX files")

from sparsenn import Conv2d, Flatten, Identity, MaxPool2d, Network, ReLU, Session, from_onnx, to_onnx
from sparsenn.io import read_idx
from sparsenn.layers.sparse_or_dense import fully_connected

FOLDER = os.environ.get("SPARSENN_NETWORKS", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="SPARSENN_NETWORKS names no folder of networks, with mnist beside it"
)
RIGHT = {"lenet300-dns": 9801, "lenet300-lobs": 9664, "lenet5-dns": 9909}
"""Of the 10,000 test images, in float64; classes near a tie may differ in float32."""


def network(name: str) -> Network:
    with np.load(Path(FOLDER, f"{name}.npz")) as kept:
        arrays: dict[str, Any] = dict(kept)
    if name != "lenet5-dns":
        functions = (ReLU(), ReLU(), Identity())
        return Network(
            tuple(
                fully_connected(arrays[f"weight{number}"].T, arrays[f"bias{number}"], function)
                for number, function in enumerate(functions, start=1)
            )
        )
    layers: list[Any] = []
    for part in ("conv1", "conv2"):
        layers += [Conv2d(arrays[f"{part}_weight"], arrays[f"{part}_bias"], Identity()), MaxPool2d(2)]
    layers.append(Flatten())
    for part, function in (("ip1", ReLU()), ("ip2", Identity())):
        layers.append(fully_connected(arrays[f"{part}_weight"].T, arrays[f"{part}_bias"], function))
    return Network(tuple(layers), image=(1, 28, 28))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("sparse", [False, True])
def test_as_many_are_right(name: str, sparse: bool, tmp_path: Path) -> None:
    to_onnx(network(name), tmp_path / "network.onnx", sparse=sparse)
    mnist = Path(FOLDER).parent / "mnist"
    images = read_idx(next(mnist.glob("t10k-images*"))).reshape(10_000, 784)
    labels = read_idx(next(mnist.glob("t10k-labels*")))
    rows = images.astype(np.float32) / np.float32(256 if name == "lenet5-dns" else 255)
    outputs = Session(from_onnx(tmp_path / "network.onnx"), device="cpu")(rows)
    assert abs(int((outputs.argmax(axis=1) == labels).sum()) - RIGHT[name]) <= 2
