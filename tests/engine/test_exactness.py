"""The statements of docs/exactness.md, one after the other; each is held here, for other tests look at more of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from children import python
from fused import bits, in_order
from hypothesis import given
from hypothesis import strategies as st
from oracle import expected, run, weights_of
from strategies import inputs_for, linear_layers, mixed_networks, networks, seeds

from sparsenn import (
    AvgPool2d,
    Flatten,
    Identity,
    Linear,
    MaxPool2d,
    Network,
    ReLU,
    Session,
    Softmax,
    SparseLinear,
    radixnet,
)
from sparsenn import plan as planned
from sparsenn.backends import oracle as reference
from sparsenn.datasets import digit_inputs
from sparsenn.datasets.truth import undecided_rows
from sparsenn.engine.steps import WHOLE, Measured
from sparsenn.errors import UsageError
from sparsenn.formats import from_dense
from sparsenn.layers import Conv2d, ForeignLayer, RowTensor
from sparsenn.report import compare_categories
from sparsenn.structure.merging import merge_equal_outputs

U = 2.0**-24
ON_GPU = pytest.mark.gpu
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
KERNELS = {"cpu": ("panel", "scatter", "rows", "gathered_rows"), "cuda": ("resident", "chunks")}
EVERY_KERNEL = pytest.mark.parametrize(
    ("device", "kernel"),
    [
        pytest.param(device, kernel, marks=ON_GPU if device == "cuda" else ())
        for device, kernels in KERNELS.items()
        for kernel in kernels
    ],
)


def test_every_statement_of_the_page_has_its_test(repository: Path) -> None:
    page = (repository / "docs" / "exactness.md").read_text(encoding="utf-8")
    named = {name for names in re.findall(r"<!-- tests: ([^>]*) -->", page) for name in names.split()}
    here = {name for name in globals() if name.startswith("test_")}
    assert named == here - {test_every_statement_of_the_page_has_its_test.__name__}
    for item in re.split(r"\n\n|\n(?=- )", page):
        assert not item.startswith("- ") or "<!-- tests:" in item, item


def outputs(network: Network, rows: Any, device: str, kernel: str = "auto", **options: Any) -> np.ndarray:
    """Return dense outputs; equal outputs are not merged unless that is asked for."""
    with Session(network, device=device, kernel=kernel, **{"merging": False, **options}) as session:
        return session(rows, form="dense")


@st.composite
def problems(draw: st.DrawFn, kinds: Any = networks, relu: bool = False) -> tuple[Network, np.ndarray]:
    """A network and float32 rows for it, at least one; all activations ReLU or none where that is wanted."""
    network = draw(kinds(max_layers=4))
    if relu:
        layers = (
            SparseLinear(layer.weights, layer.bias, draw(st.sampled_from([ReLU(), ReLU(0.5), Identity()])))
            for layer in network
        )
        network = Network(tuple(layers))
    rows = draw(inputs_for(network.inputs).filter(lambda inputs: inputs.shape[0] > 0))
    return network, rows.to_scipy().toarray().astype(np.float32)


def drawn_options(data: st.DataObject, network: Network) -> dict[str, Any]:
    return {
        "batch_size": data.draw(st.none() | st.integers(1, 50)),
        "memory_limit": data.draw(st.none() | st.integers(12 * network.widest + 64, 1 << 16)),
        "weight_memory": data.draw(st.none() | st.integers(1, 1 << 14)),
        "compaction": data.draw(st.booleans()),
        "deduplication": data.draw(st.booleans()),
    }


# ---- Sparse layers --------------------------------------------------------------------------------------------------


@EVERY_KERNEL
@given(problem=problems(relu=True))
def test_sums_are_in_order(device: str, kernel: str, problem: Any) -> None:
    network, rows = problem
    found = outputs(network, rows, device, kernel)
    assert np.array_equal(bits(found + 0.0), bits(in_order(network.layers, rows)))


@DEVICES
@given(problem=problems())
def test_kernels_of_a_device_give_the_same_bits(device: str, problem: Any) -> None:
    network, rows = problem
    found = [outputs(network, rows, device, kernel) for kernel in KERNELS[device]]
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.gpu
@given(problem=problems(relu=True))
def test_a_gpu_gives_the_bits_of_the_cpu(problem: Any) -> None:
    network, rows = problem
    assert np.array_equal(outputs(network, rows, "cuda", "chunks"), outputs(network, rows, "cpu", "panel"))


@EVERY_KERNEL
@given(problem=problems(), data=st.data())
def test_options_change_no_bit(device: str, kernel: str, problem: Any, data: st.DataObject) -> None:
    network, rows = problem
    options = drawn_options(data, network)
    assert np.array_equal(outputs(network, rows, device, kernel, **options), outputs(network, rows, device, kernel))


@EVERY_KERNEL
@given(problem=problems(), seed=seeds)
def test_other_rows_and_their_form_change_no_bit(device: str, kernel: str, problem: Any, seed: int) -> None:
    network, rows = problem
    chosen = np.random.default_rng(seed).integers(0, len(rows), len(rows) + 3)
    whole = outputs(network, rows, device, kernel)
    assert np.array_equal(outputs(network, rows[chosen], device, kernel), whole[chosen])
    assert np.array_equal(outputs(network, from_dense(rows), device, kernel), whole)


THREADS = """
import hashlib, numpy, scipy.sparse, sparsenn
rng = numpy.random.default_rng(3)
weights = [scipy.sparse.random(300, 300, 0.05, format="csc", random_state=rng, dtype=numpy.float32) for _ in range(4)]
rows = rng.random((5000, 300)).astype(numpy.float32)
for kernel in ("panel", "scatter", "rows", "gathered_rows"):
    session = sparsenn.Session(sparsenn.Network.from_scipy(weights, -0.1), device="cpu", kernel=kernel)
    print(hashlib.sha256(session(rows).tobytes()).hexdigest())
"""


def printed_by(script: str, threads: int) -> list[str]:
    done = python("-c", script, NUMBA_NUM_THREADS=threads)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_number_of_threads_changes_no_bit() -> None:
    assert len({*printed_by(THREADS, 1), *printed_by(THREADS, 2)}) == 1


@EVERY_KERNEL
@given(problem=problems(), data=st.data())
def test_a_network_may_be_cut(device: str, kernel: str, problem: Any, data: st.DataObject) -> None:
    network, rows = problem
    cut = data.draw(st.integers(0, len(network) - 1))
    first = outputs(Network(network.layers[:cut]), rows, device, kernel) if cut else rows
    found = outputs(Network(network.layers[cut:]), first, device, kernel)
    assert np.array_equal(found, outputs(network, rows, device, kernel))


@pytest.mark.gpu
def test_tiny_numbers_on_a_gpu() -> None:
    network = Network.from_scipy([sp.eye(3, format="csc")])
    for kernel in KERNELS["cuda"]:
        assert set(outputs(network, np.full((2, 3), 2.0**-130, np.float32), "cuda", kernel).ravel()) <= {0, 2.0**-130}


@DEVICES
@given(problem=problems(), seed=seeds)
def test_neurons_in_another_order_are_within_the_bound(device: str, problem: Any, seed: int) -> None:
    network, rows = problem
    order = np.random.default_rng(seed).permutation(network.inputs)
    first = SparseLinear.from_scipy(sp.csc_array(weights_of(network[0])[order]), network[0].bias, network[0].activation)
    found = outputs(Network((first, *network.layers[1:])), rows[:, order], device)
    values, error = expected(network, from_dense(rows))
    assert (np.abs(found - values) <= error).all()


# ---- Merging --------------------------------------------------------------------------------------------------------


@given(problem=problems())
def test_only_exact_sums_of_weights_merge(problem: Any) -> None:
    network, _ = problem
    merged = merge_equal_outputs(network).network
    for before, after in zip(network, merged, strict=True):
        assert np.isfinite(after.weights.values).all()
        assert weights_of(after).shape <= weights_of(before).shape
    wide = Network.from_scipy([sp.csc_array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), sp.csc_array(np.full((3, 1), 2e38))])
    assert merge_equal_outputs(wide).network[0].outputs == 3
    found = outputs(wide, np.float32([[0, 1], [1e-30, 1]]), "cpu", merging=True)
    assert np.isfinite(found).all()


@DEVICES
@given(seed=seeds)
def test_merging_changes_no_bit_where_sums_are_exact(device: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [np.kron(rng.integers(-4, 5, (6, 6)) / 8, np.ones((5, 5))) for _ in range(3)]
    network = Network.from_scipy([sp.csc_array(block) for block in blocks], -0.25)
    rows = rng.integers(0, 2, (40, 30)).astype(np.float32)
    assert merge_equal_outputs(network).network.edges < network.edges
    assert np.array_equal(outputs(network, rows, device, merging=True), outputs(network, rows, device))


@EVERY_KERNEL
@given(seed=seeds)
def test_merging_multiples_changes_no_bit(device: str, kernel: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    factors = np.tile(2.0 ** np.arange(-4, 5), 3)
    hidden = np.repeat(rng.normal(size=(20, 3)), 9, axis=1).astype(np.float32) * factors
    bias = np.repeat(rng.normal(size=3), 9).astype(np.float32) * factors
    read = np.tile(np.arange(9), 3)[:, None] == np.arange(9)  # one of each nine, so that no weights are summed
    layers = [sp.csc_array(np.float32(hidden)), sp.csc_array(np.float32(rng.normal(size=read.shape) * read))]
    for activation in (ReLU(), Identity()):
        first, second = (SparseLinear.from_scipy(layer, activation=activation) for layer in layers)
        network = Network((replace(first, bias=bias.astype(np.float32)), second))
        assert merge_equal_outputs(network).network.edges == network.edges - 20 * 24
        rows = rng.normal(size=(30, 20)).astype(np.float32)
        found = outputs(network, rows, device, kernel, merging=True)
        assert np.array_equal(found, outputs(network, rows, device, kernel))


@DEVICES
@given(seed=seeds)
def test_merging_stays_within_its_bound(device: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    copies = np.repeat(np.eye(5), 3, axis=1)
    weights = (rng.integers(-(2**20), 2**20, (15, 4)) / 64).astype(np.float32)  # any three have an exact sum
    network = Network.from_scipy([sp.csc_array(copies), sp.csc_array(weights)], -0.3)
    assert merge_equal_outputs(network).network[0].outputs == 5
    rows = (0.4 + rng.random((8, 5))).astype(np.float32)
    hidden = np.maximum(rows @ copies - np.float32(0.3), 0)
    gamma = 16 * U / (1 - 16 * U)
    bound = 2 * gamma * (hidden @ np.abs(weights).astype(np.float64) + 0.3)
    difference = outputs(network, rows, device, merging=True).astype(np.float64) - outputs(network, rows, device)
    assert (np.abs(difference) <= bound * (1 + 1e-6)).all()


@EVERY_KERNEL
@given(seed=seeds)
def test_dead_outputs_change_no_bit(device: str, kernel: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((12, 12)) * (rng.random(12) < 0.6) for _ in range(3)]
    layers = [sp.csc_array(each.astype(np.float32)) for each in weights]
    network, rows = Network.from_scipy(layers, -0.5), rng.standard_normal((9, 12)).astype(np.float32)
    found = outputs(network, rows, device, kernel, merging=True)
    assert np.array_equal(found, outputs(network, rows, device, kernel))


def test_the_reference_does_not_merge() -> None:
    network = Network.from_scipy([sp.csc_array(np.ones((2, 6))), sp.csc_array(np.ones((6, 2)))])
    for options, width in (({}, 6), ({"merging": True}, 1)):
        plan = Session(network, device="reference", **options).plan(np.ones((1, 2)))
        assert plan.merged.network[0].outputs == width


# ---- Everything else ------------------------------------------------------------------------------------------------


@DEVICES
@given(data=st.data(), seed=seeds)
def test_dense_sums_are_within_the_bound(device: str, data: st.DataObject, seed: int) -> None:
    layer = data.draw(linear_layers(*data.draw(st.tuples(st.integers(1, 200), st.integers(1, 40)))))
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(9, layer.inputs)).astype(np.float32)
    bias = np.zeros(layer.outputs) if layer.bias is None else np.broadcast_to(layer.bias, layer.outputs)
    size = np.abs(rows).astype(np.float64) @ np.abs(weights_of(layer)) + np.abs(bias)
    bound = (layer.inputs + 2) * 2 * U * size + 4 * 2 * U
    assert (np.abs(outputs(Network((layer,)), rows, device) - run(Network((layer,)), rows)) <= bound).all()


@DEVICES
@given(problem=problems(mixed_networks))
def test_whole_networks_are_within_the_bound(device: str, problem: Any) -> None:
    network, rows = problem
    values, error = expected(network, from_dense(rows))
    assert (np.abs(outputs(network, rows, device, merging=True) - values) <= error).all()


@ON_GPU
@pytest.mark.parametrize("exponent", [0, 18, 40])
def test_split_numbers_are_within_the_bound_if_of_like_size(exponent: int, rng: np.random.Generator) -> None:
    """Beyond 2**18 by what is dropped; half of a row, or of an output's weights, is so much smaller than the rest."""
    smaller = np.where(np.arange(64) < 32, 1.0, 2.0**-exponent)
    rows, weights = np.float32(rng.choice([-1, 1], (2, 20, 64)) * rng.uniform(0.5, 1, (2, 20, 64)))
    columns = [*weights * (smaller < 1), *weights * np.float32(smaller), *weights * np.float32(smaller[::-1])]
    rows *= np.float32(smaller)
    layer = SparseLinear.from_scipy(sp.csc_array(np.float32(columns).T), activation=Identity())
    found = Session(Network((layer,)), device="cuda", kernel="two_of_four_float32")(rows)
    sizes, sums = np.abs(rows).astype(np.float64), np.abs(weights_of(layer)).astype(np.float64)
    bound = (layer.inputs + 2) * 2 * U * (sizes @ sums)
    if exponent > 18:
        bound += sizes.max(axis=1)[:, None] * 2.0**-39 * sums.sum(axis=0)
        bound += sizes.sum(axis=1)[:, None] * 2.0**-38 * sums.max(axis=0)
    assert (np.abs(found - run(Network((layer,)), rows)) <= bound).all()


@DEVICES
def test_means_are_as_good_as_float32(device: str, rng: np.random.Generator) -> None:
    images = (rng.random((2, 300 * 300)) * 2.0 ** rng.integers(-20, 20, (2, 300 * 300))).astype(np.float32)
    network = Network((AvgPool2d(300),), image=(1, 300, 300))
    np.testing.assert_allclose(outputs(network, images, device), run(network, images), rtol=2 * U)
    shares = Network((Softmax(),), image=(1, 300, 300))
    np.testing.assert_allclose(outputs(shares, np.zeros_like(images), device), 1 / 90_000, rtol=2 * U)


@DEVICES
def test_the_largest_number_is_exact(device: str, rng: np.random.Generator) -> None:
    images = rng.normal(size=(3, 2 * 9 * 8)).astype(np.float32)
    network = Network((MaxPool2d((3, 2)), Flatten()), image=(2, 9, 8))
    assert np.array_equal(outputs(network, images, device), run(network, images))


@pytest.mark.parametrize(("device", "precision"), [("reference", "float32"), ("cpu", "float64")])
@given(problem=problems(mixed_networks))
def test_the_reference_is_of_float64(device: str, precision: str, problem: Any) -> None:
    network, rows = problem
    found = outputs(network, rows, device, precision=precision)
    assert found.dtype == np.float64
    values, error = expected(network, from_dense(rows))
    assert (np.abs(found - values) <= U * error).all()


def test_the_reference_is_of_float64_also_where_all_rows_die() -> None:
    nothing = SparseLinear.from_scipy(sp.csc_array((2, 2), dtype=np.float32))
    for rows in (np.ones((3, 2)), sp.csr_array(np.ones((3, 2)))):
        found = outputs(Network((nothing, Linear(np.eye(2)))), rows, "reference")
        assert (found.dtype, found.shape) == (np.float64, (3, 2))


@DEVICES
def test_float32_unless_asked_otherwise(device: str, rng: np.random.Generator) -> None:
    layers = Conv2d(rng.normal(size=(4, 1, 3, 3))), Flatten(), Linear(rng.normal(size=(144, 64))), Linear(np.eye(64))
    network = Network((*layers, SparseLinear.from_scipy(sp.eye(64, format="csc"))), image=(1, 8, 8))
    assert set(Session(network, device=device).plan(np.ones((5, 64))).precisions) <= {"float32", None}


# ---- Reproducible ---------------------------------------------------------------------------------------------------


@DEVICES
@given(problem=problems(mixed_networks), data=st.data(), seed=seeds)
def test_reproducible_outputs_depend_on_the_row_alone(
    device: str, problem: Any, data: st.DataObject, seed: int
) -> None:
    network, rows = problem
    chosen = np.random.default_rng(seed).integers(0, len(rows), len(rows) + 3)
    whole = outputs(network, rows, device, reproducible=True)
    options = drawn_options(data, network)
    found = outputs(network, rows[chosen], device, reproducible=True, **options)
    assert np.array_equal(found, whole[chosen])
    alone = [outputs(network, rows[number : number + 1], device, reproducible=True) for number in range(len(rows))]
    assert np.array_equal(np.concatenate(alone), whole)


REPRODUCIBLE = """
import hashlib, numpy, sparsenn
rng = numpy.random.default_rng(3)
made = [rng.standard_normal(shape).astype(numpy.float32) for shape in ((6, 2, 3, 3), (6 * 18 * 18, 300), (300, 7))]
layers = sparsenn.Conv2d(made[0], -0.1), sparsenn.Flatten(), sparsenn.Linear(made[1]), sparsenn.Linear(made[2])
session = sparsenn.Session(sparsenn.Network(layers, image=(2, 20, 20)), device="cpu", reproducible=True)
for rows in (1, 3, 700):
    print(rows, hashlib.sha256(session(rng.random((rows, 800)).astype(numpy.float32)).tobytes()).hexdigest())
"""


def test_the_number_of_threads_changes_no_reproducible_bit() -> None:
    assert printed_by(REPRODUCIBLE, 1) == printed_by(REPRODUCIBLE, 2)


@given(problem=problems(relu=True))
def test_dense_layers_add_up_as_sparse_ones(problem: Any) -> None:
    network, rows = problem
    dense = Network(tuple(Linear(weights_of(layer), layer.bias, layer.activation) for layer in network))
    for options in ({}, {"reproducible": True}):
        found = outputs(dense, rows, "cpu", **options)
        assert np.array_equal(bits(found + 0.0), bits(in_order(network.layers, rows)))
        assert np.array_equal(found, outputs(network, rows, "cpu", **options))


@DEVICES
def test_reproducible_sparse_layers_stay_sparse(device: str, rng: np.random.Generator) -> None:
    network = Network.from_scipy([sp.csc_array(rng.standard_normal((200, 200)).astype(np.float32)) for _ in range(3)])
    for wanted, operation in ((False, "mlp"), (True, "spmspm")):
        plan = Session(network, device=device, reproducible=wanted).plan(np.ones((4000, 200)))
        assert {kernel.operation for kernel in plan.kernels} == {operation}
    wide = Network.from_scipy([sp.random_array((2048, 2048), density=0.1, rng=np.random.default_rng(0))])
    for wanted in (False, True):
        plan = planned(wide, np.ones((10_000, 2048), np.float32), machine="h200", reproducible=wanted)
        assert ({kernel.name for kernel in plan.kernels} <= set(KERNELS["cuda"])) is wanted


def test_what_is_not_reproducible_is_refused(rng: np.random.Generator) -> None:
    def refused(width: int, **options: Any) -> str:
        network = Network((Conv2d(rng.normal(size=(4, 1, 3, 3))), Flatten(), Linear(rng.normal(size=(144, width)))),
                          image=(1, 8, 8))  # fmt: skip
        with pytest.raises(UsageError) as caught:
            Session(network, reproducible=True, **options).plan(np.ones((5, 64)))
        return str(caught.value)

    assert "'fused_fma' cannot run" in refused(257, machine="h200")
    for options in ({"precision": "tf32"}, {"precision": "float16"}, {"precision": "float16", "machine": "h200"}):
        assert "not multiplied, if reproducibly," in refused(10, **{"device": "auto", **options})
    assert "on reference" in refused(10, device="reference")


def test_onnx_runtime_stays_within_the_bound_or_is_ruled_out(rng: np.random.Generator) -> None:
    pytest.importorskip("onnxruntime")
    from onnx_graphs import with_graph

    layers = [Linear(rng.normal(size=shape), 0.1, ReLU()) for shape in ((30, 40), (40, 20))]
    network, rows = with_graph(Network(layers)), rng.random((7, 30), np.float32)
    faster = {WHOLE: Measured(((0, 2, "onnxruntime"),), 1e-6)}

    def found(allows: bool, **options: Any) -> tuple[str, np.ndarray]:
        session = Session(network if allows else replace(network), device="cpu", **options)
        session._compiled.choices[8, "dense"] = faster
        first = session(rows)
        assert np.array_equal(session(rows), first)
        return session.plan(rows).kernel.name, first

    values, error = expected(network, from_dense(rows))
    kernel, outputs_there = found(True)
    assert kernel == "onnxruntime"
    assert (np.abs(outputs_there - values) <= error).all()
    kernel, outputs_here = found(False)
    assert kernel != "onnxruntime"
    for options in ({"reproducible": True}, {"kernel": "register_tiled"}):
        assert np.array_equal(found(True, **options)[1], outputs_here)


# ---- Categories -----------------------------------------------------------------------------------------------------


@DEVICES
@given(problem=problems(mixed_networks), data=st.data())
def test_what_is_clearly_above_zero_is_a_category(device: str, problem: Any, data: st.DataObject) -> None:
    network, rows = problem
    options = {name: data.draw(st.booleans()) for name in ("merging", "compaction", "deduplication")}
    values, error = expected(network, from_dense(rows))
    found = Session(network, device=device, **options).run(rows).categories
    assert set(np.flatnonzero((np.abs(values) > error).any(axis=1))) <= set(found)


@DEVICES
def test_within_the_bound_the_order_decides(device: str) -> None:
    small = 2.0**-25
    rows = np.ones((1, 3), np.float32)
    for weights, category in (([-1, small, 1], False), ([-1, 1, small], True)):
        network = Network.from_scipy([sp.csc_array(np.float32(weights)[:, None])])
        for kernel in KERNELS[device]:
            assert bool(outputs(network, rows, device, kernel).any()) is category


def test_merging_changes_no_output_of_the_challenge() -> None:
    network, rows = radixnet(1024, 120, bias=-0.3), digit_inputs(1024, 1000)
    merged, each = (outputs(network, rows, "cpu", merging=merging) for merging in (True, False))
    assert np.array_equal(merged, each)
    assert np.unique(each).tolist() == [0, 32]
    hidden = Network(network.layers[:3])
    assert not np.array_equal(outputs(hidden, rows, "cpu", merging=True), outputs(hidden, rows, "cpu"))


def test_a_failure_says_how_many_rows_rounding_decides() -> None:
    weights = sp.csc_array(np.float32([-1, 2.0**-25, 1])[:, None])
    network, rows = Network.from_scipy([weights]), from_dense(np.float32([[1, 1, 1], [0, 0, 1], [1, 0, 0]]))
    truth = reference.categories(network, rows)
    assert truth.tolist() == [0, 1]
    found = Session(network, device="cpu").run(rows).categories
    verdict = compare_categories(found, truth)
    assert verdict.missing.tolist() == undecided_rows(network, rows, np.arange(3)).tolist() == [0]
    assert "1 of these within float32's rounding" in str(replace(verdict, undecided=1))
    assert "none of these within float32's rounding" in str(replace(verdict, undecided=0))
    assert "rounding" not in str(verdict)
    assert undecided_rows(Network((Linear(np.ones((3, 1))),)), rows, truth) is None


def test_reproducible_sessions_refuse_foreign_layers() -> None:
    layer = ForeignLayer(b"", (RowTensor((3,)),), (RowTensor((2,)),), operators=("Sin",))
    with pytest.raises(UsageError, match="leave out reproducible"):
        Session(Network((layer,)), device="cpu", reproducible=True)(np.ones((1, 3), np.float32))
