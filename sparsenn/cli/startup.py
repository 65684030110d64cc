"""What makes a process that runs one verb start quickly.

Garbage is looked for less often, numba comes without what it alone would load, and the GPU gets ready while Python
loads modules.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import Thread

__all__ = ["begin", "wake_gpu"]

COLLECT_AFTER = (100_000, 20, 100)
"""Python's thresholds: objects made, and collections of each generation before one of the next.

Loading modules makes some hundred thousand objects that all stay: looking through them takes a tenth of a second.
"""

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
"""CUDA's driver, which comes with a GPU's."""

LINEAR_ALGEBRA = "scipy.linalg"  # the module that numba looks for, to offer matrix products in compiled functions
ITS_USER = "numba.np.arraymath"  # the module of numba that looks for it

_alone = False
"""Whether nothing but one verb runs in this process."""


def begin() -> None:
    """Take note that nothing but one verb runs in this process; have Python look for garbage less often, and load less.

    Matplotlib draws into files, because the backend that its other users, such as Jupyter, chose may be missing. A
    width of 0 columns, at which nothing would be printed, is none.
    """
    global _alone
    _alone = True
    sys.meta_path.insert(0, _WithoutLinearAlgebra())
    os.environ["MPLBACKEND"] = "agg"
    if not os.environ.get("COLUMNS", "unknown").strip("0"):  # also what typer prints needs some
        del os.environ["COLUMNS"]
    gc.set_threshold(*COLLECT_AFTER)


class _WithoutLinearAlgebra:
    """A finder that keeps SciPy's linear algebra from numba, which loads a tenth of a second's worth of modules for it.

    No compiled function here multiplies matrices. Whoever else imports it gets it.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Find nothing; raise the error at which numba goes without the module."""
        if name == LINEAR_ALGEBRA:
            spec = getattr(sys.modules.get(ITS_USER), "__spec__", None)
            if getattr(spec, "_initializing", False):
                raise ModuleNotFoundError(f"{name} is not loaded for {ITS_USER}", name=name)
        return None


def wake_gpu(device: str) -> None:
    """Have CUDA's driver make the context of a GPU meanwhile, which takes up to half a second; nothing before `begin`.

    CuPy finds it made. Failures are left for CuPy to find and report.

    Parameters
    ----------
    device : as users name it; nothing is done for other devices than GPUs, nor where CuPy is missing.
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
