"""Arrays that kernels make of weights: made once, and waited for on whichever stream they are used next."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

from sparsenn.backends import backend_for
from sparsenn.backends.cuda import tensor_tiles
from sparsenn.backends.cuda.runtime import layer_cache as module
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, cache_on_host, stream_key
from sparsenn.errors import UsageError


class Owner:
    """Something that can be referred to weakly, as layers on the device can."""


class Stream:
    def __init__(self):
        self.waited = []

    def record(self):
        return SimpleNamespace(done=False)

    def wait_event(self, event):
        self.waited.append(event)


@pytest.fixture
def stream(monkeypatch):
    found = Stream()
    cuda = SimpleNamespace(get_current_stream=lambda: found)
    monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=cuda))
    return found


def test_an_array_is_made_once_for_each_owner_and_name(stream):
    first, second = Owner(), Owner()
    made = []

    def make():
        made.append(object())
        return made[-1]

    found = [
        cache_on_device(owner, name, make) for owner in (first, second) for name in ("a", ("b", 1)) for _ in range(3)
    ]
    assert len(made) == 4
    assert [found[i : i + 3] for i in range(0, 12, 3)] == [3 * [one] for one in made]


def test_a_result_on_the_host_is_made_once_by_all_threads():
    first, second = Owner(), Owner()
    made, together = [], Barrier(6)

    def make():
        time.sleep(0.01)
        made.append(object())
        return made[-1]

    def ask(owner, name):
        together.wait(20)
        return cache_on_host(owner, name, make)

    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(ask, *of) for of in 2 * [(first, "a"), (first, "b"), (second, "a")]]
        found = [one.result() for one in asked]
    assert len(made) == 3
    assert set(found[:3]) == set(made)
    assert found[3:] == found[:3]


@pytest.mark.parametrize("cache", [cache_on_host, cache_on_device], ids=["host", "device"])
def test_what_could_not_be_made_is_made_when_asked_for_again(cache, stream):
    def fail():
        raise ValueError("no room")

    owner, made = Owner(), object()
    with pytest.raises(ValueError, match="no room"):
        cache(owner, "a", fail)
    assert cache(owner, "a", lambda: made) is made
    assert cache(owner, "a", fail) is made


def test_nothing_is_a_result_on_the_host_too():
    owner = Owner()
    assert cache_on_host(owner, "a", lambda: None) is None
    assert cache_on_host(owner, "a", pytest.fail) is None


def test_a_result_on_the_host_has_one_version():
    owner = Owner()
    first = cache_on_host(owner, "a", Owner, 1)
    assert cache_on_host(owner, "a", Owner, 1) is first
    before = weakref.ref(first)
    del first
    assert cache_on_host(owner, "a", Owner, 2) is cache_on_host(owner, "a", Owner, 2)
    gc.collect()
    assert before() is None


def test_a_result_on_the_host_goes_with_its_owner():
    owner = Owner()
    made = weakref.ref(cache_on_host(owner, "a", Owner))
    assert made() is not None
    del owner
    gc.collect()
    assert made() is None


def test_the_current_stream_waits_until_the_array_is_there(stream):
    owner = Owner()
    for _ in range(2):
        cache_on_device(owner, "a", object)
    first, again = stream.waited
    assert first is again
    first.done = True
    cache_on_device(owner, "a", object)
    assert len(stream.waited) == 2


def test_an_array_goes_with_its_owner(stream):
    owner = Owner()
    cache_on_device(owner, "a", object)
    held = len(module._on_device)
    del owner
    assert len(module._on_device) == held - 1


def test_each_thread_has_a_default_stream_of_its_own():
    with ThreadPoolExecutor(2) as pool:
        together = Barrier(2)

        def keys():
            together.wait(10)  # two threads that are there at the same time
            return [stream_key(SimpleNamespace(ptr=pointer)) for pointer in (2, 2, 7, 0)]

        first, second = (pool.submit(keys) for _ in range(2))
        first, second = first.result(), second.result()
    assert first[0] == first[1] != second[0]
    assert first[2:] == second[2:] == [7, 0]


class Device:
    """A CuPy with one stream, which a graph may capture."""

    def __init__(self):
        self.capturing = False
        self.made = 0
        stream = SimpleNamespace(ptr=5, is_capturing=lambda: self.capturing)
        runtime = SimpleNamespace(getDevice=lambda: 0)
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream, runtime=runtime)

    def zeros(self, size, dtype):
        self.made += 1
        return np.zeros(size, dtype)

    empty = staticmethod(np.empty)


def test_counters_are_made_before_a_graph_captures_their_stream(monkeypatch):
    device = Device()
    monkeypatch.setattr(tensor_tiles, "_counters", {})
    monkeypatch.setattr(tensor_tiles, "cupy", lambda: device)
    device.capturing = True
    assert tensor_tiles.counters(0).size == 0
    with pytest.raises(UsageError, match="once on this stream before"):
        tensor_tiles.counters(3)
    device.capturing = False
    first = tensor_tiles.counters(3)
    device.capturing = True
    assert tensor_tiles.counters(4096) is first
    assert device.made == 1
    with pytest.raises(UsageError, match="once on this stream before"):
        tensor_tiles.counters(4097)
    device.capturing = False
    assert tensor_tiles.counters(4097).size == 4097


@pytest.mark.gpu
def test_counters_first_needed_in_a_replay_outlive_it(monkeypatch, cupy):
    monkeypatch.setattr(tensor_tiles, "_counters", {})
    rows = cupy.ones((4, 8), np.float32)
    replay = backend_for("cuda").queue.replay(rows.shape, on_host=False)
    replay(lambda features: (features * tensor_tiles.counters(1)[0],), rows)
    made = list(tensor_tiles._counters.values())
    assert len(made) == 2  # of the current stream, and of that which captures
    del replay
    gc.collect()
    others = [cupy.ones(made[0].size, np.uint32) for _ in range(100)]
    assert not any(counters.any() for counters in made)
    assert all(other.all() for other in others)
