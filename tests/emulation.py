"""Kernels of `sparsenn/backends/cuda/kernels`, emulated on the host, and kept between runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from compiled import compiled

from sparsenn.backends.cuda.runtime.loader import source_text
from sparsenn.studies.emulation import EmulatedKernel, compiled_library, host_program, loaded

__all__ = ["aligned", "emulated"]


def emulated(source: str, defines: Mapping[str, int | str]) -> EmulatedKernel:
    """Compile a kernel of the package's `kernels` folder for the host; skip the calling test where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    return _emulated(source, tuple(sorted(defines.items())))


@cache
def _emulated(source: str, defines: tuple[tuple[str, int | str], ...]) -> EmulatedKernel:
    text = host_program(source_text(source))
    assert "asm" not in text
    return EmulatedKernel(loaded(compiled_library(text, [f"-D{name}={value}" for name, value in defines], compiled)))


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a multiple of 16 bytes, as arrays on a device do."""
    memory = np.zeros(array.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
