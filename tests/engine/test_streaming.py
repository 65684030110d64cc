"""Weights in segments: the same answers, two segments at a time at most, and no thread that stays behind."""

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.oracle import ReferenceBackend
from sparsenn.engine import execute, infer, plan
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import ReLU, SparseLinear
from sparsenn.network import Network


def layer(dense, bias=None):
    return SparseLinear(CSC.from_scipy(from_dense(np.asarray(dense, dtype=np.float32)).to_scipy()), bias, ReLU())


class Layers(list):
    """What the reference prepares, so that it can be referred to weakly."""

    __hash__ = object.__hash__


def watching(backend, ahead):
    """A backend of that class which notes what is prepared, where, and how many stacks are alive then."""

    class Watching(backend):
        prepares_ahead = ahead
        fail_at = None

        def __init__(self):
            super().__init__()
            self.stacks = weakref.WeakSet()
            self.prepared, self.threads, self.alive = [], set(), []

        def prepare(self, layers, copies):
            self.prepared.append(id(layers[0]))
            self.threads.add(threading.current_thread().name.rpartition("_")[0])
            self.alive.append(len(self.stacks))
            if len(self.prepared) == self.fail_at:
                raise ValueError("cannot be prepared")
            stack = super().prepare(layers, copies)
            stack = Layers(stack) if isinstance(stack, tuple) else stack
            self.stacks.add(stack)
            return stack

    return Watching()


def preparing_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sparsenn-prepare")]


def same(one, other):
    return all(
        getattr(one.outputs, name).tobytes() == getattr(other.outputs, name).tobytes()
        for name in ("indptr", "indices", "values")
    )


def planned(network, inputs, device, ahead, **options):
    backend = {"cpu": CPUBackend, "reference": ReferenceBackend}[device]
    return replace(plan(network, inputs, device=device, **options), backend=watching(backend, ahead))


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("layers", [1, 5, 12])
@pytest.mark.parametrize(("device", "kernel"), [("cpu", "auto"), ("cpu", "scipy"), ("reference", "auto")])
def test_segments_give_the_same_bits(network, inputs, device, kernel, ahead, batch_size, layers, rng):
    if device == "reference":  # it sorts rows between launches only, so that sums have to be exact in any order
        network = Network(tuple(layer(rng.choice([-1, 1], (20, 20)), -1.0) for _ in range(12)))
        inputs = from_dense(rng.random((100, 20)) < 0.5)
    whole = infer(network, inputs, device=device, kernel=kernel, batch_size=batch_size)
    size = whole.plan.backend.prepared_bytes(network[0])
    options = {"kernel": kernel, "batch_size": batch_size, "weight_memory": layers * size * (1 + ahead)}
    chosen = planned(network, inputs, device, ahead, **options)
    found = execute(chosen, inputs)
    assert len(chosen.segments) == {1: 12, 5: 3, 12: 1}[layers]
    assert whole.categories.size
    assert same(found, whole)
    assert np.array_equal(found.categories, whole.categories)
    assert [entry.active_rows for entry in found.statistics] == [entry.active_rows for entry in whole.statistics]

    several = len(chosen.segments) > 1
    firsts = [id(network[first]) for first, _ in chosen.segments]
    assert chosen.backend.prepared == firsts * (len(chosen.batches) if several else 1)
    assert max(chosen.backend.alive) == (1 if ahead and several else 0)
    assert ("sparsenn-prepare" in chosen.backend.threads) == (ahead and several)
    assert len(chosen.backend.stacks) == 0
    assert not preparing_threads()


def test_the_next_segment_is_prepared_while_one_is_computed_with(network, inputs):
    chosen = planned(network, inputs, "cpu", True, kernel="scipy", weight_memory=1, batch_size=50)
    backend, launch = chosen.backend, chosen.kernel.launch
    begun = threading.Event()
    prepare = backend.prepare

    def announced(layers, copies):
        begun.set()
        return prepare(layers, copies)

    def waits(step):
        if len(backend.prepared) < 24:
            assert begun.wait(timeout=240), "nothing is prepared while a layer is computed"
        begun.clear()
        return launch(step)

    backend.prepare = announced
    begun.set()
    result = execute(replace(chosen, kernels=(replace(chosen.kernel, launch=waits),)), inputs)
    assert same(result, infer(network, inputs, kernel="scipy"))


@pytest.mark.parametrize("fail_at", [1, 2, 12, 13, 20])
def test_an_error_in_preparing_surfaces_and_the_thread_ends(network, inputs, fail_at):
    chosen = planned(network, inputs, "cpu", True, kernel="scipy", weight_memory=1, batch_size=50)
    chosen.backend.fail_at = fail_at
    with pytest.raises(ValueError, match="cannot be prepared"):
        execute(chosen, inputs)
    assert fail_at <= len(chosen.backend.prepared) <= fail_at + 1
    assert not preparing_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_thread_ends_where_computing_fails(network, inputs, error):
    chosen = planned(network, inputs, "cpu", True, kernel="scipy", weight_memory=1)

    def launch(step):
        raise error

    with pytest.raises(error):
        execute(replace(chosen, kernels=(replace(chosen.kernel, launch=launch),)), inputs)
    assert not preparing_threads()


@pytest.mark.parametrize("ahead", [True, False])
def test_segments_that_no_row_reaches_are_not_waited_for(rng, ahead):
    """The first batch dies in layer 2; the second one needs all layers, from the first on."""
    network = Network((layer(np.eye(4)), layer(np.eye(4), -2.0), *(layer(np.eye(4), 0.0) for _ in range(6))))
    inputs = from_dense(np.concatenate([np.ones((5, 4)), np.full((5, 4), 8.0)]))
    whole = infer(network, inputs, kernel="scipy", batch_size=5)
    chosen = planned(network, inputs, "cpu", ahead, kernel="scipy", batch_size=5, weight_memory=1)
    found = execute(chosen, inputs)
    assert same(found, whole)
    assert found.categories.tolist() == [5, 6, 7, 8, 9]
    assert chosen.backend.prepared[-8:] == [id(entry) for entry in network]
    assert len(chosen.backend.prepared) <= 11
    assert max(chosen.backend.alive) <= 1


def test_kernels_that_group_rows_take_a_segment_at_a_time(network, inputs):
    chosen = planned(network, inputs, "cpu", True, weight_memory=1, compaction=False)
    seen = []

    def launch(step):
        seen.append((step.first, step.last))
        return chosen.kernel.launch(step)

    size = chosen.backend.prepared_bytes(network[0])
    kernel = replace(chosen.kernel, launch=launch, groups_rows=True)
    result = execute(replace(chosen, kernels=(kernel,), weight_memory=2 * 5 * size), inputs)
    assert seen == [(0, 5), (0, 5), (0, 2)]
    assert same(result, infer(network, inputs, compaction=False))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", "resident", "chunks"])
@pytest.mark.parametrize("batch_size", [None, 300])
def test_weights_streamed_to_a_gpu_give_the_same_bits(rng, kernel, batch_size):
    """Whole numbers, so that sums are exact in any order."""
    shape = (300, 300)
    network = Network(tuple(layer(rng.choice([-1, 1], shape) * (rng.random(shape) < 0.02), -1.0) for _ in range(9)))
    inputs = from_dense(rng.random((1000, 300)) < 0.3)
    whole = infer(network, inputs, device="cuda", kernel=kernel, batch_size=batch_size)
    size = whole.plan.backend.prepared_bytes(network[0])
    for layers in (2, 6):
        found = infer(network, inputs, device="cuda", kernel=kernel, batch_size=batch_size, weight_memory=layers * size)
        assert len(found.plan.segments) > 2
        assert found.plan.kernel.name == whole.plan.kernel.name
        assert np.array_equal(found.categories, whole.categories)
        assert same(found, whole)
        assert [entry.active_rows for entry in found.statistics] == [entry.active_rows for entry in whole.statistics]
    assert whole.categories.size
    assert not preparing_threads()
