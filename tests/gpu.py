"""Whether this machine can run the tests marked gpu."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["why_no_gpu"]


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
