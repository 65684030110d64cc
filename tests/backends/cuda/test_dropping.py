"""Weights and buffers that are dropped while work that reads them is still queued, with a CuPy whose streams are late.

The memory of what was dropped serves what is made next: nothing may be written there before it has been read.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from late_cupy import LateCuPy
from sessions import altered

from sparsenn import Network
from sparsenn.backends import cuda
from sparsenn.backends.contract import Queue
from sparsenn.backends.cpu import CPUBackend
from sparsenn.backends.cuda.runtime import device, memory
from sparsenn.backends.cuda.transfer import queue
from sparsenn.layers import Linear

DEVICE = 3
OLD, NEW = np.arange(12, dtype=np.float32), np.full(12, -1, np.float32)


@pytest.fixture(params=[0.0, 0.3, 0.7])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateCuPy]:
    fake = LateCuPy(request.param)
    for module in (cuda, queue, device, memory):
        monkeypatch.setattr(module, "cupy", lambda: fake)
    monkeypatch.setattr(cuda, "check_device", lambda index: None)
    monkeypatch.setattr(memory, "STAGED_BYTES", 64)
    memory.staging.cache_clear()
    yield fake
    memory.staging.cache_clear()


def copied(backend: Any, numbers: np.ndarray) -> Any:
    """Copy numbers to the device as weights are."""
    with memory.staging(backend.index).copying() as to_device:
        return to_device([numbers])[0]


def test_weights_dropped_within_a_turn_are_read_before_others_come(late: LateCuPy) -> None:
    backend, found = cuda.CUDABackend(DEVICE), []
    with backend.queue:
        weights = copied(backend, OLD)
        place = weights.data.ptr
        late.read(weights, found)
        backend.queue.before_drop()
        del weights
        others = copied(backend, NEW)
        assert others.data.ptr == place
    late.default.synchronize()
    assert np.array_equal(found, [OLD])
    assert np.array_equal(others, NEW)


def test_weights_dropped_after_a_turn_are_read_before_others_come(late: LateCuPy) -> None:
    backend, found = cuda.CUDABackend(DEVICE), []
    with backend.queue:
        weights = copied(backend, OLD)
        late.read(weights, found)
    backend.queue.before_drop()
    del weights
    copied(cuda.CUDABackend(DEVICE), NEW)
    late.default.synchronize()
    assert np.array_equal(found, [OLD])


def test_buffers_of_one_stream_that_another_reads(late: LateCuPy) -> None:
    backend, found, second = cuda.CUDABackend(DEVICE), [], late.cuda.Stream()
    with backend.queue:
        buffer = late.empty(OLD.shape, OLD.dtype)
        late.write(buffer, OLD)
    with second, backend.queue:
        late.read(buffer, found)
    backend.queue.before_drop()
    del buffer
    late.write(late.empty(OLD.shape, OLD.dtype), NEW)
    late.default.synchronize()
    second.synchronize()
    assert np.array_equal(found, [OLD])


def test_a_turn_that_was_captured_is_not_waited_for(late: LateCuPy) -> None:
    backend, captured = cuda.CUDABackend(DEVICE), late.cuda.Stream()
    with captured:
        captured.capturing = True
        with backend.queue:
            pass
        captured.capturing = False
    for stream in (late.default, late.cuda.Stream()):
        with stream, backend.queue:
            pass


def test_nothing_is_waited_for_before_the_first_turn(late: LateCuPy) -> None:
    cuda.CUDABackend(DEVICE).queue.before_drop()
    assert not any(stream.queue for stream in late.streams)


class Telling(CPUBackend, Queue):
    def __init__(self) -> None:
        super().__init__()
        self.queue, self.told = self, list[str]()

    def before_drop(self) -> None:
        self.told.append("before drop")

    def prepare(self, layers: Any, copies: Any = (), shapes: Any = (), sources: Any = ()) -> Any:
        self.told.append("prepare")
        return super().prepare(layers, copies, shapes, sources)


@pytest.mark.parametrize(
    ("options", "calls"),
    [({"weight_memory": 1}, ["prepare", *["before drop", "prepare"] * 2, "before drop"]), ({}, ["prepare"])],
    ids=["streamed weights", "a session"],
)
def test_a_backend_hears_of_it_before_weights_are_dropped(
    rng: np.random.Generator, options: dict[str, int], calls: list[str]
) -> None:
    backend = Telling()
    layers = tuple(Linear(rng.normal(size=(8, 8)), 0.5) for _ in range(3))
    session = altered(Network(layers), backend=backend, device="cpu", **options)
    session(np.zeros((2, 8), np.float32))
    assert backend.told == calls
    del session
    gc.collect()
    assert backend.told == [*calls, "before drop"]
