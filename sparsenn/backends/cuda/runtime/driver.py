"""CUDA's driver, for functions that CuPy lacks; names are those of cuda.h, in which CUDA 12 and 13 agree."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


@cache
def driver() -> Any:
    """Load the library of the driver; OSError without one."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
