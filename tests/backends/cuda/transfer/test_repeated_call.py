"""Calls with arrays like an earlier call's, on an emulated device."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from device_emulation import Doubling, emulated_device

from sparsenn.backends.cuda.runtime import recorder, replay
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.replay import DeviceReplay, UncopiedReplay
from sparsenn.backends.cuda.transfer import queue as transfer_queue
from sparsenn.backends.cuda.transfer.queue import CallQueue, RepeatedCall

SHAPE = (3, 4)


@pytest.fixture(params=[DeviceReplay, UncopiedReplay])
def doubled(monkeypatch, request):
    """An emulated device, the layers, their replay, which is found to be faster, and their repeated call."""
    seconds = (1e-3 / number for number in itertools.count(1))  # ever less
    for name in ("_seconds", "_timed"):
        monkeypatch.setattr(replay, name, lambda call: next(seconds))
    monkeypatch.setattr(replay, "ALIGNED", 1)
    with emulated_device(monkeypatch) as device:
        layers, replayed, like = Doubling(device), request.param(SHAPE), features_of(0)
        arrays = transfer_queue.arrays_like(like, 0)
        yield device, layers, replayed, RepeatedCall(arrays, layers, like, replayed, CallQueue(0))


def features_of(number, shape=SHAPE):
    return cupy().asarray(np.full(shape, number, np.float32))


def assert_doubled(outputs, number):
    assert np.array_equal(outputs.get(), np.full(SHAPE, 2 * number))


def test_graphs_serve_addresses_that_come_again_and_a_graph_that_copies_all_others(doubled, monkeypatch):
    monkeypatch.setattr(replay, "MAX_BOUND", 2)
    monkeypatch.setattr(replay, "LATE", 4)
    _, layers, replayed, call = doubled
    is_uncopied = isinstance(replayed, UncopiedReplay)
    assert_doubled(call(features_of(1)), 1)
    queued, outputs = layers.calls, [call(features_of(number)) for number in range(5)]
    assert layers.calls == queued + (5 if is_uncopied else 0)
    features, captures = [features_of(number) for number in range(3)], []
    for each in features:
        queued = layers.calls
        for number in range(1, 12):
            each.view(np.ndarray)[:] = number
            assert_doubled(call(each), number)
        captures.append(layers.calls - queued)
    assert all(0 < count <= (8 if is_uncopied else 4) for count in captures)
    for number, each in enumerate(outputs):
        assert_doubled(each, number)


def test_outputs_belong_to_the_caller(doubled):
    *_, call = doubled
    features, outputs = features_of(1), []
    for number in range(6):
        features.view(np.ndarray)[:] = number
        outputs.append(call(features))
    for number, each in enumerate(outputs):
        assert_doubled(each, number)


def test_arrays_of_another_kind_are_left_to_others(doubled):
    *_, call = doubled
    call(features_of(1))
    wide = features_of(1, (3, 8))
    half = cupy().asarray(np.ones(SHAPE, np.float16))
    for other in (wide, wide[:, ::2], half, np.ones(SHAPE, np.float32), None, [[1.0] * 4] * 3):
        assert call(other) is None


def test_other_streams_wait_and_captures_and_recordings_do_without(doubled):
    device, _, _, call = doubled
    stream = device.stream()
    assert_doubled(call(features_of(1)), 1)
    with stream:
        for number in range(2):
            assert_doubled(call(features_of(number)), number)
    assert device.waits == [(stream.ptr, 0)]
    assert_doubled(call(features_of(2)), 2)
    assert device.waits == [(stream.ptr, 0), (0, stream.ptr)]
    with recorder.recording():
        assert call(features_of(3)) is None
    device.streams[-1].begin_capture()
    assert call(features_of(3)) is None
    assert not device.streams[-1].end_capture(), "nothing is queued"
    assert_doubled(call(features_of(4)), 4)


def test_without_memory_for_more_graphs_one_serves_all(doubled):
    _, layers, replayed, call = doubled
    features = features_of(3)
    assert_doubled(call(features), 3)
    layers.fails, queued = True, layers.calls
    for _ in range(9):
        assert_doubled(call(features), 3)
    launched = 9 if isinstance(replayed, UncopiedReplay) else 0
    assert layers.calls == queued + launched + 1, "a graph is tried once"


def test_a_replay_that_was_dropped_is_of_no_use(doubled):
    *_, replayed, call = doubled
    for _ in range(2):
        assert_doubled(call(features_of(3)), 3)
    assert replayed.likes
    replayed.drop()
    assert call(features_of(4)) is None
    assert (replayed.nbytes, replayed.likes) == (0, None)


@pytest.mark.parametrize("seconds", [60e-3, 1e-9], ids=["long work", "no graph is faster"])
def test_launches_are_queued_where_there_is_no_graph(doubled, monkeypatch, seconds):
    _, layers, replayed, call = doubled
    for name in ("_seconds", "_timed"):
        monkeypatch.setattr(replay, name, lambda call: seconds)
    found = [call(features_of(number)) for number in range(4)]
    for number, each in enumerate(found):
        assert_doubled(each, number)
    assert (replayed.likes is None) == (seconds > 1e-3 or not isinstance(replayed, UncopiedReplay))
    queued = layers.calls
    assert_doubled(call(features_of(5)), 5)
    assert layers.calls == queued + 1


class Exported:
    def __init__(self, array):
        self.array = array


def test_arrays_that_are_exported(doubled, monkeypatch):
    monkeypatch.setattr(transfer_queue, "device_rows", lambda rows, device: rows.array)
    _, layers, replayed, _ = doubled
    arrays = transfer_queue.arrays_like(Exported(features_of(1)), 0)
    call = RepeatedCall(arrays, layers, features_of(1), replayed, CallQueue(0))
    for number in range(3):
        assert_doubled(call(Exported(features_of(number))), number)
    assert call(features_of(1)) is None
    assert call(Exported(features_of(1, (4, 3)))) is None


def test_the_stream_of_tensors(monkeypatch):
    class Tensor:
        is_cuda = True

        def __init__(self, device):
            self.get_device = lambda: device

    used, pointer = [], 77

    class Stream:
        def __init__(self, pointer):
            self.pointer = pointer

        def __enter__(self):
            used.append(self.pointer)

        def __exit__(self, *error):
            used.append("left")

    torch = SimpleNamespace(
        Tensor=Tensor,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: pointer + device),
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: False),
    )
    monkeypatch.setitem(transfer_queue.sys.modules, "torch", torch)
    monkeypatch.setattr(transfer_queue, "on_stream", Stream)
    for rows in (Tensor(1), Tensor(2), np.ones(3)):
        with transfer_queue.stream_of(rows, 2):
            pass
    assert used == [79, "left"]
