"""Networks and rows that are recorded, made of random numbers or of data that lies in --data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from packed_images import packed_path, unpack_images
from peers import Problem
from results_file import ROOT

from sparsenn import CSC, Identity, Linear, Network, ReLU, SparseLinear, from_weights, radixnet, read_model
from sparsenn.datasets import mnist_inputs
from sparsenn.formats import index_dtype
from sparsenn.io import CHALLENGE_BIAS, read_idx
from sparsenn.training import resize_bilinear

OFFICIAL_COUNTS = {(1024, 120): 1812, (4096, 120): 1801, (16384, 120): 1918, (65536, 120): 1994}
"""Categories of the challenge's 60,000 inputs."""

OFFICIAL_FOLDER = "challenge-1024x120-first1200"

IMAGE_SIDE = 86
SEED = 20261122


def data_folder(data: Path, name: str) -> Path:
    """Return a folder of the data.

    Raises
    ------
    FileNotFoundError
        It is not there.
    """
    folder = data / name
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    return folder


def digits(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's test images, (10,000, 28, 28) uint8, and their classes."""
    folder = data_folder(data, "mnist")
    images, classes = (read_idx(folder / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    return images, classes.astype(np.int64)


def random_rows(rows: int, width: int, seed: int = SEED) -> np.ndarray:
    """Return (rows, width) normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


# ---- Networks -------------------------------------------------------------------------------------------------------


def _bias(rng: np.random.Generator, outputs: int) -> np.ndarray:
    return (rng.standard_normal(outputs) / 10).astype(np.float32)


def _scale(degree: float) -> np.float32:
    """Return the factor with which sums of `degree` products of normal numbers, behind a ReLU, stay as large."""
    return np.float32(math.sqrt(2 / max(1.0, degree)))


def chain(widths: Sequence[int], seed: int = SEED) -> Network:
    """Return dense layers of random weights, ReLU after all but the last."""
    rng = np.random.default_rng(seed)
    layers = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=2):
        weights = rng.standard_normal((inputs, outputs), dtype=np.float32) * _scale(inputs)
        layers.append(Linear(weights, _bias(rng, outputs), Identity() if number == len(widths) else ReLU()))
    return Network(tuple(layers))


def stratified(widths: Sequence[int], degrees: Sequence[int], seed: int = SEED) -> Network:
    """Return sparse layers with ReLU; each output has `degrees` weights, one in each equal range of the inputs."""
    rng = np.random.default_rng(seed)
    layers = []
    for (inputs, outputs), degree in zip(pairwise(widths), degrees, strict=True):
        step = inputs // degree
        indices = np.arange(degree) * step + rng.integers(0, step, (outputs, degree))
        values = rng.standard_normal(outputs * degree, dtype=np.float32) * _scale(degree)
        starts = np.arange(outputs + 1, dtype=np.int64) * degree
        weights = CSC((inputs, outputs), starts, indices.ravel().astype(index_dtype(inputs)), values)
        layers.append(SparseLinear(weights, _bias(rng, outputs), ReLU()))
    return Network(tuple(layers))


def sparse_layer(
    rng: np.random.Generator, inputs: int, outputs: int, density: float, together: int = 1
) -> SparseLinear:
    """Return a layer with ReLU of weights at random places: each place holds one with probability `density`.

    Parameters
    ----------
    together : neighbouring outputs that have weights of the same inputs, as pruning by blocks leaves them.
    """
    mask = np.repeat(rng.random((outputs // together, inputs), dtype=np.float32) < density, together, axis=0)
    starts = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    values = rng.standard_normal(int(starts[-1]), dtype=np.float32) * _scale(density * inputs)
    places = (np.flatnonzero(mask) % inputs).astype(index_dtype(inputs))
    return SparseLinear(CSC((inputs, outputs), starts, places, values), _bias(rng, outputs), ReLU())


def with_sparse_middle(widths: Sequence[int], density: float, seed: int = SEED) -> Network:
    """Return a chain whose first and last layers are dense, and those between sparse, of weights at random places."""
    rng = np.random.default_rng(seed)
    ends = chain(widths, seed)
    middle = [sparse_layer(rng, *shape, density) for shape in list(pairwise(widths))[1:-1]]
    return Network((ends[0], *middle, ends[len(ends) - 1]))


# ---- Problems -------------------------------------------------------------------------------------------------------


def challenge_problem(neurons: int, data: Path) -> Problem:
    """Return a network of the challenge, 120 layers, with all inputs: from packed images, or made from MNIST."""
    network, packed = radixnet(neurons, 120, bias=CHALLENGE_BIAS[neurons]), data / "images"
    if packed_path(packed, neurons).is_file():
        inputs = unpack_images(packed, neurons)
    else:
        inputs = mnist_inputs(neurons, data_folder(data, "mnist"))
    return Problem(network, inputs, categories=OFFICIAL_COUNTS[neurons, 120])


def trained_problem(data: Path) -> Problem:
    return Problem(with_sparse_middle([784, *[128] * 19, 10], 0.6), random_rows(10_000, 784))


def lenet300_problem(rows: int, data: Path) -> Problem:
    network = from_weights(data_folder(data, "networks") / "lenet300-dns.npz")
    images, classes = digits(data)
    return Problem(network, images[:rows].reshape(rows, -1).astype(np.float32) / 255, classes=classes[:rows])


def random_problem(width: int, degree: int, layers: int, rows: int, data: Path) -> Problem:
    return Problem(stratified((width,) * (layers + 1), (degree,) * layers), random_rows(rows, width))


def layer_problem(width: int, density: float, rows: int, together: int, data: Path) -> Problem:
    layer = sparse_layer(np.random.default_rng(width), width, width, density, together)
    return Problem(Network((layer,)), random_rows(rows, width))


def narrow_problem(rows: int, data: Path) -> Problem:
    return Problem(chain([72, 64, 64, 4]), random_rows(rows, 72))


@cache
def _enlarged(data: Path) -> tuple[np.ndarray, np.ndarray]:
    images, classes = digits(data)
    return resize_bilinear(images, IMAGE_SIDE, IMAGE_SIDE).reshape(len(images), -1), classes


def lenet86_problem(name: str, data: Path) -> Problem:
    images, classes = _enlarged(data)
    return Problem(read_model(ROOT / "datasets" / name).network, images, classes=classes)
