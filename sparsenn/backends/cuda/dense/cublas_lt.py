"""Matrix products by cuBLASLt, with bias and ReLU, also into graphs; cublasLt.h of CUDA 12 and 13 has the numbers."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import DeviceError
from sparsenn.formats import Array

TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2}  # CUDA_R_32F and CUDA_R_16F

_COMPUTE_TYPES = {"float32": 68, "tf32": 77, "float16": 68}
"""CUBLAS_COMPUTE_32F and CUBLAS_COMPUTE_32F_FAST_TF32: what sums are, and how numbers are multiplied."""

SCALE_TYPE = 0  # CUDA_R_32F
NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED

PLAIN = 0  # CUBLAS_OP_N
TRANSPOSED = 1  # CUBLAS_OP_T

DESC_LEFT_ORDER = 3
DESC_EPILOGUE = 7
DESC_BIAS_POINTER = 8
EPILOGUE_BIAS = 4
EPILOGUE_RELU_BIAS = 6
PREF_WORKSPACE = 1
PREF_ALIGNMENTS = range(5, 9)

WORKSPACE = 32 << 20  # bytes that a product may take for itself: what NVIDIA recommends for compute capability 9.0
MOST_ALIGNED = 256  # bytes: a better alignment is of no use


class _Heuristic(ctypes.Structure):
    """A way to compute a product: cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@cache
def _library() -> Any:
    """Return cuBLASLt, which comes with cuBLAS and which CuPy has loaded with it."""
    cuda = cupy().cuda
    version = cuda.runtime.runtimeGetVersion() // 1000
    name = f"cublasLt64_{version}.dll" if sys.platform == "win32" else f"libcublasLt.so.{version}"
    try:
        cuda.device.get_cublas_handle()
        found = ctypes.CDLL(name)
    except (OSError, RuntimeError) as error:
        raise DeviceError(f"{name} cannot be loaded: {error}; choose another --kernel than cublas") from error
    found.cublasLtMatmul.argtypes = [c_void_p] * 14 + [c_size_t, c_void_p]
    return found


def _checked(status: int) -> None:
    if status:
        raise DeviceError(f"cuBLASLt failed with status {status}; choose another --kernel than cublas")


@cache
def _handle(device: int) -> c_void_p:
    handle = c_void_p()
    _checked(_library().cublasLtCreate(byref(handle)))
    return handle


def _made(create: Callable[..., int], *arguments: Any) -> c_void_p:
    found = c_void_p()
    _checked(create(byref(found), *arguments))
    return found


def _address(array: Array) -> int:
    pointer: Any = array.data
    return int(pointer.ptr)


def _order_of(weights: Array) -> tuple[int, int, int]:
    """Return how weights lie to cuBLAS, which has columns where there are rows here: rows, columns, `PLAIN` or not."""
    inputs, outputs = weights.shape
    return (outputs, inputs, PLAIN) if weights.flags.c_contiguous else (inputs, outputs, TRANSPOSED)


class LtProduct:
    """The product of features and one layer's weights, ready for given sizes and types."""

    def __init__(
        self,
        device: int,
        precision: str,
        rows: int,
        weights: Array,
        number: Any,
        bias: Array | None,
        relu: bool,
        aligned: int = MOST_ALIGNED,
    ) -> None:
        lt = _library()
        (inputs, outputs), factor, sums = weights.shape, TYPES[weights.dtype], TYPES[np.dtype(number)]
        *left, order = _order_of(weights)
        self._handle, self._bias = _handle(device), bias
        self._description = _made(lt.cublasLtMatmulDescCreate, c_int(_COMPUTE_TYPES[precision]), c_int(SCALE_TYPE))
        self._describe(DESC_LEFT_ORDER, c_int32(order))
        sizes = ((factor, *left), (factor, inputs, rows), (sums, outputs, rows))
        create = lt.cublasLtMatrixLayoutCreate
        self._layouts = [
            _made(create, c_int(kind), c_uint64(high), c_uint64(wide), c_int64(high)) for kind, high, wide in sizes
        ]
        destroyed = [(lt.cublasLtMatrixLayoutDestroy, layout) for layout in self._layouts]
        destroyed.append((lt.cublasLtMatmulDescDestroy, self._description))
        weakref.finalize(self, _destroy, destroyed).atexit = False
        if bias is not None:
            self._describe(DESC_EPILOGUE, c_int32(EPILOGUE_RELU_BIAS if relu else EPILOGUE_BIAS))
            self._describe(DESC_BIAS_POINTER, c_void_p(_address(bias)))
        pointer = _address(weights)
        alignments = min(MOST_ALIGNED, pointer & -pointer), aligned, MOST_ALIGNED, MOST_ALIGNED
        self._found = self._fastest(zip(PREF_ALIGNMENTS, map(c_uint32, alignments), strict=True))
        self._one, self._zero = c_float(1.0), c_float(0.0)
        self._run, self._references = lt.cublasLtMatmul, (byref(self._one), byref(self._zero), byref(self._found))

    @property
    def workspace(self) -> int:
        """Bytes of memory that it takes while it is computed."""
        return int(self._found.workspace)

    def _fastest(self, alignments: Iterable[tuple[int, Any]]) -> _Heuristic:
        lt, found, count = _library(), _Heuristic(), c_int(0)
        preference = _made(lt.cublasLtMatmulPreferenceCreate)
        try:
            for name, value in ((PREF_WORKSPACE, c_size_t(WORKSPACE)), *alignments):
                size = c_size_t(ctypes.sizeof(value))
                _checked(lt.cublasLtMatmulPreferenceSetAttribute(preference, c_int(name), byref(value), size))
            left, right, made = self._layouts
            given = self._handle, self._description, left, right, made, made, preference, c_int(1)
            _checked(lt.cublasLtMatmulAlgoGetHeuristic(*given, byref(found), byref(count)))
        finally:
            lt.cublasLtMatmulPreferenceDestroy(preference)
        _checked(found.state if count.value else NOT_SUPPORTED)
        return found

    def _describe(self, name: int, value: Any) -> None:
        size = c_size_t(ctypes.sizeof(value))
        _checked(_library().cublasLtMatmulDescSetAttribute(self._description, c_int(name), byref(value), size))

    def __call__(self, features: Array, weights: Array, sums: Array) -> None:
        """Queue the product on the current stream."""
        cp = cupy()
        stream, size = cp.cuda.get_current_stream().ptr, self.workspace
        room: Any = cp.cuda.alloc(size) if size else None
        one, zero, algorithm = self._references
        a, b, c = _address(weights), _address(features), _address(sums)
        left, right, made = self._layouts
        given = (self._handle, self._description, one, a, left, b, right, zero, c, made, c, made, algorithm)
        _checked(self._run(*given, room.ptr if size else None, size, stream))


def _destroy(made: list[tuple[Callable[..., int], c_void_p]]) -> None:
    for destroy, thing in made:
        destroy(thing)
