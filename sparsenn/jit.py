"""Decorators for every function that numba compiles, so that all share the same floating-point rules.

Compiled code is cached beside the source (or in the user's cache folder where that is read-only) and releases
the GIL. Of the fast-math liberties only *contract* is taken: a multiply and an add may become one fused
multiply-add, which rounds once instead of twice. Nothing is reordered and NaN keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

__all__ = ["compiled", "compiled_functions", "example", "run_examples", "threaded"]

P = ParamSpec("P")
R = TypeVar("R")

_functions: list[Any] = []
_examples: list[Callable[[], object]] = []


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` in nopython mode on first call; it runs without the GIL and is cached on disk."""
    return _compile(function)


def threaded(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled` does, with `numba.prange` spread over all threads."""
    return _compile(function, parallel=True)


def _compile(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    decorated: Callable[P, R] = numba.njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, boundscheck=False, **options
    )(function)
    _functions.append(decorated)
    return decorated


def compiled_functions() -> tuple[Any, ...]:
    """Return numba's dispatchers of all functions that modules imported so far compile."""
    return tuple(_functions)


def example(run: Callable[[], object]) -> Callable[[], object]:
    """Register a call that `run_examples` makes: it runs compiled functions on tiny data, with the types of any data.

    For functions that no inference and no training runs.
    """
    _examples.append(run)
    return run


def run_examples() -> None:
    """Run all examples of the modules imported so far, so that what they run is compiled and cached."""
    for run in _examples:
        run()
