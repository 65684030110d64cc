"""Planning: decisions that are obeyed, printed and refused."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions import steps_of

from sparsenn import infer
from sparsenn.engine import Session, plan
from sparsenn.engine.plan import bucket
from sparsenn.errors import ResourceError, UsageError


def test_a_plan_prints_as_sentences(network, inputs):
    text = str(plan(network, inputs, device="cpu", kernel="panel"))
    assert "100 samples (100.0 % dense) through 12 layers with 4,800 edges on cpu" in text
    assert "in one batch." in text
    assert "Kernel panel: " in text
    assert "Nothing to merge: no layer has equal or dead outputs." in text
    assert text.endswith("Rows of zeros are dropped from the first layer on; equal rows are computed once.")
    dense = str(plan(network, inputs.to_scipy().toarray(), device="cpu", kernel="panel"))
    assert dense.startswith("100 samples (as dense rows) through 12 layers")


def test_a_plan_is_json(network, inputs):
    record = json.loads(json.dumps(plan(network, inputs, kernel="scipy").to_dict()))
    assert record["kernel"] == "scipy"
    assert record["computed_edges"] == network.edges
    assert record["streams"] is False
    (step,) = record["steps"]
    assert (step["first"], step["last"], step["kernel"]) == (1, 12, "scipy")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": "panle"}, UsageError, "did you mean 'panel'"),
        ({"device": "reference", "kernel": "panel"}, UsageError, "reference kernel"),
        ({"memory_limit": 100}, ResourceError, "does not hold one row"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused(network, inputs, options, error, message):
    with pytest.raises(error, match=message):
        plan(network, inputs, **options)


def test_weights_in_parts_are_said(network, inputs):
    chosen = plan(network, inputs, device="cpu", kernel="panel", weight_memory=1)
    assert "Weights are prepared in 12 parts, one after the other, again for each batch, as they take" in str(chosen)
    record = chosen.to_dict()
    assert (record["weight_memory"], len(record["steps"]), record["streams"]) == (1, 12, True)
    assert chosen.streams
    assert not plan(network, inputs, device="cpu", kernel="panel").streams


def test_the_memory_limit_sets_the_batch(network, inputs):
    session = Session(network, device="cpu", kernel="panel", memory_limit=10_000)
    small = session.plan(inputs)
    assert 1 < small.batch_size < 100
    assert small.batches[0] == (0, small.batch_size)
    assert small.batches[-1][1] == 100
    assert np.array_equal(session.run(inputs).dense, infer(network, inputs, device="cpu", kernel="panel").dense)


@given(st.integers(1, 10**7))
def test_a_bucket_has_a_quarter_too_much_room_at_most(rows):
    room = bucket(rows)
    assert rows <= room <= max(rows, rows * 5 / 4)
    assert bucket(room) == room
    if rows > 1:
        assert bucket(rows - 1) <= room


def test_a_session_plans_once_for_all_numbers_of_rows_of_a_bucket(network, inputs):
    session = Session(network, device="cpu")
    dense = inputs.to_scipy().toarray()
    first, again = session.plan(dense[:97]), session.plan(dense)
    assert first.steps is again.steps
    assert (first.inputs, again.inputs, first.batch_size, again.batch_size) == (97, 100, 97, 100)
    assert session.plan(dense[:9]).steps is not first.steps


def test_planning_runs_nothing(network, inputs):
    session = Session(network, device="cpu")
    assert len(session.plan(inputs).steps)
    assert session.nbytes == 0
    session.run(inputs)
    assert session.nbytes > 0


@pytest.mark.parametrize("options", [{}, {"kernel": "panel", "batch_size": 30, "weight_memory": 1}], ids=str)
def test_a_plan_is_pickled(network, inputs, options):
    chosen = plan(network, inputs, device="cpu", **options)
    again = pickle.loads(pickle.dumps(chosen))
    assert str(again) == str(chosen)
    assert again.options == chosen.options
    assert steps_of(again) == steps_of(chosen)
    assert [step.kernel.name for step in again.steps] == [step.kernel.name for step in chosen.steps]
    assert np.array_equal(
        Session.of_plan(again).run(inputs).dense, infer(network, inputs, device="cpu", **options).dense
    )


def test_a_session_of_a_plan_runs_it_and_other_rows(network, inputs):
    chosen = plan(network, inputs, device="cpu", kernel="panel", batch_size=30)
    session = Session.of_plan(chosen)
    assert session.options == chosen.options
    assert session.run(inputs).plan.steps is chosen.steps
    assert np.array_equal(session(inputs.to_scipy().toarray()[:7]), session(inputs, form="dense")[:7])
