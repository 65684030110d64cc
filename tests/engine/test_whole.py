"""Whole networks in ONNX Runtime: a session takes it where a network allows it and it is measured to be faster."""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np
import pytest
import scipy.sparse as sp
from children import python
from kernel_registry import let_auto_take

pytest.importorskip("onnxruntime", reason="runs whole networks")
pytest.importorskip("onnx", reason="describes them")

import onnx
from onnx_graphs import model as graph_of
from onnx_graphs import node, with_graph

from sparsenn import Model, Session, backends, read_model, to_onnx, write_model
from sparsenn.backends.foreign import ONNX_RUNTIME
from sparsenn.engine import compiled_network, measuring
from sparsenn.engine.options import Options
from sparsenn.engine.steps import WHOLE, Measured, choice_of, records_of
from sparsenn.errors import InputError
from sparsenn.formats import InputLayout
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.layers import Add, Concatenate, Conv2d, Flatten, Linear, PerPosition, ReLU, Slice, SparseLinear, Tanh
from sparsenn.model import with_onnx_graph
from sparsenn.network import Network, Node

pytestmark = pytest.mark.usefixtures("measuring_kernels")


@pytest.fixture
def speeds(monkeypatch):
    """Have ONNX Runtime or kernels take half the time of the other; calls of ONNX Runtime are counted."""
    calls = [0]

    def choose(faster):
        def run(network, rows):
            calls[0] += 1
            return ONNX_RUNTIME.launch(network, rows)

        sides = cycle(("kernels", "onnxruntime"))

        def timed(trial):
            trial()
            return 1e-3 if next(sides) == faster else 2e-3

        monkeypatch.setattr(compiled_network, "ONNX_RUNTIME", replace(ONNX_RUNTIME, launch=run))
        monkeypatch.setattr(measuring, "_timed_block", timed)
        let_auto_take(monkeypatch, backends.kernel_named("mlp", "register_tiled", "cpu"))
        return calls

    return choose


def weights(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32) / 4


def dense(rng):
    layers = [Linear(weights(rng, 12, 20), 0.1, Tanh()), Linear(weights(rng, 20, 5), -0.1, ReLU())]
    return with_graph(Network(layers))


def residual(rng):
    filters = weights(rng, 3, 3, 3, 3)
    convolution = Conv2d(filters, 0.1, ReLU(), padding=1)
    nodes = [convolution, convolution, Node(Add(ReLU()), (1, 2)), Flatten(), Linear(weights(rng, 75, 4), None, ReLU())]
    return with_graph(Network(nodes, image=(3, 5, 5)))


def merging(rng):
    """Return a network of sparse layers, some of whose outputs are equal."""
    first, last = (sp.csc_array(weights(rng, *shape)) for shape in ((12, 8), (8, 3)))
    layers = [SparseLinear.from_scipy(first, 0.1, ReLU()), SparseLinear.from_scipy(last, -0.1, ReLU())]
    doubled = SparseLinear.from_scipy(sp.hstack([last, last], "csc"), -0.1, ReLU())
    return with_graph(Network([*layers[:1], doubled, Linear(np.eye(6, dtype=np.float32), None, ReLU())]))


def named(rng):
    nodes = [
        Node(Slice(0, 4), (0,)),
        Node(Slice(4, 12), (0,)),
        Node(Linear(weights(rng, 4, 3), 0.1, ReLU()), (1,)),
        Node(Linear(weights(rng, 8, 2), 0.1, ReLU()), (2,)),
        Node(Concatenate(), (3, 4)),
    ]
    inputs, outputs = {"state": (4,), "scan": (2, 4)}, {"action": (3,), "value": (2,)}
    return with_graph(Network(nodes, named_inputs=inputs, named_outputs=outputs))


def shared(rng):
    """Return a network of layers that three positions share."""
    layers = [PerPosition(Linear(weights(rng, 4, 6), 0.1, ReLU()), 3), PerPosition(Linear(weights(rng, 6, 2), 0.1), 3)]
    return with_graph(Network(layers))


NETWORKS = {"dense": dense, "shared": shared, "residual": residual, "merging": merging, "named": named}


def rows_for(rng, network, count=5):
    return rng.standard_normal((count, network.inputs), dtype=np.float32)


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_run_a_network_whose_weights_stream(rng, speeds, name):
    network = NETWORKS[name](rng)
    rows = rows_for(rng, network)
    speeds("onnxruntime")
    assert Session(network, device="cpu").plan(rows).kernel.name == "onnxruntime"
    session = Session(network, device="cpu", weight_memory=1)  # which reads the choice
    plan = session.plan(rows)
    assert plan.streams
    assert "onnxruntime" not in {kernel.name for kernel in plan.kernels}
    np.testing.assert_allclose(session.run(rows).dense, Session(network, device="reference").run(rows).dense, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_runs_a_network_where_it_is_faster(rng, speeds, name):
    network = NETWORKS[name](rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    session = Session(network, device="cpu")
    outputs = session(rows, form="dense")
    assert np.allclose(outputs, Session(network, device="reference")(rows, form="dense"), atol=1e-5)
    plan = session.plan(rows)
    assert {kernel.name for kernel in plan.kernels} == {"onnxruntime"}
    assert plan.steps[0].is_measured
    assert "ONNX Runtime computes the whole network" in str(plan)
    assert "times as long" in str(plan)
    assert np.array_equal(session(rows, form="dense"), outputs)
    before = calls[0]
    result = session.run(rows)
    assert calls[0] == before + 1
    assert np.array_equal(result.dense, outputs)
    assert np.array_equal(result.categories, np.flatnonzero(outputs.any(axis=1)))
    assert result.statistics[-1].kernel == "onnxruntime"


def test_rows_of_other_types_and_layouts(rng, speeds):
    network = dense(rng)
    speeds("onnxruntime")
    session = Session(network, device="cpu")
    rows = rows_for(rng, network)
    for made in (np.asfortranarray(rows), rows.astype(np.float64), rows.astype(np.float16), rows.tolist(), rows[::-1]):
        for _ in range(2):
            wanted = Session(network, device="reference")(np.asarray(made, np.float32))
            assert np.allclose(session(made), wanted, atol=1e-5)
        assert session.plan(made).kernel.name == "onnxruntime"
    with pytest.raises(InputError, match="not a finite number"):
        session(np.full((5, 12), np.nan, np.float32))


def test_kernels_run_a_network_where_they_are_faster(rng, speeds):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("kernels")
    session = Session(network, device="cpu")
    outputs, measured = session(rows), calls[0]
    assert measured
    plan = session.plan(rows)
    assert plan.kernel.name == "register_tiled"
    assert "ONNX Runtime, for the whole network," in str(plan)
    assert np.array_equal(outputs, Session(network, device="cpu", reproducible=True)(rows))
    session(rows)
    assert calls[0] == measured


@pytest.mark.parametrize("faster", ["kernels", "onnxruntime"])
def test_another_session_reads_the_choice_from_disk(rng, speeds, faster):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds(faster)
    chosen = Session(network, device="cpu").plan(rows).kernel.name
    measured = calls[0]
    again = Session(network, device="cpu").plan(rows)
    assert (again.kernel.name, calls[0]) == (chosen, measured)
    assert pickle.loads(pickle.dumps(again)).kernel.name == chosen


def with_options(network, **options):
    return Session(network, **{"device": "cpu", **options})


WITHOUT = {
    "reproducible": partial(with_options, reproducible=True),
    "float64": partial(with_options, precision="float64"),
    "reference": partial(with_options, device="reference"),
    "kernel": partial(with_options, kernel="register_tiled"),
    "measures apart": lambda network: Session._anew(network, Options(device="cpu"), in_order=True),
    "no graph": lambda network: with_options(replace(network)),
    "refused graph": lambda network: with_options(
        with_onnx_graph(network, replace(network.onnx_graph, model=b"no model"))
    ),
    "weights that do not fit": lambda network: with_options(
        network, weight_memory=sum(layer.weight_bytes for layer in network) + len(network.onnx_graph.model) - 1
    ),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_sessions_that_do_without_it(rng, speeds, case):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    session = WITHOUT[case](network)
    assert session(rows).shape == (5, 5)
    assert session.plan(rows).kernel.name == ("reference" if case in ("float64", "reference") else "register_tiled")
    assert not calls[0]


def test_without_the_package_nothing_is_measured(rng, speeds, monkeypatch):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    monkeypatch.setattr(compiled_network, "onnx_runtime_version", lambda: "")
    Session(network, device="cpu")(rows)
    assert not calls[0]


@pytest.mark.parametrize("count", [1, 3, 700])
def test_a_graph_of_one_row_takes_one_at_a_time(rng, speeds, count):
    network = dense(rng)
    proto = onnx.load_from_string(network.onnx_graph.model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    again = from_onnx(proto)
    assert again.onnx_graph.row_by_row
    rows, _ = rows_for(rng, network, count), speeds("onnxruntime")
    session = Session(again, device="cpu")
    expected = Session(network, device="reference")(rows)
    for _ in range(2):
        np.testing.assert_allclose(session(rows), expected, atol=1e-5)
    assert session.plan(rows).kernel.name == "onnxruntime"
    np.testing.assert_allclose(session.run(rows).dense, expected, atol=1e-5)


def test_outputs_that_are_inputs(rng, speeds):
    weights = rng.standard_normal((6, 5), dtype=np.float32)
    nodes = [node("MatMul", "x", "w"), node("Relu", "y", to="x/output")]
    proto = graph_of(nodes, ["n", 6], outputs=("y", "x", "x/output"), w=weights)
    speeds("onnxruntime")
    session = Session(proto, device="cpu")
    for count in (1, 3, 1, 3, 3):
        rows = rng.random((count, 6), np.float32)
        found = session(rows)
        np.testing.assert_allclose(found["y"], rows @ weights, atol=1e-5)
        np.testing.assert_array_equal(found["x"], rows)
    assert session.plan(rows).kernel.name == "onnxruntime"


def test_equal_outputs_are_computed_once_by_kernels_alone(rng, speeds):
    column = sp.csc_array(weights(rng, 12, 1))
    network = with_graph(Network([SparseLinear.from_scipy(sp.hstack([column] * 3, "csc"), 0.1, Tanh())]))
    rows, _ = rows_for(rng, network), speeds("onnxruntime")
    session = Session(network, device="cpu")
    assert session._compiled.merged.expansion is not None
    for _ in range(2):
        np.testing.assert_allclose(session(rows), Session(network, device="reference")(rows), atol=1e-5)
    plan = session.plan(rows)
    assert (plan.kernel.name, plan.merged.expansion) == ("onnxruntime", None)


def test_a_memory_limit_cuts_batches(rng, speeds):
    network = dense(rng)
    rows, _ = rows_for(rng, network, 40), speeds("onnxruntime")
    session = Session(network, device="cpu")
    session(rows)
    small = session.on("cpu", batch_size=7)
    assert small.plan(rows).kernel.name == "onnxruntime"
    assert np.allclose(small(rows), session(rows), atol=1e-6)


def test_records_hold_both_times():
    measured = Measured(((0, 2, "a"), (2, 3, "b")), 1e-3, (("onnxruntime", 2e-3),), 3, 3)
    for choice in ({(0, 3): replace(measured, seconds=9.0), WHOLE: measured}, {WHOLE: measured}):
        assert choice_of(records_of(choice)) == choice


def test_a_block_of_runs_ends_in_time_and_a_long_run_is_alone(monkeypatch):
    calls = []
    assert measuring._timed_block(lambda: (calls.append(0), time.sleep(1e-3))) >= 1e-3
    assert 2 <= len(calls) <= 11
    calls.clear()
    monkeypatch.setattr(measuring, "LONG_SECONDS", 1e-3)
    assert measuring._timed_block(lambda: (calls.append(0), time.sleep(1e-3))) >= 1e-3
    assert len(calls) == 1


@pytest.mark.parametrize(("faster", "chosen"), [(4, "onnxruntime"), (5, "register_tiled")])
def test_kernels_have_to_be_faster_in_most_rounds(rng, speeds, monkeypatch, faster, chosen):
    network, rounds = dense(rng), {}
    rows = rows_for(rng, network)
    speeds("kernels")

    sides = cycle(("kernels", "onnxruntime"))

    def timed(trial):
        trial()
        name = next(sides)
        rounds[name] = rounds.get(name, 0) + 1
        return 1e-3 if name == "onnxruntime" else 0.9e-3 if rounds[name] <= faster else 1.1e-3

    monkeypatch.setattr(measuring, "_timed_block", timed)
    assert Session(network, device="cpu").plan(rows).kernel.name == chosen
    assert {*rounds.values()} == {measuring.WHOLE_ROUNDS}


def test_networks_of_other_layers_are_without_the_graph(rng, tmp_path):
    to_onnx(dense(rng), tmp_path / "a.onnx")
    assert from_onnx(tmp_path / "a.onnx", foreign=False).onnx_graph is None
    network = from_onnx(tmp_path / "a.onnx")
    assert network.onnx_graph is not None
    assert pickle.loads(pickle.dumps(network)).onnx_graph.model == network.onnx_graph.model
    layout = InputLayout((12,), names=tuple("abcdefghijkl"))
    to_onnx(Model(replace(network, input_layout=layout), "mse", False), tmp_path / "b.onnx")
    assert read_model(tmp_path / "b.onnx").network.input_layout is not None
    assert read_model(tmp_path / "b.onnx").network.onnx_graph is not None
    write_model(tmp_path / "a.h5", Model(network, "mse", False))
    others = replace(network), network.pruned(0.5), network.prefix(2), network.with_bias(0.5)
    assert not any(other.onnx_graph for other in (*others, read_model(tmp_path / "a.h5").network))


FORKED = """
import os, sys, signal
import numpy as np
from onnx_graphs import with_graph
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn import Network
from sparsenn.layers import Linear, ReLU
rows = np.ones((64, 256), np.float32)
network = ForeignNetwork(with_graph(Network([Linear(np.ones((256, 256), np.float32), None, ReLU())] * 3)).onnx_graph)
outputs = network.run(rows)
child = os.fork()
if child == 0:
    signal.alarm(20)
    is_equal = np.array_equal(network.run(rows), outputs)
    del network
    os._exit(not is_equal)  # as multiprocessing does
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
def test_a_forked_child_computes_and_drops_the_network():
    assert python("-c", FORKED, PYTHONPATH=os.pathsep.join(sys.path), seconds=60).returncode == 0


@pytest.mark.parametrize(("layer", "width"), [(Add(), 12), (Concatenate(), 24)], ids=["sum", "channels"])
def test_a_first_layer_that_reads_its_rows_twice(rng, speeds, layer, width):
    calls = speeds("onnxruntime")
    nodes = [Node(layer, (0, 0)), Flatten(), Linear(weights(rng, width, 3))]
    network = with_graph(Network(nodes, image=(3, 2, 2)))
    rows = rng.random((5, 12), np.float32)
    expected = Session(network, device="reference")(rows)
    with Session(network, device="cpu") as session:
        for _ in range(2):
            np.testing.assert_allclose(session(rows), expected, rtol=1e-5, atol=1e-5)
    assert calls[0]
