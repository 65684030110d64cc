"""Batches for which memory does not suffice: cut, done again, told, and counted once."""

import weakref
from dataclasses import asdict, replace

import numpy as np
import pytest
from sessions import altered, doing_first, same

from sparsenn import infer
from sparsenn.backends.cpu import CPUBackend
from sparsenn.errors import OutOfMemoryError
from sparsenn.formats import CSR, from_dense

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

    def place(self, rows, keep_half=False):
        placed = super().place(rows, keep_half)
        placed = replace(placed) if isinstance(placed, CSR) else placed.copy()
        self.placed.append(weakref.ref(placed))
        return placed

    def release(self):
        super().release()
        self.released.append([found() for found in self.placed])


def limited(network, error_for, from_layer=0, **options):
    """A session with a kernel that cannot take some numbers of rows, from some layer of its stack on."""

    def fail(step):
        error = error_for(step.features.shape[0])
        if error is not None and step.first >= from_layer:
            try:
                raise ValueError("the cause")
            except ValueError as cause:
                raise error from cause

    return altered(network, backend=Small(), change=doing_first(fail), device="cpu", **{"kernel": "scipy", **options})


def counted(result):
    return [{**asdict(entry), "seconds": None, "estimate": None} for entry in result.statistics]


def assert_same(found, expected):
    assert same(found.outputs, expected.outputs)
    assert np.array_equal(found.categories, expected.categories)


def sizes_of(result):
    return [batch.inputs for batch in result.batches]


@pytest.mark.parametrize("from_layer", [0, 5])
@pytest.mark.parametrize(("fitting", "taken"), [(0, 25), (30, 30), (7, 7), (INPUTS, 25), (10**9, 25), (-4, 25)])
def test_a_batch_is_cut_to_what_fits_or_in_half(network, inputs, fitting, taken, from_layer):
    options = {"compaction": False, "deduplication": False}
    tight = limited(
        network, lambda rows: OutOfMemoryError("full", fitting) if rows > 30 else None, from_layer, **options
    )
    found = tight.run(inputs)
    expected = infer(network, inputs, device="cpu", kernel="scipy", batch_size=sizes_of(found)[0], **options)
    assert sizes_of(found) == [last - first for first, last in expected.plan.batches]
    assert sizes_of(found)[0] == taken
    assert_same(found, expected)
    assert counted(found) == counted(expected)
    assert found.notes == (f"There was not enough memory for 100 samples at a time; {taken} were used.",)
    assert expected.notes == ()
    later = tight.run(inputs)
    assert_same(later, expected)
    assert (sizes_of(later), later.notes) == (sizes_of(found), ()), "what did not fit once is not tried again"


@pytest.mark.parametrize("kernel", ["panel", "scipy"])
def test_with_all_savings_on_everything_is_counted_once(network, inputs, kernel):
    tight = limited(network, lambda rows: MemoryError("full") if rows > 40 else None, kernel=kernel)
    found, expected = tight.run(inputs), infer(network, inputs, device="cpu", kernel=kernel, batch_size=25)
    assert_same(found, expected)
    assert counted(found) == counted(expected)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_outputs_alone_are_those_of_smaller_batches(network, inputs, form):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return OutOfMemoryError("full") if rows > 40 else None

    tight = limited(network, error_for, deduplication=False, compaction=False)
    expected = infer(network, inputs, device="cpu", kernel="scipy")
    for _ in range(2):
        found = tight(inputs, form=form)
        if form == "dense":
            assert np.array_equal(found, expected.dense)
        else:
            assert same(found, expected.outputs)
    assert seen == [100, 50] + 2 * 4 * 12 * [25], "what did not fit once is not tried again"


def test_later_batches_keep_to_the_lower_size(network, inputs):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return MemoryError() if len(seen) > 12 and rows > 20 else None

    found = limited(network, error_for, batch_size=40, compaction=False, deduplication=False).run(inputs)
    assert sizes_of(found) == [40, 20, 20, 20]
    assert_same(found, infer(network, inputs, device="cpu", kernel="scipy"))
    assert [entry.rows for entry in found.statistics] == [INPUTS] * 12
    assert found.notes == ("There was not enough memory for 40 samples at a time; 20 were used.",)


@pytest.mark.parametrize("error", [OutOfMemoryError("not a single row fits", 0), MemoryError("host")], ids=repr)
def test_where_one_row_does_not_fit_the_error_is_the_users(network, inputs, error):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return error

    session = limited(network, error_for)
    with pytest.raises(type(error), match=str(error)):
        session.run(inputs)
    assert seen == [100, 50, 25, 12, 6, 3, 1]
    with pytest.raises(type(error), match=str(error)):
        session(inputs)


def test_other_errors_are_not_tried_again(network, inputs):
    seen = []

    def error_for(rows):
        seen.append(rows)
        return OSError("broken")

    session = limited(network, error_for)
    for run in (session.run, session):
        with pytest.raises(OSError, match="broken"):
            run(inputs)
    assert seen == [100, 100]


@pytest.mark.parametrize("weight_memory", [None, 1])
@pytest.mark.parametrize("way", ["run", "__call__"])
def test_what_failed_is_let_go_of_before_it_is_done_again(network, inputs, weight_memory, way):
    tight = limited(network, lambda rows: OutOfMemoryError("full") if rows > 30 else None, weight_memory=weight_memory)
    getattr(tight, way)(inputs)
    assert tight.backend.released == [[None], [None, None]]


def test_the_inputs_themselves_may_be_too_many(network, inputs):
    class Cramped(CPUBackend):
        def place(self, rows, keep_half=False):
            if rows.shape[0] > 10:
                np.empty(1 << 50)
            return super().place(rows, keep_half)

    options = {"device": "cpu", "kernel": "panel"}
    found = altered(network, backend=Cramped(), **options).run(inputs)
    assert_same(found, infer(network, inputs, **options))
    assert found.notes == ("There was not enough memory for 100 samples at a time; 6 were used.",)


def test_progress_never_goes_back_and_ends_complete(network, inputs):
    seen = []
    tight = limited(
        network, lambda rows: OutOfMemoryError("full", 15) if rows > 30 else None, from_layer=9, batch_size=40
    )
    tight.run(inputs, progress=lambda *state: seen.append(state))
    assert {(task, total) for task, _, total in seen} == {("layers", 36)}
    done = [state[1] for state in seen]
    assert done == sorted(done)
    assert done[8] == 10  # 9 layers of 40 inputs, before the batch was cut
    assert done[-1] == 36
