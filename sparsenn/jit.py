"""One decorator for every function that numba compiles, so that all share the same floating-point rules.

Compiled code is cached beside the source (or in the user's cache folder where that is read-only) and releases
the GIL. Of the fast-math liberties only *contract* is taken: a multiply and an add may become one fused
multiply-add, which rounds once instead of twice. Nothing is reordered and NaN keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

__all__ = ["compiled", "inlined"]

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` in nopython mode on first call; it runs without the GIL and is cached on disk."""
    decorated: Callable[P, R] = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, boundscheck=False
    )(function)
    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` for use inside other compiled functions, its body copied into theirs."""
    decorated: Callable[P, R] = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, boundscheck=False, inline="always"
    )(function)
    return decorated
