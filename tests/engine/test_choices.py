"""What `auto` chooses on an H200: the kernels that were the fastest there, of networks like those measured."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sparsenn import radixnet
from sparsenn.backends.machine import H200
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.options import Options
from sparsenn.engine.plan import plan_for
from sparsenn.formats import CSC
from sparsenn.layers import Linear, ReLU, SparseLinear
from sparsenn.network import Network

PRECISIONS = ("float32", "tf32", "float16")

ALIVE = {
    1024: [60000, 60000, 60000, 23042, 23042, 22688, 3629, 3418, 3040, 1909, 1844, 1806, 861, 857],
    65536: [60000, 52502, 52502, 52502, 15346, 15346, 15346, 5191, 5191, 5191, 2850, 2850, 2850, 1658],
}
"""Of the challenge's 60,000 rows, those that the first layers compute, by neurons."""


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


def chosen(network: Network, rows: int, precision: str = "float32", form: str = "dense", alive=None) -> list[str]:
    """Return the kernels of the steps."""
    compiled = CompiledNetwork.of(network, Options(machine=H200, precision=precision))
    return [step.kernel.name for step in plan_for(compiled, rows, None, form, alive).steps]


@pytest.mark.parametrize("neurons", ALIVE)
def test_rows_that_die_and_become_equal_are_left_to_resident(neurons):
    alive = np.array([*ALIVE[neurons], *[900] * 4, *[10] * 102]) / 60_000
    assert chosen(radixnet(neurons, 120), 60_000, "float32", "iso", alive) == ["resident"]


@pytest.mark.parametrize(("width", "layers", "rows"), [(1024, 24, 60_000), (4096, 12, 20_000), (16384, 6, 10_000)])
def test_rows_of_which_none_dies_are_left_to_chunks(width, layers, rows):
    network = sparse((width,) * (layers + 1), *[32] * layers)
    assert chosen(network, rows, alive=np.ones(layers)) == ["chunks"]
    assert chosen(network, 1) == ["resident"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_denser_layers_go_to_tensor_cores_that_pass_over_zeros(precision):
    assert chosen(sparse((1024,) * 25, *[102] * 24), 60_000, precision) == [f"two_of_four_{precision}"]


def test_wide_layers_of_few_weights_keep_rows_in_halves():
    network = sparse((16384,) * 2, 164)
    assert chosen(network, 10_000, "float16", "half") == ["chunks_float16"]
    assert chosen(network, 10_000) == ["chunks"]
    assert chosen(network, 10_000, "tf32") == ["chunks_tf32"]  # a tenth faster at most; nobody asked for float32's bits


def test_layers_with_most_of_their_weights_become_dense_ones():
    assert chosen(sparse((2048,) * 4, *[1800] * 3), 20_000, "float16") == ["cublas_float16"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_deep_narrow_chain_is_one_step_of_warpgroups(precision):
    name = {"float32": "warpgroup_float32", "tf32": "warpgroup_tf32", "float16": "warpgroup_half"}[precision]
    assert chosen(chain(784, *[128] * 19, 10), 10_000, precision) == [name]
    mixed = sparse((128,) * 19, *[76] * 18)
    ends = chain(784, 128), chain(128, 10)
    assert chosen(Network((ends[0][0], *mixed, ends[1][0])), 10_000, precision) == [name]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pruned_network_that_is_narrow_is_one_step_of_warpgroups(precision):
    """784 -> 65 -> 20 -> 10 is what is left of LeNet-300-100 with 1.9 % of its weights."""
    name = {"float32": "warpgroup_float32", "tf32": "warpgroup_tf32", "float16": "warpgroup_half"}[precision]
    assert chosen(sparse((784, 65, 20, 10), 67, 27, 5), 10_000, precision) == [name]


def test_layers_wider_than_warpgroups_take():
    assert chosen(chain(784, 300, 100, 10), 10_000, "tf32") == ["cublas_tf32"]
    assert chosen(sparse((784, 281, 87, 10), 168, 70, 21), 10_000, "tf32") == ["cublas_tf32"]


@pytest.mark.parametrize(
    ("precision", "names"),
    [
        ("float32", {"fused_fma", "tensor_float32"}),
        ("tf32", {"fused_fma", "tensor_float32", "warpgroup_tf32"}),
        ("float16", {"tensor_half"}),
    ],
)
def test_small_networks_are_one_launch(precision, names):
    for rows in (1, 128):
        (name,) = chosen(chain(72, 64, 64, 4), rows, precision)
        assert name in names
