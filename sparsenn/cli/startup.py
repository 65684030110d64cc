"""What makes a process that runs one verb start quickly.

Garbage is collected less often, and the GPU gets ready while Python loads modules.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread

COLLECT_AFTER = (100_000, 20, 100)
"""Python's thresholds: objects made, and collections of each generation before one of the next.

Loading modules makes some hundred thousand objects that all stay: looking through them takes a tenth of a second.
"""

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
"""CUDA's driver, which comes with a GPU's."""

_alone = False  # whether nothing but one verb runs in this process


def begin() -> None:
    """Note that only one verb runs in this process, and have Python collect garbage less often.

    Matplotlib draws into files, because the backend that its other users, such as Jupyter, chose may be missing. A
    width of 0 columns, at which nothing would be printed, is none.
    """
    global _alone
    _alone = True
    os.environ["MPLBACKEND"] = "agg"
    if not os.environ.get("COLUMNS", "unknown").strip("0"):  # also what typer prints needs some
        del os.environ["COLUMNS"]
    gc.set_threshold(*COLLECT_AFTER)


def wake_gpu(device: str) -> None:
    """Have CUDA's driver make the context of a GPU meanwhile, which takes up to half a second; nothing before `begin`.

    CuPy finds it made. Failures are left for CuPy to find and report.

    `device`: as users name it; nothing is done for other devices than GPUs, nor where CuPy is missing.
    """
    found = re.fullmatch(r"auto|cuda(?::([0-9]{1,4}))?", device)
    if _alone and found and find_spec("cupy") is not None:
        Thread(target=_retain_context, args=(int(found[1] or 0),), daemon=True).start()


def _retain_context(index: int) -> None:
    """Make a device's primary context, in which CUDA's runtime and CuPy compute, until the process ends."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), index):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
