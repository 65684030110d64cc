"""Decorators for every function that numba compiles, so that all share the same floating-point rules.

Compiled code is cached on disk (`sparsenn.runtime.storage.compiled` says where) and releases the GIL. Of the fast-math
liberties only *contract* is taken: a multiply and an add may become one fused multiply-add, which rounds once instead
of twice. Nothing is reordered and NaN keeps its meaning.

Compiled functions return numbers, and write arrays that they are given: for an array that is returned numba calls a
function of Python's, where the handler of a signal may raise, and in tuples numba overlooks that. The caller is then
given a null pointer. LLVM calls Python code, too, and goes on where that raises: signals wait while a function is
compiled, loaded or cached.

Numba's own threads, which only `threaded` functions use, neither survive a fork nor, with every library that it may
take them from, calls from two threads at a time: either ends the process. So one call waits for another, and children
that were forked after such a call compute in their one thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from sparsenn.errors import UsageError

if not os.environ.get("NUMBA_NUM_THREADS", "1").isdigit() or int(os.environ.get("NUMBA_NUM_THREADS", "1")) < 1:
    raise UsageError(
        f"NUMBA_NUM_THREADS is {os.environ['NUMBA_NUM_THREADS']!r}; give an integer of at least 1, or unset it"
    )

import numba
from numba.core import event, types
from numba.core.typing import signature
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:
    raise UsageError("numba compiles nothing where NUMBA_DISABLE_JIT is set, and sparsenn needs that; unset it")

from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.progress import announce_compilation
from sparsenn.runtime.spans import span
from sparsenn.runtime.storage.compiled import LOADING, compiled_cache, is_cached

P = ParamSpec("P")
R = TypeVar("R")

_functions: list[Any] = []
_examples: list[Callable[[], object]] = []


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` in nopython mode on first call; it runs without the GIL and is cached on disk."""
    return _compile(function)


def uncontracted(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `uncounted` does, but no multiply with an add: the bits are the same whatever it is inlined into."""
    return _compile(function, fastmath=False, _nrt=False)


def uncounted(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled` does, but references to arrays are not counted: the function makes no arrays.

    To count those of the arguments of a call takes longer than a line of pixels.
    """
    return _compile(function, _nrt=False)


def _marking(*attributes: str) -> Any:
    """Return a function that does nothing; LLVM knows the function that calls it by some attributes."""

    def mark(typing: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for attribute in attributes:
                set.add(builder.function.attributes, attribute)  # also those that llvmlite does not know
            return context.get_dummy_value()

        return types.void(), generate

    return intrinsic(mark)


always_inlined = _marking("alwaysinline")
"""Have the function that calls this be inlined, so that loops around it become vectors."""

wide_vectors = _marking("noinline", '"prefer-vector-width"="512"')
"""Have loops of the function that calls this take the widest vectors there are; it is inlined nowhere.

LLVM takes half of them on processors that once slowed down for whole ones. The attributes of a function into which it
were inlined would hold.
"""


@cache  # LLVM's lock, which finding it takes, may be another thread's when a child is forked
def address_of(function: Any, *arguments: Any) -> int:
    """Return where the code of a compiled function that returns nothing begins, for calls as in C.

    arguments : numba's types.
    """
    result = function.get_compile_result(signature(types.void, *arguments))
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


class _NumbaThreads:
    """Whether numba's threads can be used, and by whom."""

    def __init__(self) -> None:
        self.started = self.lost = False
        self.lock = threading.Lock()

    def forget(self) -> None:
        """Take note, in a forked child, that the parent's threads are not here."""
        self.lost = self.lost or self.started
        self.lock = threading.Lock()


_numba_threads = _NumbaThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_numba_threads.forget)


def threaded(function: Callable[P, R]) -> Callable[P, R]:
    """Compile as `compiled` does, with `numba.prange` spread over all threads; one call at a time.

    In a process that was forked after such a call the function runs in one thread.
    """
    alone = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_alone")
    alone.__module__, alone.__qualname__ = function.__module__, f"{function.__qualname__}_alone"
    parallel: Callable[P, R] = _compile(function, parallel=True)
    serial: Callable[P, R] = _compile(alone)  # under a name of its own: numba's cache goes by names

    @wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> R:
        if _numba_threads.lost:
            return serial(*arguments, **named)
        with _numba_threads.lock:
            _numba_threads.started = True
            return parallel(*arguments, **named)

    return run


def _compile(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    rules = {"fastmath": {"contract"}, "error_model": "numpy", "boundscheck": False}
    decorated: Callable[P, R] = numba.njit(nogil=True, **(rules | options))(function)
    decorated._cache = compiled_cache(function)  # type: ignore[attr-defined]
    decorated.compile = _undisturbed(decorated.compile)  # type: ignore[attr-defined]
    _functions.append(decorated)
    return decorated


def _undisturbed(compiling: Callable[..., Any]) -> Callable[..., Any]:
    """Have signals wait while numba compiles a function, loads or keeps it."""

    @wraps(compiling)
    def run(*arguments: Any, **named: Any) -> Any:
        with held_signals():
            return compiling(*arguments, **named)

    return run


class _Spending(event.Listener):  # type: ignore[misc]  # numba has no types
    """Times what numba does to functions, and marks it as spans. Its lock has one thread do so at a time.

    A function that another calls may be compiled, or loaded, while that is compiled; both are compiling then.

    verb : what is done.
    category : of the spans.
    within : what counts for itself whatever is done while it lasts.
    announces : whether the first time for a function of this package is announced.
    """

    def __init__(self, verb: str, category: str, within: _Spending | None = None, announces: bool = False) -> None:
        self._verb, self._category, self._within, self._announces = verb, category, within, announces
        self._open: list[AbstractContextManager[object]] = []
        self._state: tuple[float, float | None] = 0.0, None  # seconds until now, and since when more of them pass

    def seconds(self) -> float:
        """Return the seconds spent until now, also on what is not done yet."""
        spent, since = self._state
        return spent if since is None else spent + time.perf_counter() - since

    def on_start(self, event: event.Event) -> None:
        """Begin with a function."""
        if self._within is not None and self._within._open:
            return
        function = event.data["dispatcher"].py_func
        if self._announces and function.__module__.startswith("sparsenn."):
            announce_compilation()
        name = function.__qualname__
        begun = span(f"{self._verb} {name}", self._category, compiler="numba")
        begun.__enter__()
        self._open.append(begun)
        if len(self._open) == 1:
            self._state = self._state[0], time.perf_counter()

    def on_end(self, event: event.Event) -> None:
        """End with a function; an interrupt may have come before its begin was noted."""
        if self._open:
            self._open.pop().__exit__(None, None, None)
        if not self._open:
            self._state = self.seconds(), None


_compiling = _Spending("compile", "compile", announces=True)
_loading = _Spending("load", "prepare", within=_compiling)
event.register("numba:compile", _compiling)
event.register(LOADING, _loading)


def compile_seconds() -> float:
    """Return the seconds that numba has spent in this process on compiling functions, whoever's they are.

    Loading what was compiled before is not counted.
    """
    return _compiling.seconds()


def load_seconds() -> float:
    """Return the seconds spent in this process on loading functions of this package that were compiled before."""
    return _loading.seconds()


def compiled_functions() -> tuple[Any, ...]:
    """Return numba's dispatchers of all functions that modules imported so far compile."""
    return tuple(_functions)


def stored_functions() -> int:
    """Return of how many functions that modules imported so far a compiled version is on disk."""
    return sum(map(is_cached, _functions))


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
