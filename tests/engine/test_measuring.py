"""Measured choice: the fastest candidate runs, equal calls stay equal, and other sessions read the choice from disk."""

from __future__ import annotations

import pickle
import re
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from kernel_registry import let_auto_take

from sparsenn import Session, backends
from sparsenn.backends.contract import Queue
from sparsenn.backends.machine import H200
from sparsenn.engine import compiled_network, measuring
from sparsenn.engine.choosing import RowsShape, segments_of
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.options import Options
from sparsenn.engine.steps import Alternative, Measured, Step, choice_of, label_of, records_of
from sparsenn.errors import InputError
from sparsenn.formats import from_dense
from sparsenn.layers import Conv2d, Flatten, Linear, ReLU, SparseLinear
from sparsenn.network import Network
from sparsenn.runtime import choices as choice_store

pytestmark = pytest.mark.usefixtures("measuring_kernels")


SLOW = 2e-2  # seconds: longer than other processes hold up a run


@pytest.fixture
def delayed(monkeypatch):
    """Let `auto` take copies of a kernel, each of which waits before it computes: names and seconds."""

    def register(operation, name, prior, **delays):
        kernel = backends.kernel_named(operation, name, "cpu")
        calls = dict.fromkeys(delays, 0)

        def waiting(called, run):
            def run_late(*arguments):
                calls[called] += 1
                time.sleep(delays[called])
                return run(*arguments)

            return run_late

        runs = [name for name in ("launch", "run_stack") if getattr(kernel, name, None)]
        made = [
            replace(
                kernel,
                name=called,
                seconds=lambda *problem: prior,
                **{name: waiting(called, getattr(kernel, name)) for name in runs},
            )
            for called in delays
        ]
        let_auto_take(monkeypatch, *made)
        return calls

    return register


@pytest.fixture
def calls(delayed):
    """How often a slow kernel and a fast one were called, of which the slow one has the better name."""
    return delayed("mlp", "register_tiled", 1e-6, slow=SLOW, fast=0)


def dense(rng, *widths):
    return Network([Linear(rng.standard_normal(pair, dtype=np.float32), 0.1, ReLU()) for pair in pairwise(widths)])


def alternative(in_order: bool = True) -> Alternative:
    kernel = replace(backends.kernel_named("mlp", "register_tiled", "cpu"), name="a")
    return Alternative((Step(0, 1, kernel, in_order=in_order),))


def names(plan):
    return [step.kernel.name for step in plan.steps]


def test_the_fastest_candidate_runs_whatever_the_prior(rng, delayed):
    delayed("mlp", "register_tiled", 1e-6, slow=SLOW, fast=0, slower=2 * SLOW)
    session = Session(dense(rng, 8, 8), device="cpu")
    plan = session.plan(rng.random((5, 8), np.float32))
    assert names(plan) == ["fast"]
    assert plan.steps[0].is_measured
    assert "measured to take" in str(plan)
    assert "times as long" in str(plan)
    assert plan.to_dict()["steps"][0]["measured"]


def test_only_candidates_close_to_the_best_prior_are_timed(rng, delayed, monkeypatch):
    calls = delayed("mlp", "register_tiled", 1e-6, near=0)
    other = backends.kernel_named("mlp", "register_tiled", "cpu")
    far = replace(other, name="far", seconds=lambda *problem: 1.0, launch=lambda *arguments: pytest.fail("timed"))
    let_auto_take(monkeypatch, *backends.automatic("mlp", "cpu"), far)
    assert names(Session(dense(rng, 8, 8), device="cpu").plan(rng.random((5, 8), np.float32))) == ["near"]
    assert not calls["near"]  # one candidate: nothing to time


def test_time_to_prepare_does_not_hide_a_kernel_whose_prior_is_less_than_what_was_timed(rng, delayed, monkeypatch):
    delayed("spmspm", "panel", 1e-6, skipping=SLOW)
    let_auto_take(monkeypatch, *(replace(each, uncounted=None) for each in backends.automatic("spmspm", "cpu")))
    monkeypatch.setattr(measuring, "MAX_PREPARING_SECONDS", 0.0)
    layer = SparseLinear.from_scipy(sp.csc_array(np.eye(100, dtype=np.float32)), 0.1, ReLU())
    plan = Session(Network((layer,)), device="cpu").plan(rng.random((5, 100), np.float32))
    assert names(plan) == ["register_tiled"]  # which skips no rows, and is timed after those that do


def test_time_to_prepare_the_best_prior_does_not_hide_a_kernel_that_may_be_faster(rng, calls, monkeypatch):
    monkeypatch.setattr(measuring, "MAX_PREPARING_SECONDS", 0.0)
    assert names(Session(dense(rng, 8, 8), device="cpu").plan(rng.random((5, 8), np.float32))) == ["fast"]


def test_a_choice_is_for_a_bucket_of_rows_and_stays(rng, calls):
    session = Session(dense(rng, 8, 8), device="cpu")
    first = session(rng.random((5, 8), np.float32))
    measured = calls["slow"]
    assert measured
    for count in (5, 6, 8):
        session(rng.random((count, 8), np.float32))
    assert calls["slow"] == measured
    session(rng.random((9, 8), np.float32))
    assert calls["slow"] > measured
    assert first.shape == (5, 8)


def test_another_session_reads_the_choice_from_disk(rng, calls):
    network, rows = dense(rng, 8, 8), rng.random((5, 8), np.float32)
    Session(network, device="cpu")(rows)
    measured = calls["slow"]
    plan = Session(network, device="cpu").plan(rows)
    assert (names(plan), calls["slow"]) == (["fast"], measured)
    assert plan.steps[0].is_measured
    assert len(choice_store.entries()) == 1
    choice_store.clear()
    Session(network, device="cpu")(rows)
    assert calls["slow"] > measured


@pytest.mark.parametrize("change", ["sources", "network", "precision"])
def test_a_choice_is_of_the_sources_and_the_network(rng, calls, monkeypatch, change):
    network, rows = dense(rng, 8, 8), rng.random((5, 8), np.float32)
    Session(network, device="cpu")(rows)
    measured = calls["slow"]
    if change == "sources":
        monkeypatch.setattr(compiled_network, "_sources_digest", lambda: "others")
    other = dense(rng, 8, 9) if change == "network" else network
    Session(other, device="cpu", precision="float32" if change != "precision" else "auto")(rows)
    assert (calls["slow"] > measured) == (change != "precision")


def test_a_damaged_choice_is_measured_again(rng, calls, monkeypatch):
    monkeypatch.setattr(choice_store, "read", lambda key: {"choices": [{"first": 0}]})
    assert names(Session(dense(rng, 8, 8), device="cpu").plan(rng.random((5, 8), np.float32))) == ["fast"]


def test_a_choice_on_disk_of_unknown_kernels_leaves_the_prior(rng, delayed, monkeypatch):
    delayed("mlp", "register_tiled", 1e-6, first=0, second=0)
    other = records_of({(0, 1): Measured(((0, 1, "gone"),), 1e-6)})
    monkeypatch.setattr(choice_store, "read", lambda key: {"choices": other})
    plan = Session(dense(rng, 8, 8), device="cpu").plan(rng.random((5, 8), np.float32))
    assert names(plan) == ["first"]
    assert not plan.steps[0].is_measured


def test_reproducible_sessions_never_measure(rng, calls):
    Session(dense(rng, 8, 8), device="cpu", reproducible=True)(rng.random((5, 8), np.float32))
    assert calls["fast"] == 0
    assert not choice_store.entries()


def test_a_pickled_plan_has_the_choice(rng, calls):
    plan = Session(dense(rng, 8, 8), device="cpu").plan(rng.random((5, 8), np.float32))
    choice_store.clear()
    measured = calls["slow"]
    again = pickle.loads(pickle.dumps(plan))
    assert (names(again), calls["slow"]) == (["fast"], measured)


def test_sparse_layers_leave_their_order_of_sums_for_a_gain_only():
    own, others = alternative(in_order=False), alternative()
    assert measuring._fastest(own, {own: [0.97], others: [1.0]})[0] is others
    assert measuring._fastest(own, {own: [0.90], others: [1.0]})[0] is own


def test_convolutions_are_timed_each_by_itself(rng, delayed):
    delayed("conv2d", backends.automatic("conv2d", "cpu")[0].name, 1e-6, slow=SLOW, fast=0)
    filters = rng.standard_normal((4, 4, 3, 3), dtype=np.float32)
    layers = [Conv2d(filters, 0.1, ReLU(), padding=1), Conv2d(filters, 0.1, ReLU(), padding=1), Flatten()]
    session = Session(Network(layers, image=(4, 6, 6)), device="cpu")
    plan = session.plan(rng.random((3, 144), np.float32))
    assert set(names(plan)) <= {"fast", "flatten"}
    for measured in plan.compiled.choices[4, "dense"].values():
        assert SLOW < dict(measured.others)["slow"] < SLOW * measuring.REPEATS / 2


def test_the_best_prior_stays_unless_others_win_most_runs():
    first, other = (alternative() for _ in range(2))
    noisy = {first: [1.0] * 5, other: [0.8, 0.9, 0.95, 1.2, 1.3]}  # a smaller median, but three runs of five
    assert measuring._fastest(first, noisy)[0] is first
    assert measuring._fastest(first, {first: [1.0, 1.0], other: [0.8, 0.9, 0.8, 0.9]})[0] is other


def test_of_equal_kernels_the_least_time_is_recorded():
    own, *others = (alternative() for _ in range(3))
    _, measured = measuring._fastest(own, {own: [1.0], others[0]: [3.0], others[1]: [2.0]})
    assert measured.others == (("a", 2.0),)
    assert (measured.wins, measured.runs) == (1, 1)


def test_a_label_says_that_a_kernel_runs_several_steps():
    assert label_of(((0, 2, "a"), (2, 3, "b"))) == "a and b"
    assert label_of(((0, 2, "a"), (2, 3, "a"))) == "a in 2 steps"
    for label, verbs in (("a", "a takes 2.00 .* was slower"), ("a and b", "a and b take 2.00 .* were slower")):
        assert re.search(verbs, Measured((), 1.0, ((label, 2.0),)).reason)
    steps = ((1, 2, "a"), (2, 3, "b"))
    assert "b for layers 2–3 takes 2.00 times as long" in Measured(steps, 1.0, (("b", 2.0),)).reason


def test_plans_are_made_on_the_device_of_the_session(rng, monkeypatch):
    session, calls = Session(dense(rng, 8, 8), device="cpu"), []

    class Ending(Queue):
        def __exit__(self, *error):
            calls.append("end")

    monkeypatch.setattr(type(session.backend), "queue", Ending())
    session.plan(rng.random((5, 8), np.float32))
    assert calls == ["end"]


def test_bits_on_a_cpu_do_not_depend_on_what_was_measured(rng):
    rows, chosen = rng.random((700, 200), np.float32) * (rng.random((700, 200)) < 0.4), set()
    for density in (0.01, 0.2, 0.7):
        network = Network(
            [
                SparseLinear.from_scipy(sp.random(*pair, density, "csc", np.float32, rng), -0.01, ReLU(clip=8))
                for pair in pairwise((200, 300, 120, 64))
            ]
        )
        expected = Session(network, device="cpu", reproducible=True)(rows)
        assert expected.any()
        for count in (1, 2, 33, 700):
            session = Session(network, device="cpu")
            assert np.array_equal(session(rows[:count]), expected[:count])
            chosen |= {step.kernel.name for step in session.plan(rows[:count]).steps if step.is_measured}
    assert chosen


def test_records_of_choices_are_read_as_they_were_written():
    measured = Measured(((0, 2, "a"), (2, 3, "b")), 1e-3, (("c", 2e-3),), 5, 5)
    assert choice_of(records_of({(0, 3): measured})) == {(0, 3): measured}
    assert choice_of(None) is None
    assert choice_of([{"first": 0, "last": 1, "steps": 3}]) is None


def test_sessions_that_measure_apart_take_kernels_with_equal_bits(rng):
    weights = rng.standard_normal((64, 64), dtype=np.float32)
    sparse = SparseLinear.from_scipy(from_dense(weights).to_scipy(), 0.1, ReLU())
    network = Network([sparse, Linear(weights, 0.1, ReLU())])
    compiled = CompiledNetwork.of(network, Options(machine=H200), in_order=True)
    (segment,) = segments_of(compiled, RowsShape(100))
    assert len(segment) == 1
    only = CompiledNetwork.of(Network([sparse]), Options(machine=H200), in_order=True)
    (segment,) = segments_of(only, RowsShape(100))
    assert {label_of(one.names) for one in segment} == {"resident", "chunks", "few_rows"}


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": -1.0},
        {"first": float("inf")},
        {"others": {"b\n": 1.0}},
        {"wins": 9},
        {"steps": []},
        {"rows": 0},
    ],
)
def test_records_that_are_damaged_are_no_choice(change):
    (record,) = records_of({(0, 1): Measured(((0, 1, "a"),), 1e-3, (("b", 2e-3),), 5, 5)})
    assert choice_of([record]) is not None
    assert choice_of([record | change]) is None


def test_rows_that_hold_nan_leave_no_choice(rng, calls):
    with pytest.raises(InputError):
        Session(dense(rng, 8, 8), device="cpu")(np.full((5, 8), np.nan, np.float32))
    assert not choice_store.entries()


def test_rows_of_zeros_are_replaced_by_random_ones(rng, calls, monkeypatch):
    seen = []
    real = measuring._measured
    monkeypatch.setattr(
        measuring,
        "_measured",
        lambda *arguments, **named: seen.append(arguments[0].features) or real(*arguments, **named),
    )
    Session(dense(rng, 8, 8), device="cpu")(np.zeros((5, 8), np.float32))
    assert np.abs(seen[0]).min() > 0


def test_sessions_of_small_batches_leave_the_choice_to_others(rng, delayed):
    calls = delayed("mlp", "register_tiled", 1e-6, first=0, second=SLOW)
    network, rows = dense(rng, 8, 8), rng.random((50, 8), np.float32)
    assert names(Session(network, device="cpu", batch_size=3).plan(rows)) == ["first"]
    assert calls == {"first": 0, "second": 0}
    assert not choice_store.entries()


def test_weights_beyond_their_memory_are_not_prepared(rng):
    weights = from_dense((rng.random((256, 256)) < 0.3).astype(np.float32)).to_scipy()
    network = Network([SparseLinear.from_scipy(weights, -0.1, ReLU())])
    rows, limit = rng.random((64, 256)).astype(np.float32), 200_000
    session = Session(network, device="cpu", weight_memory=limit)
    session(rows)
    assert session._cache.weights.nbytes <= limit


def test_sessions_with_other_options_choose_for_themselves(rng):
    weights = from_dense((rng.random((64, 64)) < 0.6).astype(np.float32)).to_scipy()
    network = Network([SparseLinear.from_scipy(weights, -0.1, ReLU())])
    rows = rng.random((64, 64)).astype(np.float32)
    session = Session(network, device="cpu")
    session(rows)
    assert session.on("cpu", memory_limit=1 << 30)._compiled.choices is session._compiled.choices
    reproducible = session.on("cpu", reproducible=True)
    assert all(kernel.operation == "spmspm" for kernel in reproducible.plan(rows).kernels)
    assert names(session.on("cpu", kernel="rows").plan(rows)) == ["rows"]


def test_choices_of_convolutions_are_of_about_as_many_weights(rng):
    filters = rng.standard_normal((8, 8, 3, 3), dtype=np.float32)
    fewer, much_fewer = (np.where(np.arange(576).reshape(filters.shape) < left, filters, 0) for left in (570, 60))
    networks = (Network([Conv2d(given)], image=(8, 5, 5)) for given in (filters, fewer, much_fewer))
    full, like, unlike = (compiled_network.layer_key(network, 0) for network in networks)
    assert full == like != unlike
