"""A CuPy without a GPU, whose streams do what they were told late: when something waits for it, or by chance.

Memory is given out again, on the stream that it was taken on, as soon as nothing refers to it. What reads too late, or
writes too early, gets wrong numbers.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparsenn.backends.cuda.transfer.copy_loops import Driver

__all__ = ["LateCuPy"]

GARBAGE = 77


class DeviceArray(np.ndarray):
    """An array on the device; `kept` is what keeps its memory."""

    kept: Any = None

    def __array_finalize__(self, other):
        self.kept = getattr(other, "kept", None)

    @property
    def data(self):
        return Pointer(self.ctypes.data, self.kept)


@dataclass(frozen=True)
class Pointer:
    """A place on the device; `kept` is what keeps its memory."""

    ptr: int
    kept: Any

    def __add__(self, count):
        return Pointer(self.ptr + count, self.kept)


class Memory:
    """Some of the device's memory, which goes back to its stream's when nothing refers to it."""

    def __init__(self, fake, stream, size):
        free = fake.free[stream, size]
        buffer = free.pop() if free else ctypes.create_string_buffer(bytes([GARBAGE]) * max(1, size))
        self.ptr = ctypes.addressof(buffer)
        weakref.finalize(self, free.append, buffer).atexit = False


class LateCuPy:
    """What stands in for the module.

    Parameters
    ----------
    chance : how likely it is that a stream goes on by one step whenever something is queued; 0 for as late as can be.
    """

    ndarray: Callable[..., Any]

    def __init__(self, chance: float = 0.0, seed: int = 0) -> None:
        self.chance, self.random = chance, np.random.default_rng(seed)
        self.lock = threading.RLock()
        self.here = threading.local()
        self.free: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self.streams: list[Any] = []
        self.events: list[Any] = []
        self.callbacks: list[Any] = []
        self.pinned = 0
        self.fails = False
        fake = self

        class Stream:
            capturing = False

            def __init__(self, non_blocking=False):
                self.queue = deque()
                self.ptr = len(fake.streams)
                fake.streams.append(self)

            def __enter__(self):
                self.before = fake.current()
                fake.here.stream = self

            def __exit__(self, *error):
                fake.here.stream = self.before

            def wait_event(self, event):
                assert self.capturing or not event.captured, "an event of a capture is of no use outside"
                fake.queue(self, (event, event.asked, event.stream))

            def synchronize(self):
                while self.queue:
                    fake.advance(self)

            def is_capturing(self):
                return self.capturing

        class Event:
            asked = reached = 0
            stream = None
            captured = False

            def __init__(self, disable_timing):
                assert disable_timing
                self.ptr = len(fake.events)
                fake.events.append(weakref.ref(self))

            def record(self, stream=None):
                self.stream = stream or fake.current()
                self.captured = self.stream.capturing
                self.asked += 1
                at = self.asked
                fake.queue(self.stream, lambda: setattr(self, "reached", at))

            def synchronize(self):
                while self.reached < self.asked:
                    fake.advance(self.stream)

            @property
            def done(self):
                return self.reached == self.asked

        class Device:
            def __init__(self, number):
                assert number == 3

            def __enter__(self):
                pass

            def __exit__(self, *error):
                pass

        self.default = Stream()
        runtime = SimpleNamespace(
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyAsync=self.copy,
            getDevice=lambda: 3,
            check_status=self.check,
        )
        self.cuda = SimpleNamespace(
            Device=Device,
            Event=Event,
            Stream=Stream,
            MemoryPointer=lambda memory, offset: Pointer(memory.ptr + offset, memory),
            PinnedMemory=self.pin,
            PinnedMemoryPointer=lambda memory, offset: memory,
            UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
            alloc_pinned_memory=lambda size: np.zeros(size, np.uint8),
            alloc=lambda size: Memory(self, self.current().ptr, size),
            get_current_stream=self.current,
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            runtime=runtime,
        )
        self.ndarray = self.array_at

    # ---- Streams ---------------------------------------------------------------------------------------------------

    def current(self, device=-1):
        return getattr(self.here, "stream", self.default)

    def queue(self, stream, step):
        with self.lock:
            stream.queue.append(step)
            while self.random.random() < self.chance:
                waiting = [other for other in self.streams if other.queue]
                if waiting:
                    self.advance(waiting[self.random.integers(len(waiting))])

    def advance(self, stream):
        """Do the next step of a stream, and what it waits for."""
        with self.lock:
            if not stream.queue:
                return
            step = stream.queue[0]
            if isinstance(step, tuple):
                event, asked, where = step
                while event.reached < asked:
                    self.advance(where)
            else:
                step()
            if stream.queue and stream.queue[0] is step:
                stream.queue.popleft()

    # ---- Memory ----------------------------------------------------------------------------------------------------

    def pin(self, size):
        self.pinned += size
        memory = np.zeros(size, np.uint8)
        weakref.finalize(memory, self.unpin, size).atexit = False
        return memory

    def unpin(self, size):
        self.pinned -= size

    def array_at(self, shape, dtype, pointer):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        place = (ctypes.c_char * max(1, size)).from_address(pointer.ptr)
        array = np.frombuffer(place, np.uint8, size).view(dtype).reshape(shape).view(DeviceArray)
        array.kept = pointer.kept
        return array

    def empty(self, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.array_at(shape, dtype, self.cuda.MemoryPointer(self.cuda.alloc(size), 0))

    def copy(self, target, source, size, kind, stream):
        if self.fails:
            raise OSError("the copy fails")
        assert kind in (1, 2)
        self.queue(self.streams[stream], lambda: ctypes.memmove(target, source, size))

    # ---- The driver, as compiled code calls it ---------------------------------------------------------------------

    def driver(self):
        """Return addresses of functions that do what the driver's do, late."""
        copies = map(self.copying, (1, 2))  # to the device, and to the host
        callbacks = [ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 4)(copy) for copy in copies]
        callbacks.append(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)(self.record))
        callbacks.append(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(self.synchronize))
        self.callbacks += callbacks
        functions = [*callbacks, ctypes.CDLL(None).memcpy]
        return Driver(*(ctypes.cast(function, ctypes.c_void_p).value for function in functions))

    def copying(self, kind):
        """Return a function that copies, and says whether that fails."""

        def copy(target, source, size, stream):
            if not self.fails:
                self.copy(target, source, size, kind, stream)
            return self.fails

        return copy

    def record(self, event, stream):
        self.events[event]().record(self.streams[stream])
        return 0

    def synchronize(self, event):
        self.events[event]().synchronize()
        return 0

    @staticmethod
    def check(status):
        if status:
            raise OSError("the copy fails")

    # ---- Work ------------------------------------------------------------------------------------------------------

    def ascontiguousarray(self, array):
        assert array.flags.c_contiguous
        return array

    def asarray(self, array, dtype):
        found = self.empty(array.shape, dtype)
        source, target = self.address(array), self.address(found)
        self.queue(self.current(), lambda: np.copyto(target, source, casting="unsafe"))
        return found

    def address(self, array):
        """Return an array of the same place that keeps no memory."""
        return self.array_at(array.shape, array.dtype, Pointer(array.ctypes.data, None))

    def read(self, array, found):
        """Queue work that reads an array when its turn comes, and appends what it read to a list."""
        source = self.address(array)
        self.queue(self.current(), lambda: found.append(np.array(source)))

    def write(self, array, numbers):
        """Queue work that writes numbers to an array."""
        target = self.address(array)
        self.queue(self.current(), lambda: np.copyto(target, numbers))
