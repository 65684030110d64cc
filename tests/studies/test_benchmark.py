"""Benchmarks of a model: each way is right before it is timed, and what cannot be timed is said."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx_graphs import chain, model
from scipy.sparse import random as random_matrix

from sparsenn import (
    Concatenate,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    Model,
    Network,
    Node,
    ReLU,
    Session,
    Sigmoid,
    Slice,
    SparseLinear,
    Tanh,
    from_onnx,
)
from sparsenn.errors import UsageError
from sparsenn.report.benchmark import benchmark_record, benchmark_table
from sparsenn.studies import benchmark, peers
from sparsenn.studies.benchmark import FEWEST, OURS, WARM_UP, run_benchmark
from sparsenn.studies.peers import PEERS, Peer, peer_for


@pytest.fixture
def network(rng: np.random.Generator) -> Network:
    sparse = [
        random_matrix(*shape, 0.2, format="csc", random_state=rng, dtype=np.float32) for shape in ((20, 30), (30, 9))
    ]
    return Network(
        (
            SparseLinear.from_scipy(sparse[0], 0.1, ReLU(clip=2)),
            SparseLinear.from_scipy(sparse[1], None, Tanh()),
            Linear(rng.normal(size=(9, 5)), np.arange(5) / 4, Sigmoid()),
            Linear(rng.normal(size=(5, 3)), None, Identity()),
        )
    )


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_gives_what_the_network_gives(network: Network, rng: np.random.Generator, name: str) -> None:
    if name != "scipy":
        pytest.importorskip(name, reason=f"times {name}")
    if name == "onnxruntime":
        pytest.importorskip("onnx", reason="writes ONNX files")
    rows = rng.random((17, 20), np.float32)
    found = peer_for(name, network, "cpu")(rows)
    assert found.shape == (17, 3)
    np.testing.assert_allclose(found, Session(network, device="reference")(rows), rtol=1e-4, atol=1e-5)


def test_a_network_with_names_takes_rows(rng: np.random.Generator) -> None:
    pytest.importorskip("onnxruntime", reason="times it")
    pytest.importorskip("onnx", reason="writes ONNX files")
    head = Linear(rng.normal(size=(4, 3)))
    layers = (Slice(0, 4), head, Node(Slice(4, 6), (0,)), Node(Concatenate(), (2, 3)))
    names = {"named_inputs": {"a": (4,), "b": (2, 1)}, "named_outputs": {"y": (3,), "z": (2,)}}
    result = run_benchmark(Network(layers, **names), [2], against=["onnxruntime"], seconds=0.01, device="cpu")
    assert [call.way for call in result.calls] == [OURS, "onnxruntime"]


def test_onnx_runtime_runs_the_graph_that_was_imported(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="times it")
    monkeypatch.setattr("sparsenn.io.importers.onnx.to_onnx", None)
    nodes = chain("QuantizeLinear step zero", "DequantizeLinear step zero", "MatMul w")  # rounded to steps of 0.1
    weights = rng.standard_normal((4, 3)).astype(np.float32)
    network = from_onnx(model(nodes, ["n", 4], step=np.float32(0.1), zero=np.uint8(9), w=weights))
    result = run_benchmark(network, [2], against=["onnxruntime"], seconds=0.01, device="cpu")
    assert [call.way for call in result.calls] == [OURS, "onnxruntime"]


def test_ways_are_timed_for_each_number_of_rows(network: Network) -> None:
    done: list[tuple[str, int, int]] = []
    told = lambda *step: done.append(step)  # noqa: E731
    result = run_benchmark(network, [1, 50], against=["scipy"], seconds=0.1, device="cpu", progress=told)
    assert [(call.rows, call.way) for call in result.calls] == [(1, OURS), (1, "scipy"), (50, OURS), (50, "scipy")]
    for call in result.calls:
        assert call.runs >= FEWEST
        assert 0 < call.median <= call.p95 <= call.p99
        assert call.error <= result.allowed
        assert call.rows_per_second == call.rows / call.median
    assert result.ours(50).kernels
    assert not result.left_out
    assert done[-1] == ("ways timed", 4, 4)
    record = benchmark_record("m.h5", Model(network), result)
    assert [call["way"] for call in record["calls"]] == [OURS, "scipy"] * 2


def test_long_calls_are_repeated_less_often(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def slow(*_: object) -> np.ndarray:
        nonlocal calls
        calls += 1
        time.sleep(0.02)
        return np.zeros((2, 3), np.float32)

    monkeypatch.setattr(Session, "__call__", lambda self, rows, **_: slow())
    result = run_benchmark(network, [2], against=[], seconds=0.01, device="cpu")
    assert 1 <= result.ours(2).runs < calls < WARM_UP + FEWEST


def test_what_is_not_right_or_not_there_is_left_out_and_said(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(network: Network, device: str) -> peers.Peer:
        raise ModuleNotFoundError(name="onnxruntime")

    monkeypatch.setitem(PEERS, "onnxruntime", missing)
    monkeypatch.setitem(PEERS, "torch", lambda *_: Peer(lambda rows: np.zeros((len(rows), 3), np.float32)))
    monkeypatch.setitem(PEERS, "scipy", lambda *_: Peer(lambda rows: np.full((len(rows), 3), np.nan)))
    result = run_benchmark(network, [4], seconds=0.01, device="cpu")
    assert [call.way for call in result.calls] == [OURS]
    reasons = dict(result.left_out)
    assert reasons["onnxruntime"] == "onnxruntime is not installed (pip install onnxruntime)"
    assert "of the largest, for 4 samples" in reasons["torch"]
    assert "its outputs are off by inf" in reasons["scipy"]
    assert "Left out: torch, because its outputs" in str(benchmark_table("m.h5", Model(network), result).caption)


def test_images_are_timed_where_a_peer_takes_them() -> None:
    network = Network((Conv2d(np.ones((2, 1, 3, 3))), Flatten(), Linear(np.ones((8, 2)))), image=(1, 4, 4))
    result = run_benchmark(network, [3], against=["scipy"], seconds=0.01, device="cpu")
    assert [call.way for call in result.calls] == [OURS]
    assert "fully connected layers only; this network has a Conv2d" in dict(result.left_out)["scipy"]


@pytest.mark.parametrize(
    ("rows", "given", "told"),
    [
        ([], {}, "measure nothing"),
        ([0], {}, "measure nothing"),
        ([1], {"seconds": 0.0}, "measure nothing"),
        ([1], {"against": ["scypi"]}, "did you mean 'scipy'"),
    ],
)
def test_what_measures_nothing_is_refused(network: Network, rows: list[int], given: dict, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        run_benchmark(network, rows, device="cpu", **given)


@pytest.mark.gpu
def test_calls_on_a_gpu(network: Network) -> None:
    result = run_benchmark(network, [1, 100], against=["scipy"], seconds=0.05, device="cuda")
    assert [call.way for call in result.calls] == [OURS, "scipy"] * 2
    assert benchmark.ALLOWED[result.precision] >= result.calls[1].error
