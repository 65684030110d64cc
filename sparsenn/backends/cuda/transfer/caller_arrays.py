"""Arrays of callers on the device by their addresses: CuPy's, PyTorch's tensors, and those that others export.

PyTorch's tensors are read and made by PyTorch's own functions: DLPack takes tens of microseconds for a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.streams import on_stream
from sparsenn.backends.cuda.transfer.incoming import device_rows


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
