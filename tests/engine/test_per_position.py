"""Layers that positions share, through the engine: the bits of the layer itself, on a row for each position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenn import GELU, Add, Linear, Network, Node, PerPosition, Session, SparseLinear, plan
from sparsenn.backends.oracle import network as oracle
from sparsenn.formats import Array, from_dense
from sparsenn.layers import FullyConnected, Identity, ReLU

POSITIONS, WIDTH, HIDDEN = 7, 24, 40
DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])


def drawn(*shape: int, density: float = 1.0) -> Array:
    rng = np.random.default_rng(sum(shape))
    matrix: Array = (rng.normal(size=shape) * (rng.random(shape) < density)).astype(np.float32)
    return matrix


def sparse(inputs: int, outputs: int, activation: Any = None) -> SparseLinear:
    weights = sp.csc_array(drawn(inputs, outputs, density=0.2))
    return SparseLinear.from_scipy(weights, drawn(outputs), activation or ReLU())


CHAINS: dict[str, tuple[FullyConnected, ...]] = {
    "sparse": (sparse(WIDTH, HIDDEN, GELU()),),
    "without a bias": (SparseLinear.from_scipy(sp.csc_array(drawn(WIDTH, HIDDEN, density=0.2))),),
    "dense": (Linear(drawn(WIDTH, HIDDEN), drawn(HIDDEN)),),
    "sparse layers": (sparse(WIDTH, HIDDEN, GELU()), sparse(HIDDEN, WIDTH, Identity())),
    "both": (sparse(WIDTH, HIDDEN), Linear(drawn(HIDDEN, WIDTH)), sparse(WIDTH, HIDDEN)),
}


def rows_of(count: int) -> Array:
    rows = drawn(count, POSITIONS * WIDTH)
    rows[:: max(1, count // 2)] = 0
    return rows


@DEVICES
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"weight_memory": 1}, {"deduplication": False}], ids=str)
def test_outputs_are_those_of_the_layers_on_single_positions(name: str, options: dict[str, Any], device: str) -> None:
    layers = CHAINS[name]
    network = Network(tuple(PerPosition(layer, POSITIONS) for layer in layers))
    alone = Session(Network(layers), device=device, **options)
    for count in (0, 1, 5, 64):
        rows, session = rows_of(count), Session(network, device=device, **options)
        want = alone(rows.reshape(count * POSITIONS, WIDTH)).reshape(count, network.outputs)
        for _ in range(2):
            np.testing.assert_allclose(session(rows), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"kernel": "panel"}, {"reproducible": True}], ids=str)
def test_bits_of_sparse_layers_are_those_on_single_positions(options: dict[str, Any]) -> None:
    layers, rows = CHAINS["sparse layers"], rows_of(5)
    network = Network(tuple(PerPosition(layer, POSITIONS) for layer in layers))
    found = Session(network, device="cpu", **options)(rows)
    want = Session(Network(layers), device="cpu", **options)(rows.reshape(-1, WIDTH))
    np.testing.assert_array_equal(found.reshape(want.shape), want)


@DEVICES
@pytest.mark.parametrize("name", CHAINS)
def test_runs_report_categories_and_layers(name: str, device: str) -> None:
    network = Network(tuple(PerPosition(layer, POSITIONS) for layer in CHAINS[name]))
    rows = rows_of(6)
    want = oracle.run(network, from_dense(rows)).toarray()
    for given in (rows, sp.csr_array(rows)):
        result = Session(network, device=device).run(given)
        np.testing.assert_allclose(result.dense, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(result.categories, np.flatnonzero(want.any(axis=1)))
        assert [layer.rows for layer in result.statistics] == [6] * len(network)
        assert result.statistics[-1].nonzeros == np.count_nonzero(want)
        assert result.performed_edges <= 6 * POSITIONS * sum(layer.inputs * layer.outputs for layer in CHAINS[name])


@DEVICES
def test_among_other_layers(device: str) -> None:
    """Outputs of a buffer that the next sparse layers write over are there for a later sum, too."""
    first, second = (PerPosition(sparse(WIDTH, WIDTH), POSITIONS) for _ in range(2))
    last = sparse(POSITIONS * WIDTH, 5)
    nodes = (
        first,
        Node(second, (1,)),
        Node(PerPosition(sparse(WIDTH, WIDTH), POSITIONS), (2,)),
        Node(Add(), (1, 3)),
        last,
    )
    network, rows = Network(nodes), rows_of(9)
    found = Session(network, device=device)(rows)
    np.testing.assert_allclose(found, oracle.run(network, from_dense(rows)).toarray(), rtol=1e-4, atol=1e-3)


def test_other_positions_are_other_segments() -> None:
    layers = PerPosition(sparse(6, 4), 4), PerPosition(sparse(8, 4), 2)
    made = plan(Network(layers), np.ones((3, 24), np.float32), device="cpu")
    assert [(step.first, step.last) for step in made.steps] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_plans_for_gpus_that_are_not_here(precision: str) -> None:
    network = Network(tuple(PerPosition(layer, 64) for layer in CHAINS["both"]))
    made = plan(network, np.ones((100, network.inputs), np.float32), machine="h200", precision=precision)
    assert made.steps[0].first == 0
    assert made.steps[-1].last == 3
    assert any(kernel.precision == precision for kernel in made.kernels)


def test_float64() -> None:
    network = Network(tuple(PerPosition(layer, POSITIONS) for layer in CHAINS["both"]))
    found = Session(network, precision="float64")(rows_of(3))
    np.testing.assert_allclose(found, oracle.run(network, from_dense(rows_of(3))).toarray(), rtol=1e-12, atol=1e-12)
