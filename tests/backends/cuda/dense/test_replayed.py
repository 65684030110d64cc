"""Layers of few rows, replayed as a graph: on an emulated device, and on a GPU."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from captures import assert_captured
from device_emulation import emulated_device

from sparsenn.backends.cuda import recorder
from sparsenn.backends.cuda.dense import cublas, cublas_lt, estimates
from sparsenn.backends.cuda.dense.cublas import KERNELS
from sparsenn.backends.cuda.dense.kernel import Given
from sparsenn.backends.cuda.dense.replayed import Replayed
from sparsenn.backends.cuda.dense.stack import upload_dense
from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Identity, Linear, ReLU


class Doubling:
    """Layers that double features; `calls` counts how often they were queued, `failing` says which time fails how."""

    def __init__(self, device) -> None:
        self._device, self.calls, self.failing = device, 0, {}

    def __call__(self, features):
        self.calls += 1
        if self.calls in self.failing:
            raise self.failing[self.calls]
        outputs = cupy().ndarray(features.shape, features.dtype)
        self._device.queue(lambda: np.multiply(features, 2, out=outputs))
        return outputs


@pytest.fixture
def doubled(monkeypatch):
    with emulated_device(monkeypatch) as device:
        layers = Doubling(device)
        yield device, layers, Replayed(layers, 96)


def features_of(number):
    return cupy().asarray(np.full((3, 4), number, np.float32))


def assert_doubled(replayed, number):
    assert np.array_equal(replayed(features_of(number)), np.full((3, 4), 2 * number))


def test_layers_are_queued_once_then_captured_then_replayed(doubled):
    _, layers, replayed = doubled
    found, queued = [], []
    for number in range(5):
        found.append(replayed(features_of(number)))
        queued.append(layers.calls)
    assert queued == [1, 3, 3, 3, 3]  # of the capture's two, the first loads what is launched
    for number, outputs in enumerate(found):
        assert np.array_equal(outputs, np.full((3, 4), 2 * number)), "outputs are nobody else's"


def test_what_others_capture_or_record_is_queued_one_by_one(doubled):
    device, layers, replayed = doubled
    for number in range(3):
        replayed(features_of(number))
    stream = device.streams[-1]
    stream.begin_capture()
    outputs = replayed(features_of(7))
    graph = stream.end_capture()
    graph.launch(stream)
    assert np.array_equal(outputs, np.full((3, 4), 14))
    assert layers.calls == 4
    with recorder.recording():
        assert_doubled(replayed, 8)
    assert layers.calls == 5
    assert_doubled(replayed, 9)
    assert layers.calls == 5


def test_replays_on_several_streams_wait_for_each_other(doubled):
    device, _, replayed = doubled
    stream = device.stream()
    for number in range(3):
        assert_doubled(replayed, number)
    assert not device.waits
    with stream:
        assert_doubled(replayed, 3)
        assert_doubled(replayed, 4)
    assert device.waits == [(stream.ptr, 0)]
    assert_doubled(replayed, 5)
    assert device.waits == [(stream.ptr, 0), (0, stream.ptr)]


@pytest.mark.parametrize("failing", [2, 3], ids=["before the capture", "while it is captured"])
def test_layers_are_queued_one_by_one_where_memory_does_not_suffice_for_a_graph(doubled, failing):
    _, layers, replayed = doubled
    layers.failing = {failing: MemoryError()}
    for number in range(5):
        assert_doubled(replayed, number)
    assert layers.calls == failing + 4, "it is tried once"


@pytest.mark.parametrize("failing", [2, 3], ids=["before the capture", "while it is captured"])
def test_an_interrupted_capture_is_begun_again(doubled, failing):
    _, layers, replayed = doubled
    layers.failing = {failing: KeyboardInterrupt()}
    assert_doubled(replayed, 1)
    with pytest.raises(KeyboardInterrupt):
        replayed(features_of(2))
    for number in range(3, 6):
        assert_doubled(replayed, number)
    assert layers.calls == failing + 2


@pytest.mark.parametrize(
    ("widths", "rows", "as_graph"),
    [
        ((300, 10), 1, False),
        ((784, 300, 100, 10), 1, True),
        ((64, *[300] * 12, 10), 100, True),
        ((4096,) * 4, 10_000, False),
        ((64, *[128] * 24), 120_000, False),  # which would keep too much
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", list(estimates.CUBLAS))
def test_layers_are_replayed_where_queueing_takes_longer_than_computing(precision, widths, rows, as_graph):
    rates = estimates.CUBLAS[precision]
    seconds, found = estimates.library_awaited(precision, H200, widths, rows, rates.number_bytes)
    assert found == as_graph
    device = estimates.library_seconds(rates, precision, H200, widths, rows, rates.number_bytes)
    one_by_one = estimates.awaited(device, len(widths) - 1, estimates.QUEUE_PRODUCT)
    if as_graph:
        assert device < seconds < estimates.SLOW_HOST * one_by_one
    else:
        assert seconds == one_by_one


@pytest.fixture
def prepared(monkeypatch, rng):
    """Make nine layers ready for a number of rows, with a product that takes so many bytes, or one of another kind."""
    monkeypatch.setattr(cublas, "machine_of", lambda device: H200)
    layers = [Linear(rng.normal(size=(20, 20)), None, ReLU()) for _ in range(9)]

    def prepare(stack, rows, workspace=0, lt=True):
        product = object.__new__(cublas_lt.LtProduct) if lt else object()
        if lt:
            product._found = SimpleNamespace(workspace=workspace)
        made = cublas._Layer(product, np.zeros((20, 20)), np.float32, None)
        monkeypatch.setattr(cublas, "_layer", lambda *given: made)
        run = cublas._prepare("float32", stack, Given(rows, np.dtype(np.float32), True))
        stack.ready[rows] = SimpleNamespace(run=run)
        return isinstance(run, Replayed)

    with emulated_device(monkeypatch):
        yield partial(prepare, upload_dense(0, layers))


def test_what_cannot_be_captured_is_not_replayed(prepared):
    """Without cuBLASLt, or where it has no way to compute a product."""
    assert not prepared(5, lt=False)
    assert prepared(6)


def test_graphs_of_a_stack_keep_no_more_than_they_may(prepared, monkeypatch):
    row = 4 * 20 * 4
    monkeypatch.setattr(estimates, "MOST_GRAPH_BYTES", 12 * row)
    assert not prepared(13)
    assert not prepared(11, workspace=2 * row)
    assert prepared(5)
    assert prepared(6)
    assert not prepared(2)
    assert prepared(1)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("widths", [(784, 300, 100, 10), (33, *[301] * 9, 7)], ids=str)
def test_replays_have_the_bits_of_the_first_call(kernel, widths, rng):
    if cublas_lt.library() is None:
        pytest.skip("CuPy does not let graphs capture cuBLAS")
    cp = cupy()
    layers = []
    for number, shape in enumerate(pairwise(widths), start=2):
        weights = rng.normal(size=shape) * np.sqrt(2 / shape[0])
        layers.append(Linear(weights, rng.normal(size=shape[1]) / 4, Identity() if number == len(widths) else ReLU()))
    stack = upload_dense(0, layers)
    stream = cp.cuda.Stream(non_blocking=True)
    for rows in (1, 100, 37):
        features = [cp.asarray(rng.normal(size=(rows, widths[0])).astype(np.float32)) for _ in range(6)]
        cp.cuda.Device().synchronize()
        first = [kernel.launch(upload_dense(0, layers), each) for each in features]
        found = [kernel.launch(stack, each) for each in features[:2]]
        (run,) = (kept.run for key, kept in stack.ready.items() if key[1] == rows)
        assert isinstance(run, Replayed)
        cp.get_default_memory_pool().free_all_blocks()
        others = [cp.full(size, cp.nan, np.float32) for size in (100, 10_000, 1_000_000) for _ in range(20)]
        found.append(kernel.launch(stack, features[2]))
        with stream:
            found += [kernel.launch(stack, each) for each in features[3:]]
        stream.synchronize()
        assert all(bool(cp.isnan(other).all()) for other in others), "graphs write to their own memory"
        for one, other in zip(found, first, strict=True):
            assert bool((one == other).all())
        assert_captured(partial(kernel.launch, stack, features[0]))
