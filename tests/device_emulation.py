"""A device that is emulated: what of CuPy chains of sparse layers and replayed dense ones use, over NumPy.

Kernels run on the host. What is queued is done at once; a graph is what was queued while it was captured. Kernels whose
blocks or grids have two dimensions are written in NumPy here.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace as with_changes
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from sparse_emulation import emulated_kernel

from sparsenn.backends.cuda.runtime import device, memory, streams
from sparsenn.backends.cuda.runtime.loader import Program
from sparsenn.backends.machine import H200
from sparsenn.errors import DeviceError

__all__ = ["Copy", "Doubling", "EmulatedDevice", "OnDevice", "emulated_device"]

MULTIPROCESSORS = 2


class Place:
    """Where data lie."""

    device_id = 0

    def __init__(self, ptr) -> None:
        self.ptr = ptr


class OnDevice(np.ndarray):
    """An array whose `data` says where it is, as CuPy's does. It refuses what CuPy would compile an operator for."""

    @property
    def data(self):
        return Place(self.ctypes.data)

    def get(self):
        return np.array(self.view(np.ndarray))

    def fill(self, value):
        assert value == 0, OPERATOR
        assert self.flags.c_contiguous, OPERATOR
        self.view(np.ndarray).fill(0)

    def __getitem__(self, key):
        keys = key if isinstance(key, tuple) else (key,)
        assert all(isinstance(one, int | np.integer | slice) for one in keys), OPERATOR
        return super().__getitem__(key)

    def refuse(self, *arguments, **named):
        raise AssertionError(OPERATOR)

    __array_ufunc__ = __array_function__ = __setitem__ = refuse
    astype = copy = sum = max = min = any = all = cumsum = take = repeat = argsort = nonzero = refuse


OPERATOR = "CuPy compiles a kernel for this operator"


class Library:
    """As much of CuPy as compiles no kernels; `empty` holds NaN."""

    ndarray = OnDevice

    def __init__(self, cuda) -> None:
        self.cuda = cuda

    @staticmethod
    def asarray(array, dtype=None):
        if isinstance(array, OnDevice) and dtype in (None, array.dtype):
            return array
        assert not isinstance(array, OnDevice), OPERATOR
        return np.array(array, dtype).view(OnDevice)

    @staticmethod
    def zeros(shape, dtype, order="C"):
        return np.zeros(shape, dtype, order).view(OnDevice)

    @staticmethod
    def empty(shape, dtype):
        made = np.zeros(shape, dtype)
        made.reshape(-1).view(np.uint8)[:] = 0xFF
        return made.view(OnDevice)

    @staticmethod
    def asnumpy(array):
        return np.array(array.view(np.ndarray))


class Capture(list):
    """Work that was queued on a stream meanwhile, and on those that waited for its events."""

    ended = False

    def launch(self, stream):
        for work in self:
            work()


class Copy:
    """A copy of bytes."""

    def __init__(self, target, source, size) -> None:
        self.target, self.source, self.size = target, source, size

    def __call__(self):
        ctypes.memmove(self.target, self.source, self.size)


class Stream:
    """Where work is queued; what is queued during a capture is kept instead."""

    def __init__(self, owner, ptr) -> None:
        self._owner, self.ptr, self._capture = owner, ptr, None

    @property
    def taken(self):
        return None if self._capture is None or self._capture.ended else self._capture

    def __enter__(self):
        self._owner.streams.append(self)
        return self

    def __exit__(self, *error):
        self._owner.streams.pop()

    def synchronize(self):
        assert self.taken is None

    def wait_event(self, event):
        self._owner.waits.append((self.ptr, event.stream))
        if event.taken is not None:
            assert self.taken in (None, event.taken)
            self._capture = event.taken

    def record(self):
        return SimpleNamespace(done=True)

    def is_capturing(self):
        return self.taken is not None

    def begin_capture(self):
        self._capture = Capture()

    def end_capture(self):
        taken = self.taken
        taken.ended = True
        return taken


class Event:
    def __init__(self, disable_timing) -> None:
        self.stream, self.taken = None, None

    def record(self, stream):
        self.stream, self.taken = stream.ptr, stream.taken


class EmulatedDevice:
    """The device; `waits` lists (stream, stream that it waits for), and `launches` the kernels that ran.

    `raised` says how often they raised a number in global memory, by name.
    """

    def __init__(self) -> None:
        self.streams, self.waits, self.launches = [Stream(self, 0)], [], []
        self.raised: Counter[str] = Counter()
        self.machine = with_changes(H200, multiprocessors=MULTIPROCESSORS)
        self._made = 0

    def stream(self, non_blocking=True):
        self._made += 16
        return Stream(self, self._made)

    def queue(self, work: Callable[[], None]) -> None:
        taken = self.streams[-1].taken
        work() if taken is None else taken.append(work)

    def copy(self, target, source, size, kind, stream):
        assert stream == self.streams[-1].ptr
        self.queue(Copy(target, source, size))

    def end_capture(self, stream):
        assert stream == self.streams[-1].ptr
        return self.streams[-1].end_capture()

    def memset(self, pointer, value, size, stream):
        assert stream == self.streams[-1].ptr
        self.queue(lambda: _bytes_at(pointer, size).__setitem__(slice(None), value))

    def kernel(self, program: Program, name: str, **defines):
        given = {define: values[0] for define, values in program.choices.items()} | defines
        for define, value in defines.items():
            assert value in program.choices[define]

        def call(grid, block, arguments, shared_mem=0):
            assert all(size > 0 for size in (*grid, *block))
            assert shared_mem <= self.machine.block_bytes
            self.queue(lambda: self._run(program.source, name, given, grid, block, arguments))

        return call

    def _run(self, source, name, defines, grid, block, arguments):
        self.launches.append(name)
        if name in _IN_NUMPY:
            _IN_NUMPY[name](*(each.view(np.ndarray) if isinstance(each, OnDevice) else each for each in arguments))
            return
        if "CLUSTER" in defines:
            assert defines["CLUSTER"] == 1, "clusters are not emulated"
        if "VECTOR" in defines:
            defines = defines | {"__CUDA_ARCH__": 900}
        passed = [None if isinstance(given, np.uintp) else given for given in arguments]
        given = [array.view(np.ndarray) for array in passed if isinstance(array, np.ndarray)]
        threads = -(-block[0] // 32) * 32
        kernel = emulated_kernel(source, name, **defines)
        kernel.launch(grid[0], threads, *passed, reads=given, everywhere=True)
        self.raised[name] += kernel.raised


class Doubling:
    """Layers that double features; `calls` counts how often they were queued.

    `failing` says which time fails how, and `fails` that all captures do.
    """

    def __init__(self, device: EmulatedDevice) -> None:
        self._device, self.calls, self.failing, self.fails = device, 0, {}, False

    def __call__(self, features):
        self.calls += 1
        if self.calls in self.failing:
            raise self.failing[self.calls]
        if self.fails and device.cupy().cuda.get_current_stream().is_capturing():
            raise DeviceError
        outputs = device.cupy().ndarray(features.shape, features.dtype)
        read, written = (each.view(np.ndarray) for each in (features, outputs))
        self._device.queue(lambda: np.multiply(read, 2, out=written))
        return (outputs,)


def _bytes_at(pointer, size):
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))


def _to_dense(rows, width, indptr, indices, values, iso, dense):
    for row in range(rows):
        entries = slice(indptr[row], indptr[row + 1])
        dense[row, indices[entries]] = values[0] if iso else values[entries]


def _histogram(size, keys, counts):
    np.add.at(counts, keys[:size], 1)


_IN_NUMPY = {"to_dense": _to_dense, "histogram": _histogram}


@contextmanager
def emulated_device(monkeypatch: pytest.MonkeyPatch):
    """Yield an emulated device that is used as if it were one."""
    made = EmulatedDevice()
    runtime = SimpleNamespace(
        memsetAsync=made.memset,
        memcpyAsync=made.copy,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        getDevice=lambda: 0,
        deviceSynchronize=lambda: made.waits.append("all"),
        streamEndCapture=lambda stream: made.end_capture(stream),
        graphInstantiate=lambda graph: graph,
        graphLaunch=lambda graph, stream: graph.launch(stream),
        graphDestroy=lambda graph: None,
        graphExecDestroy=lambda graph: None,
    )
    cuda = SimpleNamespace(
        Device=lambda number: nullcontext(),
        Stream=made.stream,
        Event=Event,
        get_allocator=lambda: None,
        MemoryPool=lambda allocator: SimpleNamespace(malloc=None),
        using_allocator=lambda allocator: nullcontext(),
        runtime=runtime,
        get_current_stream=lambda device=-1: made.streams[-1],
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        alloc_pinned_memory=lambda size: np.zeros(size, np.uint8),
        UnownedMemory=lambda ptr, size, owner, device: (ctypes.c_uint8 * size).from_address(ptr),
        MemoryPointer=lambda memory, offset: memory,
    )
    runtime.CUDARuntimeError = MemoryError
    library = Library(cuda)
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setattr(device, "_imported", library)
    monkeypatch.setattr(
        memory, "staging", lambda device: SimpleNamespace(copy=lambda arrays: list(map(library.asarray, arrays)))
    )
    monkeypatch.setattr(streams, "_capturing_stream", cache(lambda device: made.stream()))
    monkeypatch.setattr(Program, "kernel", lambda program, name, **defines: made.kernel(program, name, **defines))
    for module in ("resident.chain", "resident.chunk_stages", "chunks.chain", "chunks.half", "two_of_four.kernel"):
        monkeypatch.setattr(f"sparsenn.backends.cuda.sparse.{module}.current_machine", lambda: made.machine)
    yield made
