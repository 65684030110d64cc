"""Networks with branches through the engine: the same numbers whatever the device, the batches and the switches."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from branching import evaluated, graphs
from hypothesis import given
from hypothesis import strategies as st
from sessions import SWITCHES

from sparsenn import (
    Add,
    AvgPool2d,
    Concatenate,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    Multiply,
    Network,
    Node,
    ReLU,
    Session,
    Sigmoid,
    Slice,
    Softmax,
    SparseLinear,
    infer,
    read_model,
    write_model,
)
from sparsenn.backends.oracle import network as oracle
from sparsenn.engine import choosing
from sparsenn.formats import from_dense
from sparsenn.io.importers.nodes import Node as ImportedNode
from sparsenn.io.importers.nodes import network_nodes
from sparsenn.model import Model

DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
@given(
    graphs(sparse=True),
    st.sampled_from(SWITCHES),
    st.sampled_from([None, 1, 3]),
    st.integers(0, 40),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_graph(
    device: str, last: ImportedNode, switches: Any, size: int | None, rows: int, few: bool, seed: int
) -> None:
    network = Network(network_nodes(last))
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, (rows, network.inputs)).astype(np.float32)
    if few:  # many rows are equal, or zero
        values = values[rng.integers(0, max(1, rows // 8), rows)] * (rng.random((rows, 1)) < 0.6)
    session = Session(network, device=device, batch_size=size, **switches)
    expected = evaluated(last, values)
    for inputs in (values.astype(np.float32), from_dense(values.astype(np.float32)).to_scipy()):
        np.testing.assert_array_equal(session(inputs, form="dense"), expected)
    result = session.run(values.astype(np.float32))
    np.testing.assert_array_equal(result.categories, np.flatnonzero(expected.any(axis=1)))
    assert [record.layer for record in result.statistics] == list(range(1, len(network) + 1))


def convolution(rng: np.random.Generator, channels: int, filters: int, window: int = 3, stride: int = 1) -> Conv2d:
    """Of small integers, half of them zero."""
    weights = rng.integers(-1, 2, (filters, channels, window, window)) * (rng.random((filters, 1, 1, 1)) < 0.8)
    return Conv2d(weights, rng.integers(-1, 2, filters), ReLU(4.0), stride, window // 2)


@pytest.fixture
def images(rng: np.random.Generator) -> Network:
    """A residual block, one that shrinks images, one of three branches, and then rows with a block of their own."""
    weights = rng.integers(-1, 2, (11 * 4, 5)) / 4
    return Network(
        (
            convolution(rng, 2, 4),
            convolution(rng, 4, 4),
            convolution(rng, 4, 4),
            Node(Add(ReLU(8.0)), (1, 3)),
            convolution(rng, 4, 6, stride=2),
            Node(convolution(rng, 4, 6, 1, 2), (4,)),
            Node(Add(), (5, 6)),
            convolution(rng, 6, 3),
            Node(convolution(rng, 6, 2, 1), (7,)),
            Node(MaxPool2d(3, 1, 1), (7,)),
            Node(Concatenate(), (8, 9, 10)),
            AvgPool2d(2),
            Flatten(),
            Linear(weights, None, ReLU(16.0)),
            Linear(np.eye(5)[::-1]),
            Node(Add(), (14, 15)),
        ),
        (2, 8, 8),
    )


@pytest.fixture
def gated(rng: np.random.Generator) -> Network:
    """Squeeze-and-excitation, products of images, and then a gated row; float32 holds all numbers exactly."""
    return Network(
        (
            convolution(rng, 2, 4),
            MaxPool2d(8),
            convolution(rng, 4, 3, 1),
            Conv2d(rng.integers(-1, 2, (4, 3, 1, 1)), None, ReLU(2.0)),
            Node(Multiply(), (1, 4)),
            convolution(rng, 4, 4),
            Node(Multiply(ReLU(4.0)), (4, 5, 6)),
            Node(Add(), (5, 7)),
            AvgPool2d(4),
            Flatten(),
            Linear(rng.integers(-1, 2, (16, 5)), np.ones(5), ReLU(16.0)),
            Node(Linear(rng.integers(-1, 2, (16, 5)), np.ones(5), ReLU(2.0)), (10,)),
            Node(Multiply(), (11, 12)),
        ),
        (2, 8, 8),
    )


@DEVICES
@pytest.mark.parametrize("rows", [0, 1, 2, 37, 150])
@pytest.mark.parametrize("kind", ["images", "gated"])
def test_images(device: str, kind: str, rng: np.random.Generator, rows: int, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(kind)
    inputs = rng.integers(-1, 2, (rows, images.inputs)).astype(np.float32)
    expected = oracle.run(images, from_dense(inputs)).toarray()
    session = Session(images, device=device)
    found = session(inputs)
    np.testing.assert_array_equal(found, expected)
    for size in (1, 16, 40):
        np.testing.assert_array_equal(Session(images, device=device, batch_size=size)(inputs), expected)
    result = session.run(inputs)
    np.testing.assert_array_equal(result.categories, np.flatnonzero(expected.any(axis=1)))
    told = {record.layer: record for record in result.statistics}
    assert [told[number].rows for number in (1, 4, 7)] == [rows] * 3
    assert all(record.seconds >= 0 for record in result.statistics)


@pytest.mark.parametrize("kind", ["images", "gated"])
def test_branches_in_one_step_have_the_bits_of_layers_one_by_one(
    kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    images = request.getfixturevalue(kind)
    inputs = rng.standard_normal((50, images.inputs)).astype(np.float32)
    session = Session(images, device="cpu")
    found, steps = session(inputs), len(session.plan(inputs).steps)
    monkeypatch.setattr(choosing, "fused", lambda network, steps: tuple(steps))
    session = Session(images, device="cpu")
    np.testing.assert_array_equal(session(inputs), found)
    assert len(session.plan(inputs).steps) > steps + 5


def test_layers_after_which_several_are_read_end_a_step(rng: np.random.Generator) -> None:
    """A step reads one value, and leaves one that is read: not the branch of a layer that no kernel fuses."""
    softmax = Softmax()
    layers = (
        convolution(rng, 2, 4),
        convolution(rng, 4, 4),
        Node(Flatten(), (1,)),
        Node(softmax, (3,)),
        Node(convolution(rng, 4, 4), (2,)),
        Flatten(),
        Node(Concatenate(), (4, 6)),
    )
    session = Session(Network(layers, (2, 8, 8)), device="cpu")
    steps = [
        (step.first, step.last) for step in session.plan(np.ones((3, 128))).steps if step.kernel.name == "conv_direct"
    ]
    assert steps == [(0, 1), (1, 2), (4, 6)]


def test_plan_and_counts_name_the_layers(images: Network, gated: Network) -> None:
    result = infer(images, np.ones((3, images.inputs), np.float32), device="cpu")
    first = result.plan.steps[0]
    assert (first.kernel.name, first.layers) == ("conv_direct", range(13))
    assert "add (16)" in str(result.plan)
    assert sum(record.seconds for record in result.statistics) <= result.seconds.total
    result = infer(gated, np.ones((3, gated.inputs), np.float32), device="cpu")
    assert "multiply (13)" in str(result.plan)
    assert [result.statistics[number - 1].kernel for number in (5, 7, 13)] == ["conv_direct", "conv_direct", "multiply"]


@DEVICES
@pytest.mark.parametrize("gate", [(2, 1, 1), (2, 3, 4)])
@pytest.mark.parametrize("swapped", [False, True])
def test_products_are_rounded_once(
    device: str, gate: tuple[int, int, int], swapped: bool, rng: np.random.Generator
) -> None:
    size = int(np.prod(gate))
    nodes = (
        Slice(0, 24, image=(2, 3, 4)),
        Node(Slice(24, 24 + size, image=gate), (0,)),
        Node(Multiply(), (2, 1) if swapped else (1, 2)),
    )
    network = Network(nodes, named_inputs={"image": (2, 3, 4), "gate": gate})
    rows = rng.standard_normal((70, 24 + size)).astype(np.float32)
    expected = rows[:, :24].reshape(-1, 2, 3, 4) * rows[:, 24:].reshape(-1, *gate)
    for found in (Session(network, device=device)(rows), oracle.run(network, from_dense(rows)).toarray()):
        np.testing.assert_array_equal(found.astype(np.float32), expected.reshape(70, 24))


@DEVICES
def test_a_gated_mlp(device: str, rng: np.random.Generator) -> None:
    """Down(act(gate(x)) · up(x)), one of whose layers is sparse, against NumPy."""
    gate, up = (rng.standard_normal((40, 60)).astype(np.float32) / 6 for _ in range(2))
    down = (rng.standard_normal((60, 40)) * (rng.random((60, 40)) < 0.2)).astype(np.float32)
    last = SparseLinear.from_scipy(sp.csc_array(down), None, ReLU())
    network = Network(
        (Linear(gate, None, Sigmoid()), Node(Linear(up, None, Identity()), (0,)), Node(Multiply(), (1, 2)), last)
    )
    rows = rng.standard_normal((30, 40)).astype(np.float32)
    exact = rows.astype(np.float64)
    expected = np.maximum((exact @ up) / (1 + np.exp(-exact @ gate)) @ down, 0)
    np.testing.assert_allclose(Session(network, device=device)(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reproducible", [False, True])
def test_memory_is_reckoned_with_what_is_kept(images: Network, reproducible: bool) -> None:
    plain = Network(tuple(layer for layer in images.layers[:1]), images.image)
    assert Session(images, device="cpu", reproducible=reproducible)._compiled._row_bytes > (
        Session(plain, device="cpu")._compiled._row_bytes
    )


@pytest.mark.parametrize("kind", ["images", "gated"])
def test_copies_and_files_compute_the_same(
    kind: str, rng: np.random.Generator, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    images = request.getfixturevalue(kind)
    inputs = rng.standard_normal((5, images.inputs)).astype(np.float32)
    expected = Session(images, device="cpu")(inputs)
    path = tmp_path / "model.h5"
    write_model(path, Model(images, "mse", False))
    for copy in (pickle.loads(pickle.dumps(images)), read_model(path).network):
        np.testing.assert_array_equal(Session(copy, device="cpu")(inputs), expected)
        assert list(map(type, copy)) == list(map(type, images))
        assert [node.sources for node in copy.nodes] == [node.sources for node in images.nodes]


GOLDEN = Path(__file__).parents[1] / "io" / "golden"


def assert_stored_outputs(network: Network, name: str) -> None:
    stored = np.load(GOLDEN / name)
    np.testing.assert_array_equal(Session(network, device="reference")(stored["rows"]), stored["outputs"])


@pytest.mark.parametrize("version", [2, 4])
def test_files_of_earlier_versions(version: int) -> None:
    network = read_model(GOLDEN / f"branches-version-{version}.h5").network
    sources = [(1, 3), (4,), (4,), (4,), (5, 6, 7), (8,), (9,), (10,), (11,), (11, 12)]
    assert [node.sources for node in network.nodes[3:]] == sources
    assert_stored_outputs(network, "branches-version-2.npz")


def test_a_file_with_products() -> None:
    network = read_model(GOLDEN / "products-version-5.h5").network
    products = [(Identity(), (1, 4)), (ReLU(4.0), (4, 5, 6)), (Identity(), (11, 12))]
    found = [(node.layer.activation, node.sources) for node in network.nodes if isinstance(node.layer, Multiply)]
    assert found == products
    assert_stored_outputs(network, "products-version-5.npz")


def test_rows_may_be_read_again(rng: np.random.Generator) -> None:
    """The input, and outputs of sparse layers, wait in memory that others may not write over."""
    sparse = [SparseLinear.from_scipy(sp.csc_array(rng.integers(-1, 2, (6, 6)).astype(np.float32))) for _ in range(4)]
    nodes = (*sparse[:2], Node(sparse[2], (0,)), Node(sparse[3], (1,)), Node(Add(), (4, 1, 3, 2, 0)))
    network = Network(nodes)
    rows = rng.integers(-2, 3, (40, 6)).astype(np.float32)
    rows[::3] = 0
    expected = oracle.run(network, from_dense(rows)).toarray()
    for inputs in (rows, from_dense(rows).to_scipy()):
        np.testing.assert_array_equal(Session(network, device="cpu")(inputs, form="dense"), expected)


def test_an_image_that_nothing_reads_is_no_obstacle(rng):
    convolution = Conv2d(rng.random((2, 2, 1, 1), np.float32), None, Identity())
    network = Network((Node(convolution, (0,)), Node(convolution, (0,)), Node(convolution, (2,))), image=(2, 3, 3))
    rows = rng.random((3, 18), np.float32)
    assert np.allclose(Session(network, device="cpu")(rows), Session(network, device="reference")(rows), rtol=1e-5)


def test_overflow_in_worker_threads_is_silent(recwarn):
    products = tuple(Node(Multiply(), (number, number)) for number in range(3))
    session = Session(Network(products, image=(3, 20, 20)), device="cpu")
    for _ in range(3):
        assert np.isinf(session(np.full((400, 1200), 1e15, np.float32))).all()
    assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


def test_few_rows_go_straight_through_steps_that_keep_rows_of_zeros(rng: np.random.Generator) -> None:
    first, second = (
        SparseLinear.from_scipy(sp.random_array((64, 64), density=0.2, rng=rng).astype(np.float32), None, ReLU())
        for _ in range(2)
    )
    network = Network((first, Node(second, (1,)), Node(Add(), (1, 2)), SparseLinear(second.weights, -0.1, ReLU())))
    rows = rng.random((3, 64), np.float32)
    rows[1] = 0
    with Session(network, device="cpu", kernel="rows") as session:
        outputs = session(rows)
        (executable,) = session._cache._executables.values()
        assert len(executable.plan.steps) > 2
        assert executable.direct is not None
        np.testing.assert_array_equal(session(rows), outputs)
        np.testing.assert_array_equal(session.run(rows).dense, outputs)
    np.testing.assert_allclose(outputs, Session(network, device="reference")(rows), rtol=1e-4, atol=1e-5)
    assert outputs[0].any()
    assert not outputs[1].any()
