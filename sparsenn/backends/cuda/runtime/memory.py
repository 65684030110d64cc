"""Device memory: its free bytes, copies to it and from it, and messages when it does not suffice."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import OutOfMemoryError
from sparsenn.formats import Array

STAGED_BYTES = 4 << 20  # of each pinned buffer: so large that starting a copy costs little beside it
ALIGNMENT = 512  # bytes, as of arrays of their own: where arrays share a block, each begins at a multiple of so many
_ALLOCATION_FAILED = 2  # cudaErrorMemoryAllocation


def free_bytes() -> int:
    """Return the free bytes of the current device, CuPy's reserve included, within `CUPY_GPU_MEMORY_LIMIT`."""
    cp = cupy()
    pool = cp.get_default_memory_pool()
    free = int(cp.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes())
    limit = int(pool.get_limit())
    return min(free, max(0, limit - int(pool.used_bytes()))) if limit else free


class _Lender(threading.local):
    allocate: Any = None


_lender = _Lender()


@contextmanager
def lent_memory(allocate: Any) -> Iterator[None]:
    """Allocate arrays by `allocate`, which ends before some of them may: those are made in `lasting_memory`."""
    cuda, before = cupy().cuda, _lender.allocate
    _lender.allocate = before or cuda.get_allocator()
    try:
        with cuda.using_allocator(allocate):
            yield
    finally:
        _lender.allocate = before


def lasting_memory() -> AbstractContextManager[None]:
    """Allocate arrays that last longer than `lent_memory`."""
    allocate = _lender.allocate
    return nullcontext() if allocate is None else cupy().cuda.using_allocator(allocate)


def release_unused() -> None:
    """Give memory that CuPy keeps for later back to the device, so that it can be cut anew."""
    cupy().get_default_memory_pool().free_all_blocks()


def arriving(array: Any) -> Callable[[], Array]:
    """Queue the copy of a contiguous device array to pinned memory; return a function that waits for it."""
    if not array.size:
        return lambda: np.zeros(array.shape, array.dtype)
    cuda = cupy().cuda
    stream, copied = cuda.get_current_stream(), cuda.Event(disable_timing=True)
    pinned = cuda.alloc_pinned_memory(array.nbytes)
    target: Array = np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)
    cuda.runtime.memcpyAsync(pinned.ptr, array.data.ptr, array.nbytes, cuda.runtime.memcpyDeviceToHost, stream.ptr)
    copied.record(stream)

    def arrived() -> Array:
        copied.synchronize()
        return target

    return arrived


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a host array in pinned memory: copies from and to it go on beside computation."""
    count = math.prod(shape)
    pinned = cupy().cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
    return np.frombuffer(pinned, dtype, count).reshape(shape)


def aligned_places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where arrays of so many bytes begin in a block, and the bytes of the block."""
    *places, size = accumulate((-(-each // ALIGNMENT) * ALIGNMENT for each in sizes), initial=0)
    return places, size


class Staging:
    """Copies host arrays to the current device through two buffers of pinned memory, on a stream of its own.

    One buffer is filled while the other travels. Threads wait for each other. Make it while its device is current.
    """

    def __init__(self) -> None:
        cuda = cupy().cuda
        self._stream = cuda.Stream(non_blocking=True)
        self._pieces = [np.frombuffer(cuda.alloc_pinned_memory(STAGED_BYTES), np.uint8, STAGED_BYTES) for _ in range(2)]
        self._copied = [cuda.Event(disable_timing=True) for _ in range(2)]
        self._filled = 0
        self._turns = threading.Lock()

    def wait_for(self, event: Any) -> None:
        """Let copies that begin from now on wait for an event: memory that is freed before it may still be read."""
        self._stream.wait_event(event)

    @contextmanager
    def copying(self) -> Iterator[Callable[[Sequence[Array]], list[Array]]]:
        """Yield a function from host arrays to device arrays, which share a block; on leaving, the copies have ended.

        Until then the device arrays may only be used on the current stream.
        """
        with self._turns:
            try:
                with self._stream:
                    yield self._copy
            finally:
                self._stream.synchronize()
                self._filled = 0

    def copy(self, arrays: Sequence[Array]) -> list[Array]:
        """Return copies of host arrays on the device, which share a block of the current stream; they have arrived."""
        with self._turns:
            try:
                return self._copy(arrays)
            finally:
                cupy().cuda.get_current_stream().synchronize()
                self._filled = 0

    def _copy(self, arrays: Sequence[Array]) -> list[Array]:
        cp = cupy()
        sources = [np.ascontiguousarray(array) for array in arrays]
        places, size = aligned_places([source.nbytes for source in sources])
        block = cp.empty(size, np.uint8)
        sent = 0
        for place, source in zip(places, sources, strict=True):
            numbers, done = source.reshape(-1).view(np.uint8), 0
            while done < numbers.size:
                at = self._filled + place + done - sent
                if at >= STAGED_BYTES:
                    sent = self._send(block, sent, place + done)
                    continue
                count = min(numbers.size - done, STAGED_BYTES - at)
                self._pieces[0][at : at + count] = numbers[done : done + count]
                done += count
        while sent < size:
            sent = self._send(block, sent, size)
        return [
            cp.ndarray(source.shape, source.dtype, block.data + place)
            for place, source in zip(places, sources, strict=True)
        ]

    def _send(self, block: Any, sent: int, upto: int) -> int:
        """Have what has been filled of a block since `sent` copied, as far as the piece goes; returns up to where."""
        cuda, first = cupy().cuda, self._filled
        runtime, stream = cuda.runtime, cuda.get_current_stream()
        count = min(upto - sent, STAGED_BYTES - first)
        pointers = block.data.ptr + sent, self._pieces[0][first:].ctypes.data
        runtime.memcpyAsync(*pointers, count, runtime.memcpyHostToDevice, stream.ptr)
        self._filled += count
        if self._filled == STAGED_BYTES:
            self._turn()
        return sent + count

    def _turn(self) -> None:
        self._copied[0].record(cupy().cuda.get_current_stream())
        self._pieces.reverse()
        self._copied.reverse()
        self._copied[0].synchronize()
        self._filled = 0


@cache
def staging(device: int) -> Staging:
    """Return the staging of a device, which must be the current one; there is one a process."""
    return Staging()


def to_device(arrays: Sequence[Array]) -> list[Array]:
    """Return copies of host arrays on the current device, which share a block; they have arrived."""
    return staging(cupy().cuda.runtime.getDevice()).copy(arrays)


def within_memory(what: str, rows: int, bytes_per_row: int) -> AbstractContextManager[None]:
    """Turn errors about device memory into an OutOfMemoryError; if `rows` is not 0, it names a batch size that fits."""
    return _WithinMemory(what, rows, bytes_per_row)


class _WithinMemory(AbstractContextManager[None]):
    """What `within_memory` returns: a class, as generators take longer, and short calls have several of these."""

    def __init__(self, what: str, rows: int, bytes_per_row: int) -> None:
        self._what, self._rows, self._bytes_per_row = what, rows, bytes_per_row

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        cuda = cupy().cuda
        if not isinstance(error, cuda.memory.OutOfMemoryError | cuda.runtime.CUDARuntimeError):
            return
        if getattr(error, "status", _ALLOCATION_FAILED) == _ALLOCATION_FAILED:
            release_unused()
            raise self._refusal(free_bytes()) from error

    def _refusal(self, free: int) -> OutOfMemoryError:
        what, rows = self._what, self._rows
        if not rows:
            return OutOfMemoryError(
                f"{what}: the device has {free:,} bytes left; free some, lower --weight-memory, or use device cpu"
            )
        fitting = min(max(0, rows - 1), free // max(1, 2 * self._bytes_per_row))  # half is left for what comes on top
        if fitting > 0:
            remedy = f"about {fitting:,} rows fit: use --batch-size {fitting}"
        else:
            remedy = "not a single row fits: free memory on the device, or use device cpu"
        return OutOfMemoryError(
            f"{what}: there is not enough memory on the device for {rows:,} rows; {remedy}", fitting
        )
