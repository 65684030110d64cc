"""Dense layers, alone and among sparse ones, through the engine."""

import io
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_registry import add, let_auto_take
from oracle import assert_close
from rich.console import Console
from sessions import SWITCHES, altered, steps_of
from sparse_layers import sparse_layer as sparse
from strategies import inputs_for, mixed_networks

from sparsenn import backends, infer
from sparsenn.backends import DenseKernel
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.stepwise import DEPTH
from sparsenn.engine import plan
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Identity, Linear, ReLU
from sparsenn.network import Network
from sparsenn.report import draw_layers, layer_table, to_json, to_record
from sparsenn.structure.merging import merge_equal_outputs

LIMITS = [{}, {"batch_size": 1}, {"batch_size": 7}, {"memory_limit": 2000}, {"weight_memory": 1}]
LIMITS += [{"weight_memory": 3000, "batch_size": 7}]


@st.composite
def problems(draw):
    network = draw(mixed_networks())
    return network, draw(inputs_for(network.inputs))


@pytest.fixture
def exact(rng):
    """Sparse, dense, dense, sparse, sparse, dense; equal inputs, and sums of eighths, which are exact in float32."""
    kinds = [sparse, Linear, Linear, sparse, sparse, Linear]
    widths = [30, 17, 12, 20, 9, 25, 5]
    made = (
        kind(rng.integers(-2, 3, pair) * (rng.random(pair) < 0.4), -1.125, ReLU(clip=4.0))
        for kind, pair in zip(kinds, itertools.pairwise(widths), strict=True)
    )
    inputs = rng.integers(0, 9, (25, 30)) / 8 * (rng.random((25, 30)) < 0.1)
    return Network(tuple(made)), from_dense(np.repeat(inputs, 4, axis=0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(problem=problems(), switches=st.sampled_from(SWITCHES), limits=st.sampled_from(LIMITS))
def test_any_mixture_equals_the_reference(device, problem, switches, limits):
    network, inputs = problem
    result = infer(network, inputs, device=device, **switches, **limits)
    # on a GPU, products of split factors are rounded a little more
    assert_close(result.outputs, network, inputs, **({"slack": 8} if device == "cuda" else {}))
    assert np.array_equal(result.categories, np.flatnonzero(np.diff(result.outputs.indptr)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("layers", [2, 3])
def test_rows_that_die_in_dense_layers_are_no_categories(device, layers):
    """Also where others died in sparse layers before, and were dropped."""
    dying = Linear(np.eye(4), np.float32([0, 0, -1, 0]), ReLU())
    network = Network((sparse(np.eye(4), [0, -1, 0, 0]), dying, sparse(np.eye(4)))[:layers])
    rows = np.float32([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 3], [0, 0, 0, 0]])
    kernel = "chunks" if device == "cuda" else "panel"
    for deduplication in (True, False):
        result = infer(network, rows, device=device, kernel=kernel, deduplication=deduplication)
        assert result.categories.tolist() == [0, 3]
        assert np.array_equal(result.categories, np.flatnonzero(result.dense.any(axis=1)))


@given(problems(), st.sampled_from([entry.name for entry in backends.kernels("spmspm", "cpu")]))
def test_every_kernel_of_sparse_layers_goes_with_dense_ones(problem, kernel):
    network, inputs = problem
    if not network.runs()[1:] and isinstance(network[0], Linear):
        kernel = "register_tiled"
    assert_close(infer(network, inputs, device="cpu", kernel=kernel).outputs, network, inputs)


def assert_every_count(result, network, inputs):
    expected = inputs.to_scipy().astype(np.float64)
    plan = result.plan
    ends = [step.last for step in plan.steps]
    for statistics, layer in zip(result.statistics, network, strict=True):
        expected = backends.oracle.forward(layer, expected)
        multiplied_dense = plan.kernels[statistics.layer - 1].operation == "mlp"
        if multiplied_dense and statistics.layer not in ends:
            assert (statistics.active_rows, statistics.nonzeros, statistics.density) == (None, None, None)
        elif multiplied_dense and (plan.merged.copies[statistics.layer - 1] > 1).any():
            assert (statistics.nonzeros, statistics.density) == (None, None)
        else:
            active = np.count_nonzero(np.diff(expected.indptr))
            assert (statistics.active_rows, statistics.nonzeros) == (active, expected.nnz)
            assert statistics.density == (expected.nnz / (active * layer.outputs) if active else 0.0)
        if isinstance(layer, Linear):
            assert statistics.performed_edges == statistics.rows * layer.inputs * layer.outputs
    assert np.array_equal(result.outputs.to_scipy().toarray(), expected.toarray())


@pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_where_sums_are_exact_every_bit_and_every_count_agrees(exact, device, batch_size, switches, named):
    network, inputs = exact
    kernel = {"cpu": "panel", "reference": "reference", "cuda": "chunks"}[device] if named else "auto"
    result = infer(network, inputs, device=device, kernel=kernel, batch_size=batch_size, **switches)
    assert result.categories.size
    assert_every_count(result, network, inputs)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_streamed_weights_give_the_same_bits(exact, ahead, layers):
    class Streaming(CPUBackend):
        prepares_ahead = ahead

    network, inputs = exact
    most = max(CPUBackend().prepared_bytes(layer) for layer in network)
    options = {"device": "cpu", "kernel": "panel", "batch_size": 30, "weight_memory": layers * most * (1 + ahead)}
    session = altered(network, backend=Streaming(), **options)
    needed = sum(map(CPUBackend().prepared_bytes, network))
    for _ in range(2):
        result = session.run(inputs)
        assert result.plan.streams == (needed > options["weight_memory"])
        assert_every_count(result, network, inputs)


def test_steps_of_kernels_that_are_named_never_hold_both_kinds(exact):
    network, inputs = exact
    options = {"device": "cpu", "kernel": "panel"}
    assert network.runs() == ((0, 1), (1, 3), (3, 5), (5, 6))
    assert steps_of(plan(network, inputs, **options)) == network.runs()
    alone = plan(network, inputs, weight_memory=1, **options)
    assert steps_of(alone) == tuple((number, number + 1) for number in range(6))
    assert "Weights are prepared in 6 parts" in str(alone)


def test_weights_that_fit_are_prepared_once_for_all_batches_and_runs(exact):
    prepared = []

    class Counting(CPUBackend):
        def prepare(self, layers, *more):
            prepared.append(len(layers))
            return super().prepare(layers, *more)

    network, inputs = exact
    session = altered(network, backend=Counting(), device="cpu", kernel="panel", batch_size=10)
    for _ in range(2):
        result = session.run(inputs)
        session(inputs.to_scipy().toarray()[:7])
        session(inputs)
    assert prepared == [1, 2, 2, 1]
    assert "are prepared in" not in str(result.plan)


def test_equal_rows_stay_one_in_dense_layers(rng):
    deep = [sparse(rng.random((12, 12)) / 6, 0.1) for _ in range(DEPTH)]
    network = Network((*deep, Linear(rng.random((12, 5)), 0.1), Linear(rng.random((5, 3)))))
    inputs = from_dense(np.repeat(rng.random((2, 12)), 50, axis=0))
    found = infer(network, inputs, device="cpu", kernel="panel").statistics
    assert [(layer.rows, layer.active_rows) for layer in found[-3:]] == [(100, 100), (2, None), (2, 100)]
    alone = infer(Network(network.layers[-2:]), from_dense(rng.random((50, 12))), device="cpu").statistics
    assert [(layer.rows, layer.distinct_rows) for layer in alone] == [(50, None)] * 2


def test_equal_rows_are_looked_for_after_dense_layers_as_often_as_without_them(rng):
    network = Network((Linear(np.eye(6)), *(sparse(rng.normal(size=(6, 6))) for _ in range(2 * DEPTH))))
    options = {"device": "cpu", "kernel": "panel", "compaction": False}
    found = infer(network, from_dense(rng.random((10, 6))), **options).statistics
    assert [layer.layer for layer in found if layer.distinct_rows is not None] == [1 + DEPTH]


def test_rows_that_die_in_dense_layers_are_dropped(rng):
    dying = Linear(-np.eye(6), -1.0)
    inputs = from_dense(rng.random((10, 6)))
    network = Network((dying, sparse(np.eye(6)), Linear(np.eye(6)), Linear(np.ones((6, 3)))))
    dropped, kept = (infer(network, inputs, device="cpu", kernel="panel", compaction=flag) for flag in (True, False))
    assert [layer.rows for layer in dropped.statistics] == [10, 10, 0, 0]
    assert [layer.active_rows for layer in dropped.statistics] == [0, 0, 0, 0]
    assert dropped.statistics[-1].kernel == "register_tiled"
    assert kept.statistics[-1].rows > 0
    for result in (dropped, kept):
        assert result.categories.size == 0
        assert result.outputs.shape == (10, 3)


def test_rows_that_a_dense_layer_revives_are_kept(rng):
    inputs = from_dense(rng.random((10, 6)))
    network = Network((sparse(-np.eye(6), -1.0), Linear(np.eye(6), 0.5, Identity()), Linear(np.eye(6))))
    result = infer(network, inputs, device="cpu")
    assert result.plan.droppable_from == 1
    assert np.array_equal(result.outputs.to_scipy().toarray(), np.full((10, 6), 0.5))


def test_outputs_are_not_merged_where_a_dense_layer_reads_them(rng):
    def blocks():
        return np.kron(rng.integers(1, 5, (2, 2)) / 4, np.ones((3, 3)))

    network = Network((sparse(blocks()), sparse(blocks()), Linear(blocks()), sparse(blocks()), sparse(blocks())))
    merged = merge_equal_outputs(network)
    assert [layer.outputs for layer in merged.network] == [2, 6, 6, 2, 2]
    assert merged.network[2] is network[2]
    assert [copies.tolist() for copies in merged.copies] == [[3] * 2, [1] * 6, [1] * 6, [3] * 2, [3] * 2]
    assert merged.expansion.tolist() == [0, 0, 0, 1, 1, 1]
    inputs = from_dense(rng.integers(0, 3, (20, 6)))
    on, off = (infer(network, inputs, device="cpu", kernel="panel", merging=flag) for flag in (True, False))
    assert np.array_equal(on.outputs.to_scipy().toarray(), off.outputs.to_scipy().toarray())
    assert [layer.nonzeros for layer in on.statistics] == [layer.nonzeros for layer in off.statistics]


def test_one_layer_used_twice_is_merged_where_it_may_be(rng):
    """The same object before a dense layer and before a sparse one."""
    twice = sparse(np.ones((4, 4)))
    merged = merge_equal_outputs(Network((twice, twice, Linear(np.ones((4, 4))), twice)))
    assert [layer.outputs for layer in merged.network] == [1, 4, 4, 1]


def test_a_wide_input_of_a_dense_layer_counts_for_the_memory(rng):
    narrow = Network((Linear(rng.random((1000, 2))),))
    inputs = from_dense(rng.random((20, 1000)))
    with pytest.raises(ResourceError, match="does not hold one row"):
        plan(narrow, inputs, device="cpu", memory_limit=11_999)
    assert plan(narrow, inputs, device="cpu", memory_limit=50_000).batch_size == 4


def test_a_plan_of_both_kinds_says_which_layers_are_which(exact):
    chosen = plan(*exact, device="cpu", kernel="panel")
    text = str(chosen)
    assert "Sparse layers (1, 4–5): kernel panel: " in text
    assert "Dense layers (2–3, 6): kernel register_tiled: " in text
    assert text.endswith("; equal rows are computed once in sparse layers.")
    assert chosen.to_dict()["kernels"] == ["panel", "register_tiled"]
    assert "Dense layers (2–3, 6): kernel register_tiled" in str(
        plan(*exact, device="cpu", kernel="panel", weight_memory=1)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "panel"}, "unknown cpu kernel for mlp 'panel'"),
        ({"precision": "half"}, "unknown precision 'half'"),
        ({"precision": "tf32"}, "dense layers are not multiplied in tf32 on cpu; known: float32"),
        ({"precision": "float16", "device": "reference"}, "not multiplied in float16 on reference"),
        (
            {"precision": "float16", "kernel": "register_tiled"},
            "the kernel 'register_tiled' multiplies in float32, not in float16",
        ),
    ],
    ids=str,
)
def test_what_dense_layers_cannot_have_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        plan(Network((Linear(np.eye(3)),)), from_dense(np.eye(3)), **{"device": "cpu", **options})


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_what_sparse_layers_cannot_have_is_refused(exact, device, precision):
    network, inputs = exact
    only = Network(network.layers[:1])
    with pytest.raises(UsageError, match=rf"sparse layers .* {precision} on {device}"):
        plan(only, inputs, device=device, precision=precision)
    if device == "cpu":
        with pytest.raises(UsageError, match=r"'panel' .* float32 only"):
            plan(only, inputs, device=device, precision=precision, kernel="panel")
    with pytest.raises(UsageError, match=rf"dense layers .* {precision} on {device}"):
        plan(network, inputs, device=device, precision=precision)
    with pytest.raises(UsageError, match="unknown precision 'half'"):
        plan(only, inputs, device=device, precision="half")
    with pytest.raises(UsageError, match="unknown cpu kernel for spmspm 'register_tiled'"):
        plan(network, inputs, device="cpu", kernel="register_tiled")


@pytest.fixture
def rungs(monkeypatch):
    """Kernels of dense layers for the CPU, kept for one test: narrow layers only, and one of lower precision."""

    def narrow(machine, layers):
        return "a layer is wide" if max(layer.outputs for layer in layers) > 8 else None

    blas = replace(backends.kernel_named("mlp", "register_tiled", "cpu"), seconds=None, sparse_rows=False)
    few = DenseKernel(name="narrow", device="cpu", summary="narrow layers", launch=blas.launch, why_not=narrow)
    rounded = replace(few, name="rounded", summary="narrow layers, rounded", precision="tf32")
    let_auto_take(monkeypatch, few, rounded, blas)


def dense_runs(*widths):
    """Dense layers of 4 inputs and so many outputs, each between sparse layers."""
    pairs = ((Linear(np.ones((4, width))), sparse(np.ones((width, 4)))) for width in widths)
    return Network(tuple(itertools.chain.from_iterable(pairs)))


@pytest.mark.usefixtures("rungs")
def test_each_run_has_the_first_kernel_that_can_run_it(rng):
    network, inputs = dense_runs(3, 20, 5), from_dense(rng.random((9, 4)))
    result = infer(network, inputs, device="cpu", kernel="panel")
    assert [layer.kernel for layer in result.statistics[::2]] == ["narrow", "register_tiled", "narrow"]
    assert "Dense layers (1, 5): kernel narrow: narrow layers. " in str(result.plan)
    assert "Dense layers (3): kernel register_tiled: " in str(result.plan)
    assert_close(result.outputs, network, inputs)


@pytest.mark.usefixtures("rungs")
def test_a_precision_is_obeyed_or_refused(rng):
    inputs = from_dense(rng.random((9, 4)))
    narrow, wide = (Network((Linear(rng.random((4, width))),)) for width in (8, 20))
    chosen = plan(narrow, inputs, device="cpu", precision="tf32")
    assert chosen.kernel.name == "rounded"
    assert "Kernel rounded: narrow layers, rounded; factors are rounded to tf32." in str(chosen)
    assert plan(narrow, inputs, device="cpu", precision="tf32", kernel="rounded").kernel.name == "rounded"
    assert (
        plan(wide, inputs, device="cpu", precision="tf32").kernel.name == "register_tiled"
    )  # float32 keeps any precision
    for network, options, message in (
        (wide, {"precision": "tf32", "kernel": "rounded"}, "the kernel 'rounded' cannot run layer 1: a layer is wide"),
        (wide, {"kernel": "narrow"}, "the kernel 'narrow' cannot run layer 1: a layer is wide"),
        (narrow, {"kernel": "rounded"}, "'rounded' multiplies in tf32"),
        (narrow, {"precision": "float16"}, r"float16 on cpu.* float32, tf32"),
    ):
        with pytest.raises(UsageError, match=message):
            plan(network, inputs, device="cpu", **options)


@pytest.mark.usefixtures("rungs")
def test_sparse_layers_beside_dense_ones_of_another_precision_stay_in_float32(rng):
    network, inputs = dense_runs(3, 20, 5), from_dense(rng.random((9, 4)))
    result = infer(network, inputs, device="cpu", kernel="panel", precision="tf32")
    assert [layer.kernel for layer in result.statistics[::2]] == ["rounded", "register_tiled", "rounded"]
    assert result.plan.precisions == ("tf32", "float32", "float32", "float32", "tf32", "float32")
    assert str(result.plan).endswith(". Layers multiplied in tf32: 1, 5; in float32: 2–4, 6.")
    record = json.loads(json.dumps(result.plan.to_dict()))
    assert (record["precision"], record["precisions"]) == ("tf32", list(result.plan.precisions))
    assert_close(result.outputs, network, inputs)
    exact_plan = plan(network, inputs, device="cpu", kernel="panel")
    assert exact_plan.precisions == ("float32",) * 6
    assert "Layers multiplied" not in str(exact_plan)


def test_every_kernel_that_auto_names_for_sparse_runs_is_asked_about_each_of_them(monkeypatch, exact):
    network, inputs = exact
    asked = []

    def why_not(machine, layers, given):
        asked.append((len(layers), given.shape, given.iso))
        return "no" if len(layers) == 2 else None

    panel = backends.kernel_named("spmspm", "panel", "cpu")
    add(monkeypatch, replace(panel, why_not=why_not))
    with pytest.raises(UsageError, match="the kernel 'panel' cannot run layers 4 to 5: no"):
        plan(network, inputs, device="cpu", kernel="panel", merging=False)
    assert asked == [(1, (2, 30), False), (2, (2, 20), False)]


def test_what_is_unknown_is_a_dash_and_null(exact, tmp_path):
    result = infer(*exact, device="cpu", kernel="panel")
    layers = json.loads(to_json(to_record(result)))["per_layer"]
    assert [layer["active_rows"] is None for layer in layers] == [False, True, False, False, False, False]
    assert layers[1]["density"] is layers[1]["nonzeros"] is None
    screen = Console(width=160, file=io.StringIO())
    screen.print(layer_table(result.statistics))
    line = next(line for line in screen.file.getvalue().splitlines() if line.startswith("│     2"))
    assert line.count("–") == 3
    draw_layers(result.statistics, tmp_path / "layers.svg")
    assert (tmp_path / "layers.svg").stat().st_size


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "allowed"), [("tf32", 5e-3), ("float16", 1e-2)])
@pytest.mark.parametrize(
    ("kinds", "widths"), [((Linear,) * 3, (72, 64, 64, 4)), ((Linear, sparse) * 2, (72, 64, 50, 64, 4))]
)
def test_lower_precisions_run_on_a_gpu(rng, precision, allowed, kinds, widths):
    pairs = zip(kinds, itertools.pairwise(widths), strict=True)
    network = Network(tuple(kind(rng.normal(size=pair) / 6, 0.1) for kind, pair in pairs))
    inputs = from_dense(rng.normal(size=(1000, 72)))
    result = infer(network, inputs, device="cuda", precision=precision)
    # sparse layers with so many weights are run as dense ones
    assert result.plan.precisions == (precision,) * len(kinds)
    expected = backends.oracle.run(network, inputs).toarray()
    difference = np.abs(result.outputs.to_scipy().toarray() - expected).max()
    assert 0 < difference <= allowed * np.abs(expected).max()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_a_wide_layer_runs_in_the_faster_precision(rng, precision):
    inputs = from_dense(rng.normal(size=(1000, 72)))
    wide = plan(Network((Linear(rng.normal(size=(72, 3000))),)), inputs, device="cuda", precision=precision)
    assert wide.kernel.precision in (precision, "float32")


@pytest.mark.gpu
def test_layers_too_wide_for_the_fused_kernels_go_to_the_library(rng):
    network = Network((Linear(rng.normal(size=(30, 3000))), Linear(rng.normal(size=(3000, 5)))))
    inputs = from_dense(rng.random((50, 30)))
    result = infer(network, inputs, device="cuda")
    assert result.plan.kernel.name == "cublas"
    assert_close(result.outputs, network, inputs)
