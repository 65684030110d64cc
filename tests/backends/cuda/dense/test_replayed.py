"""Layers of few rows, replayed as a graph: on an emulated device, and on a GPU."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from captures import assert_captured
from device_emulation import emulated_device

from sparsenn.backends.cuda import recorder
from sparsenn.backends.cuda.dense import cublas_lt, estimates
from sparsenn.backends.cuda.dense.cublas import KERNELS
from sparsenn.backends.cuda.dense.replayed import Replayed, Room
from sparsenn.backends.cuda.dense.stack import upload_dense
from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.machine import H200
from sparsenn.layers import Identity, Linear, ReLU


class Doubling:
    """Layers that double features; `calls` counts how often they were queued."""

    def __init__(self, device) -> None:
        self._device, self.calls = device, 0

    def __call__(self, features):
        self.calls += 1
        outputs = cupy().ndarray(features.shape, features.dtype)
        self._device.queue(lambda: np.multiply(features, 2, out=outputs))
        return outputs


@pytest.fixture
def doubled(monkeypatch):
    with emulated_device(monkeypatch) as device:
        layers = Doubling(device)
        yield device, layers, Replayed(layers, Room())


def features_of(number):
    return cupy().asarray(np.full((3, 4), number, np.float32))


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
        assert np.array_equal(replayed(features_of(8)), np.full((3, 4), 16))
    assert layers.calls == 5
    replayed(features_of(9))
    assert layers.calls == 5


def test_graphs_of_a_stack_take_turns(monkeypatch):
    with emulated_device(monkeypatch) as device:
        room = Room()
        one, other = (Replayed(Doubling(device), room) for _ in range(2))
        for replayed in (one, other):
            for number in range(3):
                replayed(features_of(number))
        assert (16, 0) not in device.waits
        stream = device.stream()
        with stream:
            one(features_of(3))
        assert device.waits[-1] == (stream.ptr, 0)


@pytest.mark.parametrize(
    ("widths", "rows", "as_graph"),
    [
        ((300, 10), 1, False),
        ((784, 300, 100, 10), 1, True),
        ((64, *[300] * 12, 10), 100, True),
        ((4096,) * 4, 10_000, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", list(estimates.CUBLAS))
def test_layers_are_replayed_where_queueing_takes_longer_than_computing(precision, widths, rows, as_graph):
    rates = estimates.CUBLAS[precision]
    seconds, found = estimates.library_awaited(precision, H200, widths, rows, rates.number_bytes)
    assert found == as_graph
    assert seconds > estimates.library_seconds(rates, precision, H200, widths, rows, rates.number_bytes)


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
        found = [kernel.launch(stack, each) for each in features[:3]]
        assert any(isinstance(kept.run, Replayed) for kept in stack.ready.values())
        with stream:
            found += [kernel.launch(stack, each) for each in features[3:]]
        stream.synchronize()
        for one, other in zip(found, first, strict=True):
            assert bool((one == other).all())
        assert_captured(partial(kernel.launch, stack, features[0]))
