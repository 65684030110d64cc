"""The calls of sessions that are recorded: networks, rows, and what their times are held against."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from packed_images import packed_path, unpack_images
from peers import PRECISIONS, Problem
from results_file import ROOT

from sparsenn import CSC, Identity, Linear, Network, ReLU, SparseLinear, radixnet, read_model
from sparsenn.datasets import mnist_inputs
from sparsenn.formats import index_dtype
from sparsenn.io import CHALLENGE_BIAS, read_idx
from sparsenn.training import resize_bilinear

__all__ = [
    "CASES",
    "OFFICIAL_COUNTS",
    "Case",
    "Sources",
    "add_data_option",
    "add_source_options",
    "challenge_problem",
    "random_rows",
    "sources_of",
    "sparse_layer",
]

OFFICIAL_COUNTS = {(1024, 120): 1812, (4096, 120): 1801, (16384, 120): 1918, (65536, 120): 1994}
"""Categories of the challenge's 60,000 inputs."""

IMAGE_SIDE = 86


DATA = Path(os.environ.get("SPARSENN_TEST_DATA") or ROOT.parent / "shared" / "data")
"""Where data is looked for: the folders mnist, networks and the official network."""


@dataclass(frozen=True)
class Sources:
    """Where data lies.

    Parameters
    ----------
    images : the challenge's inputs, as `packed_images.py` writes them; they are made from MNIST if None.
    models : the folder of lenet86.h5.
    """

    data: Path = DATA
    images: Path | None = None
    models: Path = ROOT / "datasets"

    def needed(self, name: str) -> Path:
        """Return a folder of the data.

        Raises
        ------
        FileNotFoundError
            It is not there.
        """
        if not (self.data / name).is_dir():
            raise FileNotFoundError(f"no folder {self.data / name}")
        return self.data / name


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add --data."""
    parser.add_argument("--data", type=Path, default=DATA, help="folder that holds mnist, networks and the like")


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add --data, --images and --models."""
    add_data_option(parser)
    parser.add_argument("--images", type=Path, help="folder that packed_images.py wrote")
    parser.add_argument("--models", type=Path, default=ROOT / "datasets", help="folder of lenet86.h5")


def sources_of(options: argparse.Namespace) -> Sources:
    """Return the sources that options name."""
    return Sources(options.data, options.images, options.models)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Parameters
    ----------
    key : names it on the command line.
    call : says in words what is called with what.
    make : returns the problem.
    device : of the session, `cuda` or `cpu`.
    where : rows are on the `device` or in ordinary memory of the `host`; outputs go there, too.
    precision : asked of the session. Rows on a GPU are float16 where it is `float16`.
    categories : whether the categories, on the host, are the answer; else the outputs are.
    limit, aim : milliseconds; times what `beside` names where that is given.
    beside : what limit and aim are relative to: `peer`, the fastest peer that is as accurate; `numpy`, its products;
        `copy`, what CuPy takes to copy the rows to the device; or the key of a case before.
    merging : whether equal outputs are computed once.
    table : the table that the line is of, one of `TABLES`.
    """

    key: str
    call: str
    make: Callable[[Sources], Problem]
    device: str = "cuda"
    where: str = "device"
    precision: str = "float32"
    categories: bool = False
    limit: float | None = None
    aim: float | None = None
    beside: str | None = None
    merging: bool = True
    table: str = "session"

    def __str__(self) -> str:
        return self.key


# ---- Networks --------------------------------------------------------------------------------------------------------

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


# ---- Problems --------------------------------------------------------------------------------------------------------


def challenge_problem(neurons: int, layers: int, sources: Sources) -> Problem:
    """Return a network of the challenge with all its inputs: from a folder of packed images, or made from MNIST."""
    network, packed = radixnet(neurons, layers, bias=CHALLENGE_BIAS[neurons]), sources.images
    if packed is not None and packed_path(packed, neurons).is_file():
        inputs = unpack_images(packed, neurons)
    else:
        inputs = mnist_inputs(neurons, sources.needed("mnist"))
    return Problem(network, inputs, categories=OFFICIAL_COUNTS.get((neurons, layers)))


def trained_problem(sources: Sources, rows: int = 10_000) -> Problem:
    widths = [784, *[128] * 19, 10]
    return Problem(with_sparse_middle(widths, 0.6), random_rows(rows, widths[0]))


def lenet300_problem(sources: Sources, name: str = "lenet300-dns.npz", rows: int = 10_000) -> Problem:
    network = pruned_lenet300(sources.needed("networks") / name)
    images, classes = digits(sources.needed("mnist"))
    return Problem(network, images[:rows].reshape(rows, -1).astype(np.float32) / 255, classes=classes[:rows])


def random_problem(width: int, degree: int, layers: int, rows: int, sources: Sources) -> Problem:
    return Problem(stratified(width, degree, layers), random_rows(rows, width))


def layer_problem(width: int, density: float, rows: int, sources: Sources, together: int = 1) -> Problem:
    layer = sparse_layer(np.random.default_rng(width), width, width, density, together=together)
    return Problem(Network((layer,)), random_rows(rows, width))


def narrow_problem(rows: int, sources: Sources) -> Problem:
    return Problem(chain([72, 64, 64, 4]), random_rows(rows, 72))


@cache
def _enlarged(mnist: Path) -> tuple[np.ndarray, np.ndarray]:
    images, classes = digits(mnist)
    return resize_bilinear(images, IMAGE_SIDE, IMAGE_SIDE).reshape(len(images), -1), classes


def lenet86_problem(name: str, sources: Sources) -> Problem:
    network = read_model(sources.models / name).network
    images, classes = _enlarged(sources.needed("mnist"))
    return Problem(network, images, classes=classes)


def _precisions(
    key: str, call: str, make: Callable[[Sources], Problem], table: str = "session", **limits: tuple[float, float]
) -> list[Case]:
    """Return a case for each precision that has a limit and an aim."""
    return [
        Case(f"{key}-{precision}", call, make, precision=precision, limit=limit, aim=aim, table=table)
        for precision, (limit, aim) in limits.items()
    ]


def _layers(key: str, width: int, density: float, rows: int, **limits: tuple[float, float]) -> list[Case]:
    """Return the cases of one layer of weights at random places."""
    call = f"one layer {width} wide, {density:.0%} of the weights, {rows:,} rows"
    return _precisions(key, call, partial(layer_problem, width, density, rows), "sparse-layers", **limits)


SMALL, LARGE = partial(challenge_problem, 1024, 120), partial(challenge_problem, 65536, 120)
WHOLE, PRUNED = partial(lenet86_problem, "lenet86.h5"), partial(lenet86_problem, "lenet86-pruned.h5")
TRAINED = "784 → 128 → 18 × (128, 60 % of the weights) → 10, 10,000 rows"
LENET300 = "LeNet-300-100 with 1.9 % of its weights, 10,000 rows"

CASES: tuple[Case, ...] = (
    Case("challenge-1024", "1024 × 120, official inputs on the device → categories", SMALL, categories=True, limit=0.60,
         aim=0.45),
    Case("challenge-1024-host", "1024 × 120, official inputs in SciPy's CSR → categories", SMALL, where="host",
         categories=True, limit=8, aim=3),
    *_precisions("trained", TRAINED, trained_problem, float32=(0.30, 0.15), tf32=(0.16, 0.07), float16=(0.10, 0.045)),
    *(
        Case(f"lenet300-{precision}", LENET300, lenet300_problem, precision=precision, limit=1, aim=0.5, beside="peer")
        for precision in PRECISIONS
    ),
    *_precisions("1024-32", "24 × 1024, 32 weights an output, 60,000 rows",
                 partial(random_problem, 1024, 32, 24, 60_000), float32=(11, 7)),
    *_precisions("1024-102", "24 × 1024, 102 weights an output, 60,000 rows",
                 partial(random_problem, 1024, 102, 24, 60_000), float32=(30, 20), tf32=(13, 8)),
    *_precisions("4096-32", "12 × 4096, 32 weights an output, 20,000 rows",
                 partial(random_problem, 4096, 32, 12, 20_000), float32=(9, 6)),
    *_precisions("16384-32", "6 × 16384, 32 weights an output, 10,000 rows",
                 partial(random_problem, 16384, 32, 6, 10_000), float32=(10, 7)),
    *_layers("layer-1024", 1024, 0.10, 60_000, float32=(0.70, 0.50), tf32=(0.35, 0.22), float16=(0.25, 0.15)),
    *_layers("layer-4096", 4096, 0.05, 60_000, float32=(5.5, 4), tf32=(2.8, 1.8), float16=(2.0, 1.2)),
    *_layers("layer-16384", 16384, 0.01, 10_000, float32=(4.5, 3), tf32=(3.0, 2), float16=(2.5, 1.5)),
    *_layers("layer-4096-denser", 4096, 0.20, 60_000, float32=(20, 14), tf32=(10, 7), float16=(7, 4.5)),
    Case("blocks-4096", "one layer 4096 wide, 5% of the weights in blocks of 16 outputs, 60,000 rows",
         partial(layer_problem, 4096, 0.05, 60_000, together=16), table="sparse-layers"),
    *(
        Case(f"unmerged-{neurons}", f"{neurons} × 120, no outputs merged, official inputs on the device → categories",
             partial(challenge_problem, neurons, 120), categories=True, limit=limit, aim=aim, merging=False,
             table="sparse-layers")
        for neurons, limit, aim in ((1024, 2.0, 1.2), (4096, 8, 5), (16384, 30, 18), (65536, 130, 80))
    ),
    Case("lenet86-host", "LeNet86, 10,000 images in NumPy → probabilities in NumPy", WHOLE, where="host", limit=1.3,
         aim=1.05, beside="copy"),
    Case("lenet86", "LeNet86, 10,000 images on the device", WHOLE),
    *(Case(f"lenet86-{precision}", "LeNet86, 10,000 images on the device", WHOLE, precision=precision)
      for precision in PRECISIONS[1:]),
    Case("lenet86-pruned", "pruned LeNet86, 10,000 images on the device", PRUNED, limit=1.2, aim=1.0, beside="lenet86"),
    Case("narrow-1", "72-64-64-4, one row on the device", partial(narrow_problem, 1), limit=0.035, aim=0.015),
    Case("narrow-128", "72-64-64-4, 128 rows on the device", partial(narrow_problem, 128), limit=0.035, aim=0.015),
    Case("challenge-65536", "65536 × 120, official inputs on the device → categories", LARGE, categories=True, limit=12,
         aim=10.5),
    Case("cpu-lenet300-1", "LeNet-300-100 with 1.9 % of its weights, one row", partial(lenet300_problem, rows=1), "cpu",
         "host", limit=0.05, aim=0.015),
    Case("cpu-trained", TRAINED, trained_problem, "cpu", "host", limit=1.0, aim=0.8, beside="numpy"),
    Case("cpu-challenge-1024", "1024 × 120, official inputs in SciPy's CSR → categories", SMALL, "cpu", "host",
         categories=True),
)  # fmt: skip
