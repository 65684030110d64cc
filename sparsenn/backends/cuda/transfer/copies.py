"""Rows on their way between host memory and the device, through pinned memory, by several threads.

What needs no conversion goes through compiled loops (`copy_loops`), all else through NumPy. Copies to the device go on
a stream of their own, into memory that no earlier work still reads, and overlap with computing; copies to the host
wait, on another stream, for the work that makes the rows.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.memory import STAGED_BYTES, aligned_places
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.transfer.copy_loops import Driver, Route, Share, Stages, driver, receive, send
from sparsenn.formats import Array
from sparsenn.runtime.workers import map_threads, thread_count


@dataclass(frozen=True)
class Part:
    """Some numbers of an array on the host that are consecutive in row-major order."""

    numbers: Array
    place: int  # address on the device
    dtype: np.dtype[Any]  # on the device


def cut(array: Array, target: Any, most: int) -> list[Part]:
    """Cut an array on the host into slices of at most so many bytes in the type of a row-major device array."""
    found, place, dtype = [], int(target.data.ptr), target.dtype
    for numbers in _views(array, max(1, most // dtype.itemsize)):
        found.append(Part(numbers, place, dtype))
        place += numbers.size * dtype.itemsize
    return found


def _views(array: Array, most: int) -> Iterator[Array]:
    """Yield views of an array that are consecutive in row-major order, of at most so many numbers each."""
    if not array.size:
        return
    if array.flags.c_contiguous and array.ndim != 1:
        yield from _views(array.reshape(-1), most)
        return
    inner = array.size // array.shape[0]
    if inner > most:
        for part in array:
            yield from _views(part, most)
        return
    step = most // inner
    for start in range(0, array.shape[0], step):
        yield array[start : start + step]


def convert(source: Array, target: Array) -> None:
    """Copy numbers; what is beyond the range of their new type becomes infinite."""
    if source.dtype == target.dtype:
        np.copyto(target, source)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, source, casting="unsafe")


PIECE_BYTES = STAGED_BYTES  # pinned memory of a piece: a thread fills one while others travel

THREADS = 8  # that copy between ordinary and pinned memory: no more than chunks, of which each holds one

# Chunks of pinned memory at most.
PIECES_UP = 2 * THREADS  # 64 MiB for copies to the device
PIECES_DOWN = THREADS  # 32 MiB for copies to the host
PIECES_WAITING = THREADS // 2  # 16 MiB of copies to the host that nobody has read yet

PART_BYTES = PIECE_BYTES // 4  # what a compiled loop copies at a time, at most: half of a piece or less
SMALL_BYTES = PART_BYTES  # up to here the calling thread copies, on the current stream: threads would cost more
BLOCKS_KEPT = 2  # blocks of device memory that wait for further rows: one is filled while another is read
MOST_SLACK = 4  # a block serves rows that fill at least a quarter of it


_Loop = Callable[[Driver, Route, Share, Stages], int]


class _Piece:
    def __init__(self) -> None:
        cuda = cupy().cuda
        pointer = cuda.PinnedMemoryPointer(cuda.PinnedMemory(PIECE_BYTES), 0)
        self.memory: Array = np.frombuffer(pointer, np.uint8, PIECE_BYTES)
        self.address = int(self.memory.ctypes.data)
        self.copied = cuda.Event(disable_timing=True)
        self._halves = [cuda.Event(disable_timing=True) for _ in range(2)]

    def stages(self, stream: Any) -> Stages:
        first, second = (event.ptr for event in self._halves)
        return Stages((self.address, self.address + PIECE_BYTES // 2), (first, second), stream.ptr)

    def holding(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        count = math.prod(shape) * dtype.itemsize
        return self.memory[:count].view(dtype).reshape(shape)


class _Pieces:
    """Pieces that are made when they are needed first; those whose copies ended longest ago are used again first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._free: deque[_Piece] = deque()
        self._lock = threading.Lock()

    def take(self) -> _Piece | None:
        """Return a piece whose copy has ended, waiting for that where need be; None where others have all of them."""
        with self._lock:
            is_ready = bool(self._free) and self._free[0].copied.done
            makes = not is_ready and self._made < self._most
            self._made += makes
            piece = self._free.popleft() if self._free and not makes else None
        if makes:
            return self._new()
        if piece is not None:
            piece.copied.synchronize()
        return piece

    def _new(self) -> _Piece:
        try:
            return _Piece()
        except BaseException:
            with self._lock:
                self._made -= 1
            raise

    def give_back(self, piece: _Piece) -> None:
        self._free.append(piece)

    def clear(self) -> None:
        with self._lock:
            self._made -= len(self._free)
            self._free.clear()


class _Block:
    def __init__(self, size: int) -> None:
        cuda = cupy().cuda
        self.size = size
        self.memory = cuda.alloc(size)
        self.read = cuda.Event(disable_timing=True)


class _Lease:
    """What an array on a block keeps alive: when it goes, so has the last array on it."""


class Transfer:
    """Copies rows from host memory to one device and back, in order; threads wait for each other.

    Make and call it while its device is current. Arrays that it returns are for work on the stream that was current:
    they may be dropped as soon as that is queued, but not while that stream is being captured.
    """

    def __init__(self) -> None:
        cuda = cupy().cuda
        self._current, self._device = cuda.Device, int(cuda.runtime.getDevice())
        self._up, self._down = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True)
        self._arrived = cuda.Event(disable_timing=True)
        self._pieces_up, self._pieces_down = _Pieces(PIECES_UP), _Pieces(PIECES_DOWN)
        self._pieces_waiting = _Pieces(PIECES_WAITING)
        self._blocks: deque[_Block] = deque()
        self._turns = threading.RLock()

    def release(self) -> None:
        """Give back what is kept for further copies: pinned memory, and device memory, which goes to CuPy's pool."""
        with self._turns:
            self._up.synchronize()
            self._down.synchronize()
            for pieces in (self._pieces_up, self._pieces_down, self._pieces_waiting):
                pieces.clear()
            self._drop_blocks(0)

    # ---- To the device -------------------------------------------------------------------------------------------

    def place_dense(self, array: Array, keep_half: bool = False) -> Array:
        """Return rows on the device, row-major, in float32, or float16 with `keep_half`.

        The current stream waits for the copy, this function does not; the array may be written to when it returns.
        Numbers of fewer than 4 bytes travel as they are.
        """
        dtype = array.dtype
        kept = np.dtype(np.float16 if keep_half and dtype == np.float16 else np.float32)
        (placed,) = self._place([(array, dtype.newbyteorder("=") if dtype.itemsize < 4 else kept)])
        return as_rows(placed, kept)

    def place_sparse(self, rows: SparseRows) -> SparseRows:
        """Return sparse rows on the device, unchecked, as `place_dense`; values of 8 bytes and more become float32."""
        numbers = rows.indptr, rows.indices, rows.values
        kinds = [array.dtype.newbyteorder("=") for array in numbers]
        if kinds[2].kind == "f" and kinds[2].itemsize > 4:
            kinds[2] = np.dtype(np.float32)
        return SparseRows(rows.shape, *self._place(list(zip(numbers, kinds, strict=True))))

    def _place(self, arrays: list[tuple[Array, np.dtype[Any]]]) -> list[Any]:
        cp = cupy()
        sizes = [array.size * dtype.itemsize for array, dtype in arrays]
        most = _part_bytes(sum(size for size in sizes if size > SMALL_BYTES), PIECE_BYTES)
        routes: list[Route] = []
        parts: list[Part] = []
        with self._turns:
            current = cp.cuda.get_current_stream()
            room = self._room([size for size in sizes if size > SMALL_BYTES], current)
            targets = []
            for size, (array, dtype) in zip(sizes, arrays, strict=True):
                if size <= SMALL_BYTES:
                    targets.append(cp.empty(array.shape, dtype))
                    self._stage(cut(array, targets[-1], PIECE_BYTES), current)
                else:
                    targets.append(cp.ndarray(array.shape, dtype, next(room)))
                    if _travels_as_it_is(array, dtype):
                        routes.append(_route(array, targets[-1]))
                    else:
                        parts += cut(array, targets[-1], most)
            if routes:
                self._relay(send, routes, self._pieces_up, self._up)
            if parts:
                self._on_threads(lambda share: self._stage(share, self._up), parts)
            if routes or parts:
                self._arrived.record(self._up)
                current.wait_event(self._arrived)
            return targets

    def _stage(self, parts: Iterable[Part], stream: Any) -> None:
        """Copy parts to pinned memory, converting them, and have them copied on from there."""
        runtime = cupy().cuda.runtime
        for part in parts:
            piece = self._pieces_up.take()
            assert piece is not None, "there are more pieces than threads"
            try:
                staged = piece.holding(part.numbers.shape, part.dtype)
                convert(part.numbers, staged)
                runtime.memcpyAsync(part.place, piece.address, staged.nbytes, runtime.memcpyHostToDevice, stream.ptr)
                piece.copied.record(stream)
            finally:
                self._pieces_up.give_back(piece)

    def _relay(self, loop: _Loop, routes: list[Route], pieces: _Pieces, stream: Any) -> None:
        """Have threads copy what travels as it is, each its share of all, through a piece of its own."""
        part = _part_bytes(sum(route.size for route in routes), PART_BYTES)
        threads = min(THREADS, thread_count(), max(-(-route.size // part) for route in routes))
        calls, check = driver(), cupy().cuda.runtime.check_status

        def copy_share(first: int) -> None:
            with self._current(self._device):
                piece = pieces.take()
                assert piece is not None, "there are more pieces than threads"
                try:
                    for route in routes:
                        check(loop(calls, route, Share(part, first, threads), piece.stages(stream)))
                finally:
                    piece.copied.record(stream)
                    pieces.give_back(piece)

        map_threads(copy_share, range(threads))

    def _on_threads(self, work: Callable[[Iterable[Part]], None], parts: list[Part]) -> None:
        threads = min(THREADS, thread_count())

        def take(first: int) -> None:
            with self._current(self._device):
                work(parts[first::threads])

        map_threads(take, range(min(threads, len(parts))))

    def _room(self, sizes: list[int], current: Any) -> Iterator[Any]:
        """Return places on the device for so many bytes each, of one block, which the stream of copies may write to."""
        if not sizes:
            return iter(())
        starts, every = aligned_places(sizes)
        block, lease = self._take_block(every), _Lease()
        ended = weakref.finalize(lease, self._give_block_back, block, current)
        ended.atexit = False
        cuda = cupy().cuda
        memory = cuda.UnownedMemory(block.memory.ptr, block.size, lease, self._device)
        return iter([cuda.MemoryPointer(memory, start) for start in starts])

    def _take_block(self, size: int) -> _Block:
        """Return a block that is read no more once what the stream of copies waits for from here on has ended."""
        self._drop_blocks(BLOCKS_KEPT)
        fitting = [block for block in tuple(self._blocks) if size <= block.size <= MOST_SLACK * size]
        block = next((block for block in fitting if block.read.done), None)
        if block is None and fitting and len(self._blocks) >= BLOCKS_KEPT:
            block = fitting[0]
        if block is None:
            return self._new_block(size)
        self._blocks.remove(block)
        self._up.wait_event(block.read)
        return block

    def _new_block(self, size: int) -> _Block:
        self._drop_blocks(BLOCKS_KEPT - 1)
        try:
            with self._up:
                return _Block(size)
        except cupy().cuda.memory.OutOfMemoryError:
            self._drop_blocks(0)
            with self._up:
                return _Block(size)

    def _drop_blocks(self, kept: int) -> None:
        """Let go of the blocks that have waited longest: their memory is used again on the stream of copies only."""
        while len(self._blocks) > kept:
            self._up.wait_event(self._blocks.popleft().read)

    def _give_block_back(self, block: _Block, current: Any) -> None:
        """Keep a block that only work that is queued on a stream still reads; any thread may have let go of it."""
        with self._current(self._device):
            block.read.record(current)
        self._blocks.append(block)

    # ---- To the host ---------------------------------------------------------------------------------------------

    def fetch_later(self, array: Any, target: Array) -> Callable[[], None]:
        """Begin to copy an array to the host, after what is queued on the current stream; the target may convert.

        Returns a function that waits; only then is the target written to. Large arrays are copied by its call.
        """
        source = cupy().ascontiguousarray(array)
        made = cupy().cuda.Event(disable_timing=True)
        made.record(cupy().cuda.get_current_stream())
        return _Fetch(self, source, target, made)

    def _fetch_parts(self, parts: Iterable[Part]) -> None:
        for part in parts:
            piece = self._pieces_down.take()
            assert piece is not None, "there are more pieces than threads"
            try:
                self._fetch_into(piece, part.place, part.numbers.size * part.dtype.itemsize)
                piece.copied.synchronize()
                convert(piece.holding(part.numbers.shape, part.dtype), part.numbers)
            finally:
                self._pieces_down.give_back(piece)

    def _fetch_into(self, piece: _Piece, place: int, size: int) -> None:
        runtime = cupy().cuda.runtime
        runtime.memcpyAsync(piece.address, place, size, runtime.memcpyDeviceToHost, self._down.ptr)
        piece.copied.record(self._down)


class _Fetch:
    def __init__(self, transfer: Transfer, source: Any, target: Array, made: Any) -> None:
        self._transfer, self._source, self._target, self._made = transfer, source, target, made
        self._piece: _Piece | None = None
        if source.size and source.nbytes <= PIECE_BYTES:
            with transfer._turns:
                self._begin()

    def _begin(self) -> None:
        """Have all of it copied to a piece; nothing happens where others have all of them."""
        transfer = self._transfer
        self._piece = transfer._pieces_waiting.take()
        if self._piece is not None:
            self._dropped = weakref.finalize(self, transfer._pieces_waiting.give_back, self._piece)
            self._dropped.atexit = False
            transfer._down.wait_event(self._made)
            transfer._fetch_into(self._piece, self._source.data.ptr, self._source.nbytes)

    def __call__(self) -> None:
        source, self._source = self._source, None
        if source is None or not source.size:
            return
        if self._piece is not None:
            self._piece.copied.synchronize()
            convert(self._piece.holding(source.shape, source.dtype), self._target)
            self._dropped()
            return
        with self._transfer._turns:
            transfer = self._transfer
            transfer._down.wait_event(self._made)
            if _travels_as_it_is(self._target, source.dtype):
                routes = [_route(self._target, source)]
                transfer._relay(receive, routes, transfer._pieces_down, transfer._down)
            else:
                parts = cut(self._target, source, _part_bytes(source.nbytes, PIECE_BYTES))
                transfer._on_threads(transfer._fetch_parts, parts)


def _part_bytes(size: int, most: int) -> int:
    """Return the bytes of a part, at most `most`, such that threads that take one after the other end together."""
    threads = min(THREADS, thread_count())
    rounds = max(1, -(-size // (most * threads)))
    return min(most, max(SMALL_BYTES // 2, -(-size // (rounds * threads))))


def _travels_as_it_is(array: Array, dtype: np.dtype[Any]) -> bool:
    return array.dtype == dtype and array.flags.c_contiguous


def _route(array: Array, target: Any) -> Route:
    return Route(array.ctypes.data, int(target.data.ptr), array.nbytes)
