"""Weights in parts: the same answers, two parts at a time at most, and no thread that stays behind."""

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
from sessions import altered, doing_first, same, steps_of
from sparse_layers import sparse_layer as layer

from sparsenn import Session, infer
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.oracle import ReferenceBackend
from sparsenn.formats import from_dense
from sparsenn.layers import Add, AvgPool2d, Conv2d, Identity, MaxPool2d, ReLU
from sparsenn.network import Network, Node


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

        def prepare(self, layers, *more):
            self.prepared.append(id(layers[0]))
            self.threads.add(threading.current_thread().name.rpartition("_")[0])
            self.alive.append(len(self.stacks))
            if len(self.prepared) == self.fail_at:
                raise ValueError("cannot be prepared")
            stack = super().prepare(layers, *more)
            stack = Layers(stack) if isinstance(stack, tuple) else stack
            self.stacks.add(stack)
            return stack

    return Watching()


def preparing_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sparsenn-prepare")]


def watched(network, device, ahead, change=lambda kernel: kernel, **options):
    backend = {"cpu": CPUBackend, "reference": ReferenceBackend}[device]
    return altered(network, backend=watching(backend, ahead), change=change, device=device, **options)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("layers", [1, 5, 12])
@pytest.mark.parametrize(("device", "kernel"), [("cpu", "panel"), ("cpu", "scipy"), ("reference", "auto")])
def test_parts_give_the_same_bits(network, inputs, device, kernel, ahead, batch_size, layers, rng):
    if device == "reference":  # it sorts rows between launches only, so that sums have to be exact in any order
        network = Network(tuple(layer(rng.choice([-1, 1], (20, 20)), -1.0) for _ in range(12)))
        inputs = from_dense(rng.random((100, 20)) < 0.5)
    whole = infer(network, inputs, device=device, kernel=kernel, batch_size=batch_size)
    size = whole.plan.backend.prepared_bytes(network[0])
    options = {"kernel": kernel, "batch_size": batch_size, "weight_memory": layers * size * (1 + ahead)}
    session = watched(network, device, ahead, **options)
    backend = session.backend
    for run in range(2):
        found = session.run(inputs)
        steps, batches = found.plan.steps, len(found.plan.batches)
        several = len(steps) > 1
        assert len(steps) == {1: 12, 5: 3, 12: 1}[layers]
        assert found.plan.streams == several
        assert whole.categories.size
        assert same(found.outputs, whole.outputs)
        assert np.array_equal(found.categories, whole.categories)
        assert [entry.active_rows for entry in found.statistics] == [entry.active_rows for entry in whole.statistics]

        firsts = [id(network[step.first]) for step in steps]
        assert backend.prepared == firsts * ((run + 1) * batches if several else 1)
        assert max(backend.alive) == (1 if ahead and several else 0)
        assert ("sparsenn-prepare" in backend.threads) == (ahead and several)
        assert len(backend.stacks) == (0 if several else 1)
        assert not preparing_threads()
    session.close()
    assert len(backend.stacks) == 0


@pytest.mark.parametrize("ahead", [True, False])
def test_outputs_alone_stream_as_well(network, inputs, ahead):
    whole = infer(network, inputs, device="cpu", kernel="panel").dense
    session = watched(network, "cpu", ahead, kernel="panel", weight_memory=1, batch_size=30)
    assert np.array_equal(session(inputs, form="dense"), whole)
    assert len(session.backend.prepared) == 12 * 4
    assert len(session.backend.stacks) == 0
    assert not preparing_threads()


def test_the_next_part_is_prepared_while_one_is_computed_with(network, inputs):
    begun = threading.Event()

    def wait(step):
        if len(backend.prepared) < 24:
            assert begun.wait(timeout=240), "nothing is prepared while a layer is computed"
        begun.clear()

    session = watched(network, "cpu", True, doing_first(wait), kernel="scipy", weight_memory=1, batch_size=50)
    backend, prepare = session.backend, session.backend.prepare

    def announced(*arguments):
        begun.set()
        return prepare(*arguments)

    backend.prepare = announced
    begun.set()
    assert same(session.run(inputs).outputs, infer(network, inputs, kernel="scipy").outputs)


@pytest.mark.parametrize("fail_at", [1, 2, 12, 13, 20])
def test_an_error_in_preparing_surfaces_and_the_thread_ends(network, inputs, fail_at):
    session = watched(network, "cpu", True, kernel="scipy", weight_memory=1, batch_size=50)
    backend = session.backend
    backend.fail_at = fail_at
    with pytest.raises(ValueError, match="cannot be prepared"):
        session.run(inputs)
    assert fail_at <= len(backend.prepared) <= fail_at + 1
    assert not preparing_threads()
    backend.fail_at = None
    assert same(session.run(inputs).outputs, infer(network, inputs, kernel="scipy").outputs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_thread_ends_where_computing_fails(network, inputs, error):
    failing = [error]

    def fail(step):
        for each in failing:
            raise each

    session = watched(network, "cpu", True, doing_first(fail), kernel="scipy", weight_memory=1)
    with pytest.raises(error):
        session.run(inputs)
    assert not preparing_threads()
    failing.clear()
    assert same(session.run(inputs).outputs, infer(network, inputs, kernel="scipy").outputs)


@pytest.mark.parametrize("ahead", [True, False])
def test_parts_that_no_row_reaches_are_not_waited_for(rng, ahead):
    """The first batch dies in layer 2; the second one needs all layers, from the first on."""
    network = Network((layer(np.eye(4)), layer(np.eye(4), -2.0), *(layer(np.eye(4), 0.0) for _ in range(6))))
    inputs = from_dense(np.concatenate([np.ones((5, 4)), np.full((5, 4), 8.0)]))
    whole = infer(network, inputs, kernel="scipy", batch_size=5)
    session = watched(network, "cpu", ahead, kernel="scipy", batch_size=5, weight_memory=1)
    found = session.run(inputs)
    assert same(found.outputs, whole.outputs)
    assert found.categories.tolist() == [5, 6, 7, 8, 9]
    assert session.backend.prepared[-8:] == [id(entry) for entry in network]
    assert len(session.backend.prepared) <= 11
    assert max(session.backend.alive) <= 1


def test_kernels_that_group_rows_take_a_part_at_a_time(network, inputs):
    seen = []

    def grouping(kernel):
        noting = doing_first(lambda step: seen.append((step.first, step.last)))
        return replace(noting(kernel), groups_rows=True, seconds=None)

    size = CPUBackend().prepared_bytes(network[0])
    options = {"kernel": "panel", "compaction": False}
    result = watched(network, "cpu", True, grouping, weight_memory=2 * 5 * size, **options).run(inputs)
    assert seen == [(0, 5), (0, 5), (0, 2)]
    assert same(result.outputs, infer(network, inputs, device="cpu", **options).outputs)


def test_parts_share_the_memory_where_one_is_prepared_ahead(network, inputs):
    size = CPUBackend().prepared_bytes(network[0])
    for ahead, layers in ((True, 3), (False, 6)):
        made = watched(network, "cpu", ahead, kernel="panel", weight_memory=6 * size).plan(inputs)
        assert steps_of(made) == tuple((first, first + layers) for first in range(0, 12, layers))
        assert ("each while the previous one is computed" in str(made)) == ahead
        assert ("parts, one after the other, " in str(made)) != ahead
    whole = watched(network, "cpu", True, kernel="panel", weight_memory=12 * size).plan(inputs)
    assert steps_of(whole) == ((0, 12),)
    assert "Weights are prepared" not in str(whole)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", "resident", "chunks"])
@pytest.mark.parametrize("batch_size", [None, 300])
def test_weights_streamed_to_a_gpu_give_the_same_bits(rng, kernel, batch_size):
    """Whole numbers, so that sums are exact in any order."""
    shape = (300, 300)
    network = Network(tuple(layer(rng.choice([-1, 1], shape) * (rng.random(shape) < 0.02), -1.0) for _ in range(9)))
    inputs = from_dense(rng.random((1000, 300)) < 0.3)
    in_order = {"device": "cuda", "kernel": kernel, "batch_size": batch_size, "reproducible": True}
    whole = infer(network, inputs, **in_order)
    size = whole.plan.backend.prepared_bytes(network[0])
    for layers in (2, 6):
        found = infer(network, inputs, weight_memory=layers * size, **in_order)
        assert len(found.plan.steps) > 2
        assert found.plan.kernel.name == whole.plan.kernel.name
        assert np.array_equal(found.categories, whole.categories)
        assert same(found.outputs, whole.outputs)
        assert [entry.active_rows for entry in found.statistics] == [entry.active_rows for entry in whole.statistics]
    assert whole.categories.size
    assert not preparing_threads()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_memory", [1, 700, 1300])
def test_branches_around_convolutions_that_stream_give_the_same_bits(device, weight_memory, rng):
    first, second, third = (
        Conv2d(rng.normal(size=(4, 4, 3, 3)) / 6, 0.1, activation, padding=1)
        for activation in (ReLU(), ReLU(), Identity())
    )
    nodes = (Node(MaxPool2d(2), (0,)), *(Node(each, (at,)) for at, each in enumerate((first, second, third), start=1)))
    network = Network((*nodes, Node(Add(ReLU()), (4, 2)), Node(AvgPool2d(2), (5,))), image=(4, 12, 12))
    rows = rng.normal(size=(5, network.inputs)).astype(np.float32)
    options = {"device": device, "reproducible": True}
    streaming = Session(network, weight_memory=weight_memory, **options)
    assert streaming.plan(rows).streams
    assert np.array_equal(streaming(rows), Session(network, **options)(rows))
