"""What a plan chooses: by made-up estimates of made-up kernels, so that there is one right answer."""

from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
from kernel_registry import let_auto_take
from sessions import steps_of

from sparsenn import backends
from sparsenn.backends.prior import LAUNCH_SECONDS
from sparsenn.engine import Session, plan
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, Linear, ReLU, SparseLinear
from sparsenn.network import Network

ROWS = 64


def sparse(rng, inputs, outputs, density=0.5):
    weights = rng.normal(size=(inputs, outputs)) * (rng.random((inputs, outputs)) < density)
    return SparseLinear.from_scipy(from_dense(weights.astype(np.float32)).to_scipy(), -0.1, ReLU())


def stack(rng, kinds, widths):
    """Layers: `s` for a sparse one, `d` for a dense one."""
    return Network(
        tuple(
            sparse(rng, *pair) if kind == "s" else Linear(rng.normal(size=pair), 0.1, Identity())
            for kind, pair in zip(kinds, pairwise(widths), strict=True)
        )
    )


def a_call_and_an_edge(call, edge, operation):
    """An estimate: seconds for a launch, and for each multiply-add, with all zeros in dense kernels."""

    def seconds(machine, layers, rows):
        edges = [layer.edges if operation == "spmspm" else layer.inputs * layer.outputs for layer in layers]
        return call + edge * rows * sum(edges)

    return seconds


@pytest.fixture
def made_up(monkeypatch):
    """Let `auto` take kernels of the CPU's with made-up estimates: (name, seconds of a call, of an edge)."""

    def register(sparse_kernels, dense_kernels, **changes):
        for operation, name, found in (("spmspm", "panel", sparse_kernels), ("mlp", "register_tiled", dense_kernels)):
            kernel = backends.kernel_named(operation, name, "cpu")
            made = [
                replace(kernel, name=called, seconds=a_call_and_an_edge(*costs, operation)) for called, *costs in found
            ]
            let_auto_take(monkeypatch, *(replace(one, **changes.get(one.name, {})) for one in made))

    return register


def names(chosen):
    return [step.kernel.name for step in chosen.steps]


def test_the_least_estimate_is_taken(rng, made_up):
    network = stack(rng, "ss", (32, 32, 32))
    made_up([("slow", 0, 2e-9), ("quick", 0, 1e-9), ("late", 1, 0)], [("dense", 1, 0)])
    chosen = plan(network, rng.random((ROWS, 32)), device="cpu")
    assert names(chosen) == ["quick"]
    assert chosen.estimate == pytest.approx(1e-9 * ROWS * network.edges)
    assert "Kernel quick: " in str(chosen)
    assert "; estimated to take " in str(chosen)


def test_the_number_of_rows_decides(rng, made_up):
    network = stack(rng, "ss", (32, 32, 32))
    made_up([("few", 0, 1e-8), ("many", 1e-3, 1e-10)], [("dense", 1, 0)])
    session = Session(network, device="cpu")
    even = 1e-3 / ((1e-8 - 1e-10) * network.edges)
    for count, name in ((1, "few"), (int(even / 2), "few"), (int(even * 2), "many")):
        rows = rng.random((count, 32)).astype(np.float32)
        assert names(session.plan(rows)) == [name]
        assert names(session.run(rows).plan) == [name]


@pytest.mark.parametrize("edge", [1e-10, 1e-8])
def test_sparse_layers_run_as_dense_ones_where_that_is_quicker(rng, made_up, edge):
    network = stack(rng, "ss", (32, 40, 24))
    rows = rng.random((ROWS, 32)).astype(np.float32)
    made_up([("sparse", 0, 1e-9)], [("dense", 0, edge)])
    session = Session(network, device="cpu")
    chosen, result = session.plan(rows), session.run(rows)
    expected = rows
    for layer in network:
        expected = np.maximum(expected @ layer.weights.to_scipy().toarray() - 0.1, 0)
    np.testing.assert_allclose(session(rows), expected, rtol=1e-4, atol=1e-4)
    converted = edge < 1e-9
    assert names(chosen) == (["dense"] if converted else ["sparse"])
    assert names(result.plan) == names(chosen)
    assert ("multiplied with their zeros" in str(chosen)) == converted
    assert "Dense layers" not in str(chosen)
    if converted:
        assert [layer.performed_edges for layer in result.statistics] == [ROWS * 32 * 40, ROWS * 40 * 24]


def test_weights_that_take_too_much_with_their_zeros_stay_sparse(rng, made_up, monkeypatch):
    made_up([("sparse", 0, 1e-9)], [("dense", 0, 1e-12)])
    network, rows = Network((sparse(rng, 100, 100),)), rng.random((ROWS, 100))
    for most, name in ((40_000, "dense"), (39_999, "sparse")):
        monkeypatch.setattr(import_module("sparsenn.engine.choosing"), "MAX_DENSE_BYTES", most)
        assert names(plan(network, rows, device="cpu")) == [name]


@pytest.mark.parametrize("count", [1, 500])
def test_how_rows_are_run_together_decides_nothing(rng, made_up, count):
    """Else bits would depend on it: dense products round otherwise than sparse ones."""
    network, rows = stack(rng, "ssss", (32, 300, 40, 32, 32)), rng.random((count, 32)).astype(np.float32)
    made_up([("few", 0, 1e-9), ("many", 1e-4, 1e-10)], [("dense", 2e-5, 6e-10)])
    expected = plan(network, rows, device="cpu").kernels
    limits = {"batch_size": 1, "memory_limit": 3 * 4 * 300 + 64, "weight_memory": 1}
    for name, value in (limits | {"compaction": False, "deduplication": False}).items():
        found = plan(network, rows, device="cpu", **{name: value}).kernels
        assert [kernel.name for kernel in found] == [kernel.name for kernel in expected], name


def test_what_is_named_is_not_replaced(rng, made_up):
    network, rows = stack(rng, "sds", (32, 32, 32, 32)), rng.random((ROWS, 32)).astype(np.float32)
    made_up([("sparse", 1, 1), ("other", 0, 1e-12)], [("dense", 0, 1e-12)])
    chosen = plan(network, rows, device="cpu", kernel="sparse")
    assert names(chosen) == ["sparse", "dense", "sparse"]
    assert steps_of(chosen) == ((0, 1), (1, 2), (2, 3))
    assert names(plan(network, rows, device="reference")) == ["reference"] * 3
    only = plan(Network(network.layers[:1]), rows, device="reference")
    assert [step.kernel.operation for step in only.steps] == ["spmspm"]


def test_neighbours_go_together_where_one_call_is_cheaper(rng, made_up):
    network, rows = stack(rng, "sds", (32, 32, 32, 32)), rng.random((ROWS, 32))
    made_up([("sparse", 0, 1e-9)], [("dense", 0, 1.5e-9)])
    assert names(plan(network, rows, device="cpu")) == ["sparse", "dense", "sparse"]
    made_up([("sparse", 1e-3, 1e-9)], [("dense", 1e-3, 1.5e-9)])
    together = plan(network, rows, device="cpu")
    assert (names(together), steps_of(together)) == (["dense"], ((0, 3),))
    assert "Sparse layers (1–3): kernel dense" in str(together) or "Kernel dense: " in str(together)


def test_wide_layers_and_narrow_ones_are_weighed_apart(rng, made_up):
    """The dense kernel takes narrow layers only; the sparse one is quicker for none of them."""

    def narrow(machine, layers):
        return "a layer is wide" if max(max(layer.inputs, layer.outputs) for layer in layers) > 256 else None

    made_up([("sparse", 0, 1e-9)], [("dense", 0, 1e-10)], dense={"why_not": narrow})
    network = stack(rng, "ssss", (300, 40, 40, 40, 300))
    chosen = plan(network, rng.random((ROWS, 300)), device="cpu")
    assert (names(chosen), steps_of(chosen)) == (["sparse", "dense", "sparse"], ((0, 1), (1, 3), (3, 4)))


@pytest.mark.parametrize("seed", range(8))
def test_no_other_way_to_cut_the_layers_is_estimated_to_take_less(made_up, seed):
    rng = np.random.default_rng(seed)
    kinds = "".join(rng.choice(["s", "d"], 5))
    widths = rng.choice([20, 60, 300], 6)
    layers = [
        sparse(rng, *pair, density=rng.choice([0.005, 0.3])) if kind == "s" else Linear(rng.normal(size=pair))
        for kind, pair in zip(kinds, pairwise(widths), strict=True)
    ]
    calls, edges = rng.choice([1e-6, 1e-5, 1e-4], 2), rng.choice([1e-10, 3e-10, 1e-9], 2)
    made_up([("sparse", calls[0], edges[0])], [("dense", calls[1], edges[1])])
    network = Network(tuple(layers))
    chosen = plan(network, rng.random((ROWS, widths[0])), device="cpu", merging=False)

    def cost(kind, first, last):
        places = [layer.inputs * layer.outputs for layer in layers[first:last]]
        stored = [layer.edges for layer in layers[first:last]]
        if kind == "s":
            return calls[0] + edges[0] * ROWS * sum(stored) if set(kinds[first:last]) == {"s"} else np.inf
        return calls[1] + edges[1] * ROWS * sum(places)

    least = [0.0]
    for last in range(1, 6):
        least.append(min(least[first] + cost(kind, first, last) for first in range(last) for kind in "sd"))
    assert least[-1] * 0.9999 <= chosen.estimate <= least[-1] * 1.0001 + 5 * LAUNCH_SECONDS


def test_what_no_kernel_can_run_is_told_with_the_reason(rng, made_up):
    def never(machine, *problem):
        return "it is Monday"

    made_up([("sparse", 0, 1e-9)], [("dense", 0, 1e-9)], sparse={"why_not": never}, dense={"why_not": never})
    with pytest.raises(UsageError, match="the kernel 'sparse' cannot run layer 1: it is Monday"):
        plan(stack(rng, "sd", (8, 8, 8)), rng.random((3, 8)), device="cpu")


def pruned(rng):
    """A network of which 16 rows are multiplied with the layers' zeros, where memory holds these."""
    return stack(rng, "ss", (256, 512, 256))


def test_the_default_weight_memory_is_half_of_what_is_free(rng, monkeypatch):
    for free, expected in ((100 << 30, 50 << 30), (1 << 20, 256 << 20)):
        monkeypatch.setattr(backends.host, "free_memory", lambda free=free: free)
        for options in ({"device": "cpu"}, {"device": "reference"}):
            assert plan(pruned(rng), np.zeros((16, 256)), **options).compiled.weight_memory == expected


def test_layers_stay_sparse_where_memory_does_not_hold_their_zeros(rng, made_up):
    network, rows = pruned(rng), rng.random((16, 256), dtype=np.float32)
    made_up([("sparse", 0, 1e-9)], [("dense", 0, 1e-12)])
    free = Session(network, device="cpu")
    needed = sum(map(free.backend.prepared_bytes, network))
    assert names(free.plan(rows)) == ["dense"]
    assert sum(free.backend.prepared_bytes(layer, with_zeros=True) for layer in network) > needed
    scarce = Session(network, device="cpu", weight_memory=needed)
    chosen = scarce.plan(rows)
    assert not chosen.streams
    assert all(step.kernel.operation == "spmspm" for step in chosen.steps)
    assert "Weights are prepared" not in str(chosen)
    assert np.array_equal(scarce(rows), free(rows))


def test_weights_that_stream_count_in_the_estimate_and_are_said(rng):
    network, rows = stack(rng, "d", (256, 512)), rng.random((16, 256), dtype=np.float32)
    free, scarce = (plan(network, rows, device="cpu", weight_memory=size) for size in ("1G", 1000))
    assert not free.streams
    assert free.preparing == 0
    assert scarce.streams
    assert len(scarce.steps) == 1
    assert scarce.estimate == pytest.approx(free.estimate + scarce.preparing)
    assert scarce.preparing > 0
    assert scarce.to_dict()["preparing_seconds"] == scarce.preparing
    assert "again for each batch, as they take more than the weight memory of 0.0 MB; estimated to take" in str(scarce)


def test_of_weights_that_stream_either_way_those_are_chosen_that_take_the_less_time(rng):
    network, rows = pruned(rng), rng.random((16, 256), dtype=np.float32)
    chosen = plan(network, rows, device="cpu", weight_memory=1)
    assert chosen.streams
    dense = sum(chosen.backend.prepared_bytes(layer, with_zeros=True) for layer in network)
    assert 0 < chosen.preparing < 2e-9 * dense
