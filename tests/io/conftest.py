"""What the tests of files share: small datasets, one of them with every kind of layer, and damaged bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsenn.formats import COO, CSC, coo_to_csc, coo_to_csr
from sparsenn.io import Dataset
from sparsenn.layers import Identity, ReLU, SparseLinear, Tanh
from sparsenn.network import Network


def regular(neurons: int, weight: float, shift: int = 1) -> CSC:
    """Two entries of one value in every column: the diagonal, and `shift` beside it."""
    diagonal = np.arange(neurons)
    rows = np.concatenate([diagonal, (diagonal + shift) % neurons])
    values = np.full(2 * neurons, weight, np.float32)
    return coo_to_csc(COO.from_arrays((neurons, neurons), rows, np.tile(diagonal, 2), values))


@pytest.fixture
def challenge_like() -> Dataset:
    """What the official layout can hold: 8 neurons, 3 layers, one bias, and a last image that is empty."""
    weights = [regular(8, 0.0625), regular(8, 0.5, 2), regular(8, 1.0, 3)]
    network = Network(tuple(SparseLinear(matrix, -0.3, ReLU(32.0)) for matrix in weights))
    pixels = np.array([[0, 0, 1, 3, 3], [0, 7, 2, 1, 4]])
    images = coo_to_csr(COO.from_arrays((6, 8), *pixels, np.ones(5, np.float32)))
    return Dataset("challenge-8x3", network, images, np.array([0, 3, 5]))


@pytest.fixture
def mixed() -> Dataset:
    """Layers of every kind: iso and not, float64, regular and not, empty, beyond 16 bits wide; each sort of bias."""
    wide = 70_000
    rng = np.random.default_rng(5)
    spread = coo_to_csc(
        COO.from_arrays((8, wide), rng.integers(0, 8, 50), np.arange(50) * 1000, np.ones(50, np.float32))
    )
    gather = coo_to_csc(COO.from_arrays((wide, 4), np.arange(9) * 7000, np.arange(9) % 4, rng.normal(size=9)))
    empty = coo_to_csc(COO.from_arrays((4, 3), np.empty(0, int), np.empty(0, int), np.empty(0, np.float32)))
    layers = (
        SparseLinear(regular(8, 0.0625), -0.3, ReLU(32.0)),
        SparseLinear(regular(8, -2.0, 3), None, ReLU()),
        SparseLinear(spread, 0.1, Identity()),
        SparseLinear(gather, np.arange(4, dtype=np.float32), Tanh()),
        SparseLinear(empty, np.arange(3, dtype=np.float32) - 1, ReLU(0.5)),
    )
    rows, columns = np.array([[0, 0, 2, 2, 2], [1, 3, 0, 4, 7]])
    inputs = coo_to_csr(COO.from_arrays((5, 8), rows, columns, rng.normal(size=5).astype(np.float32)))
    return Dataset("mixed", Network(layers), inputs, np.array([2, 4]), {"seed": "5", "made by": "a test\0 ünïcode"})


@pytest.fixture
def corrupted(tmp_path: Path) -> Callable[[bytes, str], Path]:
    """Write bytes to a file and return its path."""

    def write(data: bytes, name: str = "file.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write
