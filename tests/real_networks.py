"""Real pruned networks and the images that they were made for, where this machine has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.io import read_idx

__all__ = ["DEVICES", "RIGHT", "images_and_labels", "real_weights"]

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

RIGHT = {"lenet300-dns": 9801, "lenet300-lobs": 9664, "lenet5-dns": 9909}
"""Images of 10,000 that each network classifies rightly, as counted with NumPy in float64."""

_DIVISOR = {"lenet5-dns": 256}


def real_weights(shared_data: Path, name: str) -> dict[str, Any]:
    with np.load(_present(shared_data / "networks" / f"{name}.npz")) as arrays:
        return dict(arrays)


def images_and_labels(shared_data: Path, name: str) -> tuple[Any, Any]:
    """The test images as the network takes them, float32 of shape (10000, 784), and their labels."""
    folder = shared_data / "mnist"
    images = read_idx(_present(folder / "t10k-images-idx3-ubyte.gz")).reshape(-1, 784)
    return images / np.float32(_DIVISOR.get(name, 255)), read_idx(folder / "t10k-labels-idx1-ubyte.gz")


def _present(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"the real data is not here: no {path}")
    return path
