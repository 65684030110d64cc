"""The queue of a device: the order of calls that several threads and streams make, and their graphs.

Callers' arrays on the device are known by their addresses: CuPy's, PyTorch's tensors, and those that others export.
PyTorch's tensors are read and made by PyTorch's own functions: DLPack takes tens of microseconds for a tensor.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, cast

from sparsenn.backends.contract import CapturedCall, Queue, Replay
from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.layer_cache import stream_key
from sparsenn.backends.cuda.runtime.loader import rehearsal, wait_for_modules
from sparsenn.backends.cuda.runtime.memory import staging
from sparsenn.backends.cuda.runtime.recorder import recorded
from sparsenn.backends.cuda.runtime.replay import (
    MAX_COPIED_BYTES,
    CapturedRun,
    DeviceReplay,
    HostReplay,
    UncopiedReplay,
    array_at,
)
from sparsenn.backends.cuda.runtime.streams import on_stream, wait_for_device
from sparsenn.backends.cuda.transfer.incoming import device_rows
from sparsenn.errors import DeviceError
from sparsenn.formats import Array


class CuPyArrays:
    """Row-major arrays of CuPy's of one shape and type on a device."""

    def __init__(self, like: Any, device: int) -> None:
        self._type, self._shape, self._dtype, self._device = type(like), like.shape, like.dtype, device
        self._strides = like.strides if like.flags.c_contiguous else None  # comparing these takes half the time
        self.stream = current_stream_of(like, device)

    def address(self, rows: Any) -> int:
        """Return where an array begins; 0 for an array that is not one of these."""
        if type(rows) is not self._type or rows.shape != self._shape or rows.dtype != self._dtype:
            return 0
        memory = rows.data
        is_one = memory.device_id == self._device and (rows.strides == self._strides or rows.flags.c_contiguous)
        return memory.ptr if is_one else 0

    def are_numbers(self, rows: Any) -> bool:
        """Return whether an array's memory holds its numbers."""
        return True

    def mode(self) -> bool:
        """Return a key of how the caller's library makes arrays."""
        return False

    def new(self, outputs: Any, rows: Any) -> tuple[Any, int]:
        """Return a new array for outputs of some shape and type, and where it begins."""
        return self.again(outputs)

    def again(self, outputs: Any) -> tuple[Any, int]:
        """Return what `new` does, for outputs of the caller's library."""
        array = cupy().ndarray(outputs.shape, outputs.dtype)
        return array, array.data.ptr

    def own(self, outputs: Any) -> Any:
        """Return CuPy's array as one of the caller's library."""
        return outputs


class ExportedArrays(CuPyArrays):
    """Arrays with DLPack or CUDA's array interface; outputs are CuPy's."""

    def __init__(self, like: Any, device: int) -> None:
        self._kind, self._rows = type(like), device_rows(like, device)
        super().__init__(self._rows, device)

    def address(self, rows: Any) -> int:
        """Return where an array begins; 0 for an array that is not one of these."""
        if type(rows) is not self._kind:
            return 0
        # held until the next call: its library may use the memory again once nothing refers to it
        self._rows = device_rows(rows, self._device)
        return super().address(self._rows)


class Tensors:
    """Row-major tensors of PyTorch's of one shape and type on a device."""

    def __init__(self, like: Any, device: int) -> None:
        self._torch = sys.modules["torch"]
        self._type, self._shape, self._dtype, self._device = type(like), like.shape, like.dtype, device
        self._tangent_of = self._torch.autograd.forward_ad.unpack_dual
        self.stream = current_stream_of(like, device)
        self.mode = self._torch.is_inference_mode_enabled

    def address(self, rows: Any) -> int:
        """Return where a tensor begins; 0 for a tensor that is not one of these."""
        if type(rows) is not self._type or rows.shape != self._shape or rows.dtype is not self._dtype:
            return 0
        try:
            return rows.data_ptr() if rows.get_device() == self._device and rows.is_contiguous() else 0
        except RuntimeError:  # of `torch.func.vmap` and the like, and of sparse tensors
            return 0

    def are_numbers(self, rows: Any) -> bool:
        """Return whether a tensor's memory holds its numbers, and no gradient or derivative belongs to these."""
        return not (rows.is_neg() or rows.requires_grad or self._tangent_of(rows).tangent is not None)

    def new(self, outputs: Any, rows: Any) -> tuple[Any, int]:
        """Return a new tensor for outputs of some shape and type, and where it begins."""
        try:
            tensor = rows.new_empty(outputs.shape, dtype=getattr(self._torch, outputs.dtype.name))
        except RuntimeError as error:
            raise MemoryError("PyTorch has no memory for the outputs") from error
        return tensor, tensor.data_ptr()

    def again(self, outputs: Any) -> tuple[Any, int]:
        """Return what `new` does, for outputs of the caller's library."""
        tensor = outputs.new_empty(outputs.shape)
        return tensor, tensor.data_ptr()

    def own(self, outputs: Any) -> Any:
        """Return CuPy's array as a tensor."""
        return self._torch.from_dlpack(outputs)


def arrays_like(array: Any, device: int) -> CuPyArrays | Tensors | None:
    """Return arrays that are read as this one on a device is; None for a tensor of a type that is not PyTorch's own."""
    if type(array) is cupy().ndarray:
        return CuPyArrays(array, device)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return ExportedArrays(array, device)
    return Tensors(array, device) if type(array) in (torch.Tensor, torch.nn.Parameter) else None


def current_stream_of(array: Any, device: int) -> Callable[[], Any]:
    """Return the function that returns the stream on which the library of an array queues work: PyTorch's, or CuPy's.

    Triton calls PyTorch's function, too; the public one takes twenty times as long.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return partial(cupy().cuda.get_current_stream, device)
    pointer_of, streams = torch._C._cuda_getCurrentRawStream, dict[int, Any]()

    def current() -> Any:
        pointer = pointer_of(device)
        stream = streams.get(pointer)
        if stream is None:
            stream = streams[pointer] = on_stream(pointer)
        return stream

    return current


def stream_of(rows: Any, device: int) -> AbstractContextManager[Any]:
    """Return a context in which CuPy's current stream is PyTorch's, if rows are a tensor on the device.

    Arrays of a call that a graph of PyTorch's captures are in the graph's memory.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(rows, torch.Tensor) or not rows.is_cuda or rows.get_device() != device:
        return nullcontext()
    contexts = ExitStack()
    contexts.enter_context(current_stream_of(rows, device)())
    if torch.cuda.is_current_stream_capturing():
        contexts.enter_context(cupy().cuda.using_allocator(lambda size: _memory_of_torch(torch, size, rows.device)))
    return contexts


def _memory_of_torch(torch: Any, size: int, device: Any) -> Any:
    cuda = cupy().cuda
    memory = torch.empty(max(1, size), dtype=torch.uint8, device=device)
    return cuda.MemoryPointer(cuda.UnownedMemory(memory.data_ptr(), size, memory, device.index), 0)


MAX_SPARE_BYTES = 1 << 20
"""Bytes of outputs up to which the next call's array is made while the device computes: that takes as long as all other
Python code of a call. It is of use on the same stream only, for which CuPy's and PyTorch's memory is."""

_is_used = _is_forked = False  # whether CUDA has been used here, and in a process that this one was forked from


def check_process() -> None:
    """Refuse to use CUDA in a process that was forked from one that did so, by a `DeviceError`."""
    global _is_used
    _is_used = True
    if _is_forked:
        raise DeviceError(
            "CUDA was used before this process was forked, and cannot be used here: start processes with the method "
            "spawn, or fork before the first use of a GPU, or use device cpu"
        )


def _note_fork() -> None:
    global _is_forked
    _is_forked = _is_used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class CallQueue(Queue):
    """The queue of a GPU, of which each call is a context; one at a time."""

    rehearses = True

    def __init__(self, index: int) -> None:
        self._index, self._runtime = index, cupy().cuda.runtime
        self._ended: Any = None
        self._stream: Any = None
        self.stream_key: Any = None  # of the last call
        self._device_before = index
        self._is_inside = self._on_streams = self._captured = False

    def __enter__(self) -> None:
        """Begin a call on CuPy's current stream of the device."""
        self.enter(cupy().cuda.get_current_stream(self._index))

    def __exit__(self, *error: object) -> None:
        """End the call."""
        self.leave()

    def enter(self, stream: Any) -> None:
        """Make a stream wait for the previous call's, if that was another; make the device current.

        A call that was captured did not run: the order of its graph is up to the caller who launches the graph.
        """
        if _is_forked:
            check_process()
        before = self._runtime.getDevice()
        if before != self._index:
            self._runtime.setDevice(self._index)
        key = stream_key(stream)
        if self._stream is not None and self.stream_key != key:
            if not (self._captured or stream.is_capturing()):
                stream.wait_event(self._ended)
            self._on_streams = True
        self._stream, self.stream_key, self._device_before = stream, key, before
        self._is_inside = True

    def leave(self) -> None:
        """Mark the end of the work on the stream; make the previous device current again."""
        self._is_inside = False
        self._mark()
        if self._device_before != self._index:
            self._runtime.setDevice(self._device_before)

    def _mark(self) -> None:
        if self._ended is None:
            self._ended = cupy().cuda.Event(disable_timing=True)
        self._ended.record(self._stream)
        self._captured = self._stream.is_capturing()

    def before_drop(self) -> None:
        """Make the stream that copies weights wait for what is queued.

        CuPy's memory pool gives a freed block to the next request on the stream that it was allocated on, without
        waiting for other streams that may still be reading it. Weights are allocated on a stream of their own. After
        calls on several streams, the host waits. A caller who has captured a graph holds the memory that the graph
        reads.
        """
        if self._stream is None or self._captured or _is_forked:
            return
        with as_current(self._index):
            if self._is_inside:
                self._mark()
            staging(self._index).wait_for(self._ended)
            if self._on_streams:
                self._ended.synchronize()

    def stream_of(self, inputs: Any) -> AbstractContextManager[Any]:
        """Return a context in which CuPy's current stream is PyTorch's, for one of its tensors here."""
        return stream_of(inputs, self._index)

    def wait(self) -> None:
        """Wait until the device has done all that was queued."""
        with as_current(self._index):
            wait_for_device()

    def replay(self, shape: tuple[int, int], on_host: bool) -> Replay | None:
        """Return what captures work on rows of a shape as graphs, which copy rows to memory of their own if few."""
        if on_host:
            return HostReplay(shape)
        return (DeviceReplay if 4 * math.prod(shape) <= MAX_COPIED_BYTES else UncopiedReplay)(shape)

    def captured_call(self, run: Callable[[Array], Array], rows: Array, out: Array | None, source: Any) -> CapturedCall:
        """Capture the work as a graph that has no copies of rows, and few of outputs that go to `out`."""
        with as_current(self._index):
            return CapturedRun(run, rows, out, current_stream_of(source, self._index))

    def repeated_call(
        self, run: Callable[[Array], tuple[Array, ...]], source: Any, rows: Array, replay: Replay | None
    ) -> Callable[[Any], Any] | None:
        """Return a call by the address of CuPy's arrays, of PyTorch's tensors, or of what exports its memory."""
        matrix: Any = rows
        with as_current(self._index):
            arrays = arrays_like(source, self._index)
            if arrays is None or not matrix.flags.c_contiguous or arrays.address(source) != matrix.data.ptr:
                return None
        return RepeatedCall(arrays, run, matrix, cast(DeviceReplay | None, replay), self)

    def rehearsal(self) -> AbstractContextManager[None]:
        """Return a context in which kernels begin to be compiled, and none is launched."""
        return rehearsal()

    def end_rehearsals(self) -> None:
        """Wait until no kernel is being compiled, which disturbs what is timed."""
        wait_for_modules()


class RepeatedCall:
    """A function of arrays like an earlier call's, which returns new outputs of the same library.

    It returns None for other arrays, in a capture, and once the replay is dropped. `run` queues the work on a matrix of
    rows on the device, and returns results there; `rows` are those of the earlier call as a matrix of CuPy's; without a
    `replay`, launches are queued one by one.
    """

    def __init__(
        self,
        arrays: CuPyArrays | Tensors,
        run: Callable[[Array], tuple[Array, ...]],
        rows: Any,
        replay: DeviceReplay | None,
        queue: CallQueue,
    ) -> None:
        self._arrays, self._run, self._replay, self._queue = arrays, run, replay, queue
        self._shape, self._dtype, self._device = rows.shape, rows.dtype, rows.data.device_id

    def __call__(self, rows: Any) -> Any:
        """Return outputs, or None."""
        arrays, replay, queue = self._arrays, self._replay, self._queue
        source = arrays.address(rows)
        if not source or recorded() or (replay is not None and replay.is_dropped):
            return None
        stream = arrays.stream()
        queue.enter(stream)
        try:
            if stream.is_capturing():
                return None
            likes = None if replay is None else replay.likes
            if replay is None or likes is None:
                with stream:
                    features = array_at(source, self._shape, self._dtype, self._device, rows)
                    results = None if replay is None else replay(self._run, features)
                    outputs = arrays.own((results or self._run(features))[0])
                return outputs if arrays.are_numbers(rows) else None
            key = arrays, queue.stream_key, arrays.mode()
            spare, result = replay.spare, likes[1]
            known, outputs, target = (key, *arrays.new(result, rows)) if spare is None or spare[0] != key else spare
            graph = replay.bound.get((source, target))
            if graph is None:
                replay.launch(self._run, source, target, stream)
            else:
                graph.launch(stream)
            # what does not matter to the launch is done while the device computes
            replay.spare = (known, *arrays.again(outputs)) if result.nbytes <= MAX_SPARE_BYTES else None
            return outputs if arrays.are_numbers(rows) else None
        finally:
            queue.leave()
