"""Networks and rows that sessions are measured with: random ones, the challenge's, and pruned ones from files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from packed_images import packed_path, unpack_images

from sparsenn import CSC, CSR, Identity, Linear, Network, ReLU, SparseLinear, radixnet
from sparsenn.datasets import mnist_inputs
from sparsenn.formats import index_dtype
from sparsenn.io import CHALLENGE_BIAS, read_idx

__all__ = [
    "as_dense",
    "chain",
    "challenge",
    "digits",
    "pruned_lenet300",
    "random_rows",
    "scattered",
    "sparse_layer",
    "stratified",
    "with_sparse_middle",
]

SEED = 20261122


def random_rows(rows: int, width: int, seed: int = SEED) -> np.ndarray:
    """Return (rows, width) normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


def _bias(rng: np.random.Generator, outputs: int, mean: float = 0.0) -> np.ndarray:
    return (mean + rng.standard_normal(outputs) / 10).astype(np.float32)


def _scale(degree: float) -> np.float32:
    """Return what keeps sums of so many products of normal numbers, behind a ReLU, as large as these."""
    return np.float32(math.sqrt(2 / max(1.0, degree)))


def chain(widths: Sequence[int], seed: int = SEED) -> Network:
    """Return dense layers of random weights, ReLU after all but the last."""
    rng = np.random.default_rng(seed)
    layers = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=2):
        weights = rng.standard_normal((inputs, outputs), dtype=np.float32) * _scale(inputs)
        layers.append(Linear(weights, _bias(rng, outputs), Identity() if number == len(widths) else ReLU()))
    return Network(tuple(layers))


def stratified(width: int, degree: int, layers: int, seed: int = SEED) -> Network:
    """Return square sparse layers with ReLU; each output has so many weights, one in each part of the inputs."""
    rng = np.random.default_rng(seed)
    step = width // degree
    indptr = np.arange(width + 1, dtype=np.int64) * degree
    made = []
    for _ in range(layers):
        indices = np.arange(degree) * step + rng.integers(0, step, (width, degree))
        values = rng.standard_normal(width * degree, dtype=np.float32) * _scale(degree)
        weights = CSC((width, width), indptr, indices.ravel().astype(index_dtype(width)), values)
        made.append(SparseLinear(weights, _bias(rng, width), ReLU()))
    return Network(tuple(made))


def scattered(rng: np.random.Generator, inputs: int, outputs: int, density: float) -> CSC:
    """Return weights at random places: each holds one with probability `density`."""
    mask = rng.random((outputs, inputs), dtype=np.float32) < density
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    values = rng.standard_normal(int(indptr[-1]), dtype=np.float32) * _scale(density * inputs)
    return CSC((inputs, outputs), indptr, (np.flatnonzero(mask) % inputs).astype(index_dtype(inputs)), values)


def sparse_layer(
    rng: np.random.Generator,
    inputs: int,
    outputs: int,
    density: float,
    bias: float = 0.0,
    last: bool = False,
    together: int = 1,
) -> SparseLinear:
    """Return a layer of weights at random places; ReLU unless it is the last, biases about `bias`.

    together : neighbouring outputs that have weights of the same inputs, as pruning by blocks leaves them.
    """
    weights = scattered(rng, inputs, outputs // together, density)
    if together > 1:
        pieces = [np.tile(piece, together) for piece in np.split(weights.indices, weights.indptr[1:-1])]
        indptr = np.concatenate([[0], np.cumsum(np.repeat(np.diff(weights.indptr), together))])
        values = rng.standard_normal(int(indptr[-1]), dtype=np.float32) * _scale(density * inputs)
        weights = CSC((inputs, outputs), indptr, np.concatenate(pieces), values)
    return SparseLinear(weights, _bias(rng, outputs, bias), Identity() if last else ReLU())


def with_sparse_middle(widths: Sequence[int], density: float, seed: int = SEED) -> Network:
    """Return a chain whose first and last layers are dense, and those between sparse, of weights at random places."""
    rng = np.random.default_rng(seed)
    ends = chain(widths, seed)
    shapes = list(pairwise(widths))
    middle = [sparse_layer(rng, *shape, density) for shape in shapes[1:-1]]
    return Network((ends[0], *middle, ends[len(ends) - 1]))


def as_dense(network: Network) -> Network:
    """Return the network with its sparse layers stored as dense ones."""
    return Network(tuple(_dense_layer(layer) for layer in network), network.image)


def _dense_layer(layer: Any) -> Any:
    if not isinstance(layer, SparseLinear):
        return layer
    return Linear(layer.weights.to_scipy().toarray(), layer.bias_vector(), layer.activation)


def challenge(neurons: int, layers: int, packed: Path | None, mnist: Callable[[], Path]) -> tuple[Network, CSR]:
    """Return a network of the challenge with all its inputs: from a folder of packed images, or made from MNIST.

    Parameters
    ----------
    packed : what `packed_images.py` wrote, as far as there is something.
    mnist : returns the folder with MNIST's training images; called where it is needed.
    """
    network = radixnet(neurons, layers, bias=CHALLENGE_BIAS[neurons])
    if packed is not None and packed_path(packed, neurons).is_file():
        return network, unpack_images(packed, neurons)
    return network, mnist_inputs(neurons, mnist())


def pruned_lenet300(path: Path) -> Network:
    """Return the fully connected network of an .npz file: weight1, bias1, weight2 and so on, weights by output."""
    from scipy.sparse import csc_array

    with np.load(path) as arrays:
        count = sum(name.startswith("weight") for name in arrays.files)
        layers = [
            SparseLinear.from_scipy(
                csc_array(arrays[f"weight{number}"].T.astype(np.float32)),
                arrays[f"bias{number}"].astype(np.float32),
                ReLU() if number < count else Identity(),
            )
            for number in range(1, count + 1)
        ]
    return Network(tuple(layers))


def digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's test images, (10,000, 28, 28) uint8, and their classes."""
    images, classes = (read_idx(folder / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    return images, classes.astype(np.int64)
