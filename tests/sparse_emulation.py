"""Running a kernel of sparse layers on the host: one of several in its source, with records that hold addresses.

Beside `emulation`, what a block shares becomes static, dynamic shared memory begins where all shared memory does, and
barriers are at its end.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from compiled import compiled

from sparsenn.backends.cuda.runtime.loader import source_text
from sparsenn.studies.emulation import EmulationError, compiled_library, host_program, loaded

__all__ = ["CALL", "SparseKernelOnHost", "address", "emulated_kernel", "fma"]

CALL = np.dtype([("rows", "i4"), ("unused", "i4"), ("indptr", "u8"), ("indices", "u8"), ("one", "u8")])
"""`Call` of `sparse/resident.cuh`."""

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fmaf.restype, _libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3

fma = np.frompyfunc(_libm.fmaf, 3, 1)
"""a * b + c, rounded once to float32; over arrays, which become arrays of objects."""

_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) memory\[\];")
_BARRIERS = re.compile(r"__shared__ uint64 full\[MOST_STAGES\], empty\[MOST_STAGES\];")


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


class SparseKernelOnHost:
    """A kernel that can be launched with NumPy arrays, addresses, and scalars of the very types that it takes.

    Attributes
    ----------
    raised : how often the last launch raised a number in global memory.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self.raised = library, 0
        library.launch.restype = ctypes.c_char_p
        library.times_raised.restype = ctypes.c_long

    def launch(
        self,
        blocks: int,
        threads: int,
        *arguments: np.ndarray | np.generic | None,
        reads: Iterable[np.ndarray] = (),
        everywhere: bool = False,
        seed: int = 1,
    ) -> None:
        """Run all blocks, in an order of chance.

        Parameters
        ----------
        arguments : arrays, in whose gaps, where they have any, kernels may read and write, too; None is a null pointer.
        reads : further arrays whose addresses are in the arguments.
        everywhere : whether all of the memory may be read.
        """
        self._library.clear_regions()
        passed: list[object] = []
        for argument in arguments:
            if argument is None:
                passed.append(ctypes.c_void_p(0))
            elif isinstance(argument, np.ndarray):
                self._add(argument)
                passed.append(ctypes.c_void_p(argument.ctypes.data))
            else:
                passed.append(np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item()))
        for array in reads:
            self._add(array)
        if everywhere:
            self._library.add_region(ctypes.c_void_p(1), ctypes.c_int64((1 << 62) - 1))
        before = self._library.times_raised()
        fault = self._library.launch(blocks, threads, ctypes.c_uint(seed), *passed)
        self.raised = self._library.times_raised() - before
        if fault:
            raise EmulationError(fault.decode())

    def _add(self, array: np.ndarray) -> None:
        steps = list(zip(array.strides, array.shape, strict=True))
        assert all(stride >= 0 for stride, _ in steps)
        span = array.itemsize + sum(stride * (size - 1) for stride, size in steps) if array.size else 0
        self._library.add_region(ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(span))


@cache
def emulated_kernel(source: str, name: str, **defines: int | str) -> SparseKernelOnHost:
    """Compile a kernel for the host; the calling test is skipped where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    text = '#include "emulation_warps.h"\n' + source_text(source)
    text = _DYNAMIC.sub(r"\1* memory = reinterpret_cast<\1*>(shared);", text)
    text = _BARRIERS.sub(
        "uint64 *full = reinterpret_cast<uint64*>(shared + emulated::SHARED) - 32, *empty = full + 16;", text
    )
    text = host_program(text, name)
    assert "asm" not in text
    values = [f"-D{define}={value}" for define, value in sorted(defines.items())]
    return SparseKernelOnHost(loaded(compiled_library(text, values, compiled)))
