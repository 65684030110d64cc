"""A pytest plugin that sets every bit of the device memory that CuPy hands out: pytest -p poisoned.

What reads memory before anything was written to it finds NaN in place of floating-point numbers, and -1 in place of
signed integers, so that answers are wrong. compute-sanitizer's initcheck looks at each read, but does not see what the
copy engine of compute capability 9.0 writes, as cuBLAS's kernels do; here it does not matter how memory is written.
Processes that tests start are not poisoned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

POISON = 0xFF


def pytest_configure(config: pytest.Config) -> None:
    try:
        import cupy
    except ImportError:
        return
    cupy.cuda.set_allocator(poisoned(cupy.get_default_memory_pool().malloc))


def poisoned(allocate: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return an allocator that fills what another one gives, on the current stream."""

    def filled(size: int) -> Any:
        memory = allocate(size)
        if size:
            memory.memset_async(POISON, size)
        return memory

    return filled
