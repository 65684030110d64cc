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


@pytest.mark.parametrize(("width", "layers", "rows"), [(1024, 24, 60_000), (4096, 12, 20_000), (16384, 6, 10_000)])
def test_rows_of_which_none_dies(width, layers, rows):
    network = sparse((width,) * (layers + 1), *[32] * layers)
    assert "chunks" in candidates(network, rows)
    assert "few_rows" in candidates(network, 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_denser_layers_on_tensor_cores_that_pass_over_zeros(precision):
    assert f"two_of_four_{precision}" in candidates(sparse((1024,) * 25, *[102] * 24), 60_000, precision)


def test_wide_layers_of_few_weights_in_halves():
    network = sparse((16384,) * 2, 164)
    assert "chunks_float16" in candidates(network, 10_000, "float16", "half")
    assert "chunks" in candidates(network, 10_000)


def test_wide_layers_with_a_fifth_of_their_weights_and_one_row():
    network = sparse((4096,) * 5, *[819] * 4)
    assert "few_rows" in candidates(network, 1)
    assert "cublas" in candidates(network, 128)


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_few_rows_in_half_precision(rows):
    network = sparse((2048,) * 4, *[102] * 3)
    assert {"few_rows_float16", "cublas_float16"} <= candidates(network, rows, "float16", "half")


def test_layers_with_most_of_their_weights():
    assert "cublas_float16" in candidates(sparse((2048,) * 4, *[1800] * 3), 20_000, "float16")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_deep_narrow_chain(precision):
    name = {"float32": "warpgroup_float32", "tf32": "warpgroup_tf32", "float16": "warpgroup_half"}[precision]
    assert name in candidates(chain(784, *[128] * 19, 10), 10_000, precision)
    mixed = sparse((128,) * 19, *[76] * 18)
    ends = chain(784, 128), chain(128, 10)
    assert name in candidates(Network((ends[0][0], *mixed, ends[1][0])), 10_000, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pruned_network_that_is_narrow(precision):
    """784 -> 65 -> 20 -> 10 is what is left of LeNet-300-100 with 1.9 % of its weights."""
    name = {"float32": "warpgroup_float32", "tf32": "warpgroup_tf32", "float16": "warpgroup_half"}[precision]
    assert name in candidates(sparse((784, 65, 20, 10), 67, 27, 5), 10_000, precision)


def test_layers_wider_than_warpgroups_take():
    assert "cublas_tf32" in candidates(chain(784, 300, 100, 10), 10_000, "tf32")


@pytest.mark.parametrize("rows", [1, 128])
def test_small_networks_in_one_launch(rows):
    assert candidates(chain(72, 64, 64, 4), rows) & {"fused_fma", "tensor_float32", "warpgroup_float32"}
