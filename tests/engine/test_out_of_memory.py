"""Batches for which memory does not suffice: cut, done again, told, and counted once."""

import weakref
from dataclasses import asdict, replace

import numpy as np
import pytest

from sparsenn.backends.cpu import CPUBackend
from sparsenn.engine import execute, infer, plan
from sparsenn.errors import OutOfMemoryError
from sparsenn.formats import from_dense

INPUTS = 100


@pytest.fixture
def inputs(rng):
    """Some of them equal, none of them dead at once."""
    return from_dense(np.repeat(rng.random((INPUTS // 2, 20)), 2, axis=0))


class Small(CPUBackend):
    """Remembers the features it placed, and whether any of the failed ones are alive when memory is given back."""

    def __init__(self):
        super().__init__()
        self.placed = []
        self.released = []

    def place(self, features):
        placed = super().place(features)
        self.placed.append(weakref.ref(placed))
        return placed

    def release(self):
        super().release()
        self.released.append([found() for found in self.placed])


def limited(chosen, error_for, from_layer=0, backend=None):
    """The plan with a kernel that cannot take some numbers of rows, from some layer of its stack on."""

    def launch(step):
        error = error_for(step.features.shape[0])
        if error is not None and step.first >= from_layer:
            try:
                raise ValueError("the cause")
            except ValueError as cause:
                raise error from cause
        return chosen.kernel.launch(step)

    backend = backend or Small()
    return replace(chosen, backend=backend, kernels=(replace(chosen.kernel, launch=launch),))


def counted(result):
    return [{**asdict(entry), "seconds": None} for entry in result.statistics]


def assert_same(found, expected):
    for one, other in zip(
        (found.outputs.indptr, found.outputs.indices, found.outputs.expanded_values(), found.categories),
        (expected.outputs.indptr, expected.outputs.indices, expected.outputs.expanded_values(), expected.categories),
        strict=True,
    ):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("from_layer", [0, 5])
@pytest.mark.parametrize(
    ("fitting", "taken"),
    [(0, 25), (30, 30), (7, 7), (INPUTS, 25), (10**9, 25), (-4, 25)],
)
def test_a_batch_is_cut_to_what_fits_or_in_half(network, inputs, fitting, taken, from_layer):
    chosen = plan(network, inputs, kernel="scipy", compaction=False, deduplication=False)
    tight = limited(chosen, lambda rows: OutOfMemoryError("full", fitting) if rows > 30 else None, from_layer)
    found = execute(tight, inputs)
    expected = infer(
        network, inputs, kernel="scipy", compaction=False, deduplication=False, batch_size=found.batches[0].owner.size
    )
    assert [batch.owner.size for batch in found.batches] == [last - first for first, last in expected.plan.batches]
    assert found.batches[0].owner.size == taken
    assert_same(found, expected)
    assert counted(found) == counted(expected)
    assert found.notes == (f"Memory did not suffice for 100 rows at a time: {taken} were taken.",)
    assert expected.notes == ()


def test_with_all_savings_on_everything_is_counted_once(network, inputs):
    tight = limited(plan(network, inputs), lambda rows: MemoryError("full") if rows > 40 else None)
    found, expected = execute(tight, inputs), infer(network, inputs, batch_size=25)
    assert_same(found, expected)
    assert counted(found) == counted(expected)


def test_later_batches_keep_to_the_lower_size(network, inputs):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return MemoryError() if len(seen) > 12 and rows > 20 else None

    chosen = plan(network, inputs, kernel="scipy", batch_size=40, compaction=False, deduplication=False)
    found = execute(limited(chosen, error_for), inputs)
    assert [batch.owner.size for batch in found.batches] == [40, 20, 20, 20]
    assert_same(found, infer(network, inputs, kernel="scipy"))
    assert [entry.rows for entry in found.statistics] == [INPUTS] * 12
    assert found.notes == ("Memory did not suffice for 40 rows at a time: 20 were taken.",)


@pytest.mark.parametrize("error", [OutOfMemoryError("not a single row fits", 0), MemoryError("host")], ids=repr)
def test_where_one_row_does_not_fit_the_error_is_the_users(network, inputs, error):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return error

    with pytest.raises(type(error), match=str(error)):
        execute(limited(plan(network, inputs), error_for), inputs)
    assert seen == [100, 50, 25, 12, 6, 3, 1]


def test_other_errors_are_not_tried_again(network, inputs):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return OSError("broken")

    with pytest.raises(OSError, match="broken"):
        execute(limited(plan(network, inputs), error_for), inputs)
    assert seen == [100]


@pytest.mark.parametrize("weight_memory", [None, 1])
def test_what_failed_is_let_go_of_before_it_is_done_again(network, inputs, weight_memory):
    chosen = plan(network, inputs, kernel="scipy", weight_memory=weight_memory)
    tight = limited(chosen, lambda rows: OutOfMemoryError("full") if rows > 30 else None)
    execute(tight, inputs)
    assert tight.backend.released == [[None], [None, None]]


def test_the_inputs_themselves_may_be_too_many(network, inputs):
    class Cramped(CPUBackend):
        def place(self, features):
            if features.shape[0] > 10:
                np.empty(1 << 50)
            return super().place(features)

    found = execute(replace(plan(network, inputs), backend=Cramped()), inputs)
    assert_same(found, infer(network, inputs))
    assert found.notes == ("Memory did not suffice for 100 rows at a time: 6 were taken.",)


def test_progress_never_goes_back_and_ends_complete(network, inputs):
    seen = []
    chosen = plan(network, inputs, kernel="scipy", batch_size=40)
    tight = limited(chosen, lambda rows: OutOfMemoryError("full", 15) if rows > 30 else None, from_layer=9)
    execute(tight, inputs, lambda *state: seen.append(state))
    assert {(task, total) for task, _, total in seen} == {("layers", 36)}
    done = [state[1] for state in seen]
    assert done == sorted(done)
    assert done[8] == 10  # 9 layers of 40 inputs, before the batch was cut
    assert done[-1] == 36
