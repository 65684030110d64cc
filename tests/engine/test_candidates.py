"""What is timed on an H200: the kernels that were the fastest there are among the candidates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sparsenn import radixnet
from sparsenn.backends.machine import H200
from sparsenn.engine.choosing import RowsShape, close_alternatives, segments_of
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.options import Options
from sparsenn.engine.steps import label_of
from sparsenn.formats import CSC
from sparsenn.layers import Linear, ReLU, SparseLinear
from sparsenn.network import Network

PRECISIONS = ("float32", "tf32", "float16")


def chain(*widths: int) -> Network:
    """Dense layers."""
    rng = np.random.default_rng(1)
    return Network(tuple(Linear(rng.standard_normal(shape, np.float32), 0.1, ReLU()) for shape in pairwise(widths)))


def scattered(rng: np.random.Generator, inputs: int, outputs: int, degree: int) -> SparseLinear:
    """A layer whose outputs have so many weights each, at random places."""
    step = inputs // degree
    places = np.arange(degree) * step + rng.integers(0, step, (outputs, degree))
    values = rng.standard_normal(outputs * degree, dtype=np.float32)
    weights = CSC((inputs, outputs), degree * np.arange(outputs + 1), places.ravel().astype(np.uint16), values)
    return SparseLinear(weights, np.zeros(outputs, np.float32), ReLU())


def sparse(widths: tuple[int, ...], *degrees: int) -> Network:
    """Sparse layers whose outputs have so many weights each."""
    rng = np.random.default_rng(2)
    return Network(
        tuple(scattered(rng, *shape, degree) for shape, degree in zip(pairwise(widths), degrees, strict=True))
    )


def candidates(network: Network, rows: int, precision: str = "float32", form: str = "dense") -> set[str]:
    """Return the labels of the alternatives that would be timed for the layers of a chain."""
    compiled = CompiledNetwork.of(network, Options(machine=H200, precision=precision))
    shape = RowsShape(rows, form)
    (segment,) = segments_of(compiled, shape)
    return {label_of(one.names) for one in close_alternatives(segment, shape)}


@pytest.mark.parametrize(("neurons", "layers"), [(1024, 120), (65536, 12)])
def test_rows_that_may_die_and_become_equal(neurons, layers):
    found = candidates(radixnet(neurons, layers), 60_000, "float32", "iso")
    assert "resident" in found
    assert len(found) <= 8


def regular(width: int, layers: int, degree: int) -> Network:
    return sparse((width,) * (layers + 1), *[degree] * layers)


@pytest.mark.parametrize(
    ("shape", "rows", "precision", "form", "labels"),
    [
        # rows of which none dies
        *(
            ((width, layers, 32), count, "float32", "dense", {label})
            for width, layers, rows in ((1024, 24, 60_000), (4096, 12, 20_000), (16384, 6, 10_000))
            for count, label in ((rows, "chunks"), (1, "few_rows"))
        ),
        # denser layers on tensor cores that pass over zeros
        *(((1024, 24, 102), 60_000, name, "dense", {f"two_of_four_{name}"}) for name in PRECISIONS),
        # wide layers of few weights, in halves and in float32
        ((16384, 1, 164), 10_000, "float16", "half", {"chunks_float16"}),
        ((16384, 1, 164), 10_000, "float32", "dense", {"chunks"}),
        # wide layers with a fifth of their weights
        ((4096, 4, 819), 1, "float32", "dense", {"few_rows"}),
        ((4096, 4, 819), 128, "float32", "dense", {"cublas"}),
        # few rows in half precision
        *(((2048, 3, 102), rows, "float16", "half", {"few_rows_float16", "cublas_float16"}) for rows in (1, 16, 64)),
        # most of their weights
        ((2048, 3, 1800), 20_000, "float16", "dense", {"cublas_float16"}),
    ],
    ids=lambda value: "|".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_layers_of_one_width(shape, rows, precision, form, labels):
    """Of a width, a number of layers and of weights an output."""
    assert labels <= candidates(regular(*shape), rows, precision, form)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_narrow_networks(precision):
    """784 -> 65 -> 20 -> 10 is what is left of LeNet-300-100 with 1.9 % of its weights."""
    name = {"float32": "warpgroup_float32", "tf32": "warpgroup_tf32", "float16": "warpgroup_half"}[precision]
    mixed = Network((chain(784, 128)[0], *regular(128, 18, 76), chain(128, 10)[0]))
    for network in (chain(784, *[128] * 19, 10), mixed, sparse((784, 65, 20, 10), 67, 27, 5)):
        assert name in candidates(network, 10_000, precision)
    if precision == "tf32":  # wider than warpgroups take
        assert "cublas_tf32" in candidates(chain(784, 300, 100, 10), 10_000, precision)


@pytest.mark.parametrize("rows", [1, 128])
def test_small_networks_in_one_launch(rows):
    assert candidates(chain(72, 64, 64, 4), rows) & {"fused_fma", "tensor_float32", "warpgroup_float32"}
