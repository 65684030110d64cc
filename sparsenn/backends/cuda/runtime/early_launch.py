"""Launches that may begin before the kernel before them on the stream has ended; CuPy has no function for them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, byref, c_char, c_int, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.driver import driver
from sparsenn.errors import DeviceError

EARLY_CAPABILITY = 90
"""The compute capability, times ten, from which on launches overlap."""

STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
ARGUMENT_BYTES = 8  # of the largest argument: an address


class _Attribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int), ("rest", c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


@cache
def _launch() -> Any:
    function = driver().cuLaunchKernelEx
    function.argtypes = c_void_p, c_void_p, c_void_p, c_void_p
    return function


_OVERLAPS = _Attribute(STREAM_SERIALIZATION, 0, 1)


def launch_early(
    kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_bytes: int
) -> None:
    """Queue a kernel that waits, by itself, for the kernel before; arguments as those of `recorder.launch`."""
    count = len(arguments)
    cells = (c_uint64 * count)(*map(_bits, arguments))
    places = (c_void_p * count)(*(addressof(cells) + at * ARGUMENT_BYTES for at in range(count)))
    stream = cupy().cuda.get_current_stream().ptr
    sizes = ((c_uint * 3)(*each, *[1] * (3 - len(each))) for each in (grid, block))
    config = _Config(*sizes, shared_bytes, stream, addressof(_OVERLAPS), 1)
    status = _launch()(byref(config), kernel.kernel.ptr, places, None)
    if status:
        raise DeviceError(f"a kernel cannot be launched: the driver reports error {status}")


def _bits(argument: Any) -> int:
    if isinstance(argument, np.generic):
        return int.from_bytes(argument.tobytes(), "little")
    return int(argument.data.ptr)
