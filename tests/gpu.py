"""Whether this machine can run the tests marked gpu, and how many tests it runs at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["processes", "why_no_gpu"]

MOST_PROCESSES = 8
"""That run tests at a time. Each has arrays of its own, and uses all processors where it runs kernels."""


def why_no_gpu(importer: Callable[[str], Any] = import_module) -> str | None:
    """Return why GPU tests cannot run here; None where they can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns about installations that it still works with
            cupy = importer("cupy")
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); install sparsenn[cuda12] or sparsenn[cuda13]"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no NVIDIA GPU: {error}"
    return None if count else "no NVIDIA GPU: CUDA finds no device"


def processes(no_gpu: str | None, processors: int) -> int:
    """Return how many processes run tests at a time; 0 is the one that was started, alone.

    A GPU is not shared: some of its tests fill its memory, or measure time.

    Parameters
    ----------
    no_gpu : what `why_no_gpu` returns.
    """
    return min(processors, MOST_PROCESSES) if no_gpu else 0
