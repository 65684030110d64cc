"""Pruned networks that others trained, through ONNX files of dense and of sparse weights: what they get right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_networks import DEVICES, RIGHT, images_and_labels, real_weights

pytest.importorskip("onnx", reason="reads ONNX files")

from sparsenn import Conv2d, Flatten, Identity, MaxPool2d, Network, ReLU, Session, from_onnx, to_onnx
from sparsenn.layers.sparse_or_dense import fully_connected


def network(name: str, arrays: dict[str, Any]) -> Network:
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


@DEVICES
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("sparse", [False, True])
def test_as_many_are_right(shared_data: Path, name: str, sparse: bool, tmp_path: Path, device: str) -> None:
    to_onnx(network(name, real_weights(shared_data, name)), tmp_path / "network.onnx", sparse=sparse)
    rows, labels = images_and_labels(shared_data, name)
    outputs = Session(from_onnx(tmp_path / "network.onnx"), device=device)(rows)
    assert int((outputs.argmax(axis=1) == labels).sum()) == RIGHT[name]
