"""Whole networks in ONNX Runtime: a session takes it where a network allows it and it is measured to be faster."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from kernel_registry import let_auto_take

pytest.importorskip("onnxruntime", reason="runs whole networks")
pytest.importorskip("onnx", reason="describes them")

from sparsenn import Model, Session, backends, read_model, to_onnx, write_model
from sparsenn.backends.foreign import ONNX_RUNTIME
from sparsenn.engine import measuring, whole
from sparsenn.engine.choices import WHOLE, Measured, choice_of, records_of
from sparsenn.engine.options import Options
from sparsenn.engine.steps import Step
from sparsenn.errors import InputError, UsageError
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.layers import (
    Add,
    Concatenate,
    Conv2d,
    Flatten,
    ForeignLayer,
    Linear,
    PerPosition,
    ReLU,
    RowTensor,
    Slice,
    SparseLinear,
    Tanh,
)
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

        def timed(trial):
            trial()
            name = trial.args[0].plan.kernel.name
            return 1e-3 if (name == "onnxruntime") == (faster == "onnxruntime") else 2e-3

        monkeypatch.setattr(whole, "ONNX_RUNTIME", replace(ONNX_RUNTIME, launch=run))
        monkeypatch.setattr(measuring, "_timed_block", timed)
        let_auto_take(monkeypatch, backends.kernel_named("mlp", "register_tiled", "cpu"))
        return calls

    return choose


def weights(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32) / 4


def dense(rng, allows=True):
    layers = [Linear(weights(rng, 12, 20), 0.1, Tanh()), Linear(weights(rng, 20, 5), -0.1, ReLU())]
    return Network(layers, allows_onnx_runtime=allows)


def residual(rng):
    filters = weights(rng, 3, 3, 3, 3)
    convolution = Conv2d(filters, 0.1, ReLU(), padding=1)
    nodes = [convolution, convolution, Node(Add(ReLU()), (1, 2)), Flatten(), Linear(weights(rng, 75, 4), None, ReLU())]
    return Network(nodes, image=(3, 5, 5), allows_onnx_runtime=True)


def merging(rng):
    """Return a network of sparse layers, some of whose outputs are equal."""
    first, last = (sp.csc_array(weights(rng, *shape)) for shape in ((12, 8), (8, 3)))
    layers = [SparseLinear.from_scipy(first, 0.1, ReLU()), SparseLinear.from_scipy(last, -0.1, ReLU())]
    doubled = SparseLinear.from_scipy(sp.hstack([last, last], "csc"), -0.1, ReLU())
    return Network([*layers[:1], doubled, Linear(np.eye(6, dtype=np.float32), None, ReLU())], allows_onnx_runtime=True)


def named(rng):
    nodes = [
        Node(Slice(0, 4), (0,)),
        Node(Slice(4, 12), (0,)),
        Node(Linear(weights(rng, 4, 3), 0.1, ReLU()), (1,)),
        Node(Linear(weights(rng, 8, 2), 0.1, ReLU()), (2,)),
        Node(Concatenate(), (3, 4)),
    ]
    inputs, outputs = {"state": (4,), "scan": (2, 4)}, {"action": (3,), "value": (2,)}
    return Network(nodes, named_inputs=inputs, named_outputs=outputs, allows_onnx_runtime=True)


def shared(rng):
    """Return a network of layers that three positions share."""
    layers = [PerPosition(Linear(weights(rng, 4, 6), 0.1, ReLU()), 3), PerPosition(Linear(weights(rng, 6, 2), 0.1), 3)]
    return Network(layers, allows_onnx_runtime=True)


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


def test_each_bucket_of_rows_has_its_choice(rng, speeds):
    network = dense(rng)
    calls = speeds("kernels")
    session = Session(network, device="cpu")
    session(rows_for(rng, network, 5))
    measured = calls[0]
    session(rows_for(rng, network, 8))
    assert calls[0] == measured
    session(rows_for(rng, network, 9))
    assert calls[0] > measured


@pytest.mark.parametrize("faster", ["kernels", "onnxruntime"])
def test_another_session_reads_the_choice_from_disk(rng, speeds, faster):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds(faster)
    chosen = Session(network, device="cpu").plan(rows).kernel.name
    measured = calls[0]
    again = Session(network, device="cpu").plan(rows)
    assert (again.kernel.name, calls[0]) == (chosen, measured)
    assert pickle.loads(pickle.dumps(again)).kernel.name == chosen


def test_sparse_rows_stay_with_the_kernels(rng, speeds):
    network = dense(rng)
    rows, calls = sp.csr_array(rows_for(rng, network)), speeds("onnxruntime")
    outputs = Session(network, device="cpu")(rows)
    assert not calls[0]
    assert np.allclose(outputs.toarray(), Session(network, device="reference")(rows).toarray(), atol=1e-5)


OPTIONS = [{"reproducible": True}, {"precision": "float64"}, {"device": "reference"}, {"kernel": "register_tiled"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_that_promise_something_else_rule_it_out(rng, speeds, options):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    Session(network, **{"device": "cpu", **options})(rows)
    assert not calls[0]


def test_sessions_that_measure_apart_do_without_it(rng, speeds):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    Session._in_order(network, Options(device="cpu"))(rows)
    assert not calls[0]


def test_a_network_has_to_allow_it(rng, speeds):
    network = dense(rng, allows=False)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    Session(network, device="cpu")(rows)
    assert not calls[0]


def test_without_the_package_nothing_is_measured(rng, speeds, monkeypatch):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    monkeypatch.setattr(whole, "onnx_runtime_version", lambda: "")
    Session(network, device="cpu")(rows)
    assert not calls[0]


@pytest.mark.parametrize("row_by_row", [False, True])
def test_subgraphs_that_take_single_rows_stay(rng, row_by_row):
    tensors = (RowTensor((12,)),)
    layers = [ForeignLayer(b"", tensors, tensors, row_by_row), *dense(rng)]
    session = Session(Network(layers, allows_onnx_runtime=True), device="cpu")
    assert whole.may_run_whole(session._compiled, "dense") != row_by_row


def test_hopeless_networks_are_not_measured(rng):
    sparse = SparseLinear.from_scipy(sp.random(400, 400, 0.001, "csc", np.float32, rng), 0.1, ReLU())
    assert not whole.may_run_whole(
        Session(Network([sparse], allows_onnx_runtime=True), device="cpu")._compiled, "dense"
    )


def test_layers_that_select_inputs_count_without_their_zeros(rng):
    order = sp.csc_array((np.ones(400, np.float32), (rng.permutation(400), range(400))), shape=(400, 400))
    layers = [SparseLinear.from_scipy(order, None, ReLU()), Linear(weights(rng, 400, 3))]
    assert whole.may_run_whole(Session(Network(layers, allows_onnx_runtime=True), device="cpu")._compiled, "dense")


def test_a_network_that_onnx_cannot_hold_stays_with_the_kernels(rng, speeds, monkeypatch):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")

    def refuse(*arguments, **named):
        raise UsageError("no operator")

    monkeypatch.setattr(whole, "export_graph", refuse)
    session = Session(network, device="cpu")
    assert session(rows).shape == (5, 5)
    assert session.plan(rows).kernel.name == "register_tiled"
    assert not calls[0]


def test_weights_have_to_fit(rng, speeds):
    network = dense(rng)
    rows, calls = rows_for(rng, network), speeds("onnxruntime")
    session = Session(network, device="cpu", weight_memory=2500)
    session(rows)
    assert not calls[0]
    assert session.plan(rows).kernel.name == "register_tiled"


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


def test_a_gain_below_a_twentieth_changes_no_order_of_sums():
    own, other = ((Step(0, 1, ONNX_RUNTIME, in_order=order),) for order in (True, False))
    assert measuring._fastest(own, {own: [1.0] * 5, other: [0.97] * 5})[0] is own
    assert measuring._fastest(own, {own: [1.0] * 5, other: [0.9] * 5})[0] is other


def test_a_block_of_runs_ends_in_time_and_a_long_run_is_alone(monkeypatch):
    calls = []
    assert measuring._timed_block(lambda: (calls.append(0), time.sleep(1e-3))) >= 1e-3
    assert 2 <= len(calls) <= 11
    calls.clear()
    monkeypatch.setattr(measuring, "LONG_SECONDS", 1e-3)
    assert measuring._timed_block(lambda: (calls.append(0), time.sleep(1e-3))) >= 1e-3
    assert len(calls) == 1


def test_files_say_that_it_is_allowed(rng, tmp_path):
    network = dense(rng)
    to_onnx(network, tmp_path / "a.onnx")
    assert from_onnx(tmp_path / "a.onnx").allows_onnx_runtime
    assert not from_onnx(tmp_path / "a.onnx", foreign=False).allows_onnx_runtime
    for allows in (True, False):
        model = Model(replace(network, allows_onnx_runtime=allows), "mse", False)
        write_model(tmp_path / "a.h5", model)
        again = read_model(tmp_path / "a.h5").network
        assert (again.allows_onnx_runtime, pickle.loads(pickle.dumps(again)).allows_onnx_runtime) == (allows, allows)


FORKED = """
import os, sys, signal
import numpy as np
from sparsenn.engine.whole import foreign_network
from sparsenn import Network
from sparsenn.layers import Linear, ReLU
rows = np.ones((64, 256), np.float32)
network = foreign_network(Network([Linear(np.ones((256, 256), np.float32), None, ReLU())] * 3))
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
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(("layer", "width"), [(Add(), 12), (Concatenate(), 24)], ids=["sum", "channels"])
def test_a_first_layer_that_reads_its_rows_twice(rng, speeds, layer, width):
    calls = speeds("onnxruntime")
    nodes = [Node(layer, (0, 0)), Flatten(), Linear(weights(rng, width, 3))]
    network = Network(nodes, image=(3, 2, 2), allows_onnx_runtime=True)
    rows = rng.random((5, 12), np.float32)
    expected = Session(replace(network, allows_onnx_runtime=False), device="reference")(rows)
    with Session(network, device="cpu") as session:
        for _ in range(2):
            np.testing.assert_allclose(session(rows), expected, rtol=1e-5, atol=1e-5)
    assert calls[0]
