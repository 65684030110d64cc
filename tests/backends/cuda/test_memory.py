"""Copies to the device through pinned memory, with a CuPy whose copies are late."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sparsenn.backends.cuda import memory
from sparsenn.backends.cuda.memory import Staging
from sparsenn.backends.cuda.sparse.stack import prepared_bytes
from sparsenn.formats import CSC, from_dense
from sparsenn.layers import ReLU, SparseLinear


class DeviceArray(np.ndarray):
    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class LateCuPy:
    """A copy is done when something waits for it, and not before."""

    def __init__(self):
        self.waiting = []
        self.done = 0
        fake = self

        class Stream:
            ptr = 5

            def __init__(self, non_blocking):
                assert non_blocking

            def __enter__(self):
                fake.current = self

            def __exit__(self, *error):
                fake.current = None

            def synchronize(self):
                fake.finish(len(fake.waiting))

        class Event:
            at = 0

            def __init__(self, disable_timing):
                assert disable_timing

            def record(self, stream):
                self.at = len(fake.waiting)

            def synchronize(self):
                fake.finish(self.at)

        runtime = SimpleNamespace(memcpyHostToDevice=1, memcpyAsync=self.copy)
        self.current = None
        self.cuda = SimpleNamespace(Stream=Stream, Event=Event, alloc_pinned_memory=bytearray, runtime=runtime)

    def empty(self, shape, dtype):
        assert self.current is not None
        return np.full(shape, 77, dtype).view(DeviceArray)

    def copy(self, target, source, size, kind, stream):
        assert (kind, stream) == (1, 5)
        self.waiting.append((target, source, size))

    def finish(self, stop):
        for entry in self.waiting[self.done : stop]:
            ctypes.memmove(*entry)
        self.done = max(self.done, stop)


@pytest.fixture
def cupy(monkeypatch):
    late = LateCuPy()
    monkeypatch.setitem(sys.modules, "cupy", late)
    monkeypatch.setattr(memory, "STAGED_BYTES", 64)
    return late


def test_arrays_of_any_size_arrive_whole(cupy, rng):
    staging = Staging()
    for _ in range(3):
        arrays = [
            rng.integers(0, 50, count).astype(kind)
            for count in (0, 1, 7, 16, 64, 65, 300, 3)
            for kind in (np.uint16, np.float32, np.int64)
        ]
        arrays.append(np.arange(40, dtype=np.int32)[::2])
        with staging.copying() as to_device:
            copies = [to_device(array) for array in arrays]
        for array, copy in zip(arrays, copies, strict=True):
            assert copy.dtype == array.dtype
            assert np.array_equal(copy, array)


def test_small_arrays_are_not_waited_for_one_by_one(cupy):
    with Staging().copying() as to_device:
        for _ in range(8):
            to_device(np.zeros(2, np.int32))
        assert cupy.done == 0
    assert cupy.done == 8


def test_copies_have_ended_also_after_an_error(cupy):
    staging = Staging()
    found = []

    def fail():
        with staging.copying() as to_device:
            found.append(to_device(np.arange(5)))
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        fail()
    assert np.array_equal(found[0], np.arange(5))
    assert cupy.current is None
    with staging.copying() as to_device:
        found.append(to_device(np.arange(6)))
    assert np.array_equal(found[1], np.arange(6))


@pytest.mark.parametrize("iso", [True, False])
def test_the_estimate_covers_what_is_uploaded_and_packed(rng, iso):
    dense = (rng.random((90, 70)) < 0.2) * (np.ones((90, 70)) if iso else rng.random((90, 70)))
    weights = CSC.from_scipy(from_dense(dense.astype(np.float32)).to_scipy())
    layer = SparseLinear(weights, -0.1, ReLU())
    degrees = np.diff(weights.indptr)
    uploaded = weights.nbytes + layer.bias_vector().nbytes + 8 * layer.outputs
    packed = 8 * int((degrees + degrees % 2).sum())
    assert weights.iso is iso
    assert uploaded + 2 * packed < prepared_bytes(layer) < 2 * (uploaded + 2 * packed)
