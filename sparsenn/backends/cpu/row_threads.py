"""Worker threads that compute slices of a layer of few rows, in microseconds.

Python's threads take longer to wake than such a layer takes. Workers stay within a compiled function: for a
moment after a slice they watch for the next, then they sleep until they are woken. The thread that computes a row never
waits for a worker that is asleep or whose core is taken: any free thread claims the next slice.

Threads of an OpenMP runtime watch for work likewise, and for longer, so that two such pools take the cores from one
another. Where PyTorch has one (`use_openmp`), its threads compute the slices, and no workers are started.

All share one array, `state`, of int64, whose numbers lie a cache line apart. A *ticket* has the number of the job, how
many slices it has, and how many are claimed; so a claim, which is one atomic step, can be of no other job.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic

from sparsenn.backends.cpu.slices import MOST_SLICES, MOST_THREADS, pointer_of
from sparsenn.backends.cpu.tiles import atomic, element_place
from sparsenn.formats import Array
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.jit import address_of, compiled, example
from sparsenn.runtime.workers import renew_after_fork, thread_count

NO_THREADS = np.zeros(0, np.int64)
"""The state where a row is computed by one thread."""

_LINE = 8  # numbers of a cache line
TICKET, DONE, OWNED, ASLEEP, ENDED, ENTERED, PLACE = (_LINE * number for number in range(7))
FUNCTION, TEAM, HELPER, MOST = range(PLACE + 1, PLACE + 5)
_SIZE = PLACE + _LINE
# DONE: slices of the job that are computed. OWNED: whether a thread has a job. ASLEEP: whether workers sleep, the word
# by which the system wakes them. ENDED: whether workers have to end. ENTERED: threads of OpenMP that have come to the
# job. PLACE: the job's address. FUNCTION: that of the function that computes its slices. TEAM: that of the function of
# OpenMP that has all its threads call another, HELPER, or 0. MOST: threads that compute slices, at most.

WATCHES = 4000
"""Polls of a worker before it sleeps: 60 to 200 us, longer than what lies between two layers."""

PATIENCE = 2000
"""Polls of the last slices before a thread lets others have its core."""

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
"""Number of the system call `futex`; 0 where there are no workers."""

if _FUTEX:
    for _name in ("syscall", "sched_yield"):  # compiled functions find them by name
        add_symbol(f"sparsenn_{_name}", ctypes.cast(getattr(ctypes.CDLL(None), _name), ctypes.c_void_p).value)

_WAIT, _WAKE = 128, 129  # what `futex` does, for threads of one process


_read, _add, _exchange = map(atomic, ("load", "add", "xchg"))


def _swapping(typing: Any, array: Any, index: Any, before: Any, after: Any) -> Any:
    """Replace a number if it is the one expected; return whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, before, after = arguments
        place = element_place(context, builder, signature.args[0], array, index)
        return builder.extract_value(builder.cmpxchg(place, before, after, "seq_cst", "seq_cst"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), generate


def _futex(typing: Any, array: Any, index: Any, operation: Any, value: Any) -> Any:
    """Call the system: wait while a number, of 32 bits, is `value`; or wake as many threads that wait."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, operation, value = arguments
        long = ir.IntType(64)
        if not _FUTEX:
            return ir.Constant(long, 0)
        kind = ir.FunctionType(long, [long], var_arg=True)
        call = cgutils.get_or_insert_function(builder.module, kind, "sparsenn_syscall")
        place = builder.ptrtoint(element_place(context, builder, signature.args[0], array, index), long)
        none = ir.Constant(long, 0)
        return builder.call(call, [ir.Constant(long, _FUTEX), place, operation, value, none, none, none])

    return types.int64(array, types.intp, types.int64, types.int64), generate


def _calling(name: str, result: Any, is_there: bool) -> Any:
    """Return a function that calls one without arguments, if it is there, and drops its result."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if is_there:
            kind = ir.FunctionType(result, [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    def function(typing: Any) -> Any:
        return types.void(), generate

    return intrinsic(function)


def _computing(typing: Any, function: Any, job: Any, number: Any) -> Any:
    """Call a function of a job's address and the number of a slice by its own address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [long, long])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _starting_team(typing: Any, function: Any, helper: Any, argument: Any) -> Any:
    """Have all threads of OpenMP's team, this one among them, call a helper by its address; wait for all."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long, short = ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [long, long, short, short])
        defaults = [ir.Constant(short, 0)] * 2  # as many threads as other work has, no flags
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [*arguments[1:], *defaults])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


_swap, _call_futex, _compute, _start_team = map(intrinsic, (_swapping, _futex, _computing, _starting_team))
_rest = _calling("llvm.x86.sse2.pause", ir.VoidType(), platform.machine() == "x86_64")
_yield_core = _calling("sparsenn_sched_yield", ir.IntType(32), bool(_FUTEX))


@compiled
def _claim(state: Array) -> int:
    """Return a slice that no other thread computes, or -1."""
    while True:
        ticket = _read(state, TICKET, 0)
        if ticket & MOST_SLICES >= ticket >> 16 & MOST_SLICES:
            return -1
        if _swap(state, TICKET, ticket, ticket + 1):
            return ticket & MOST_SLICES


@compiled
def _help(address: int) -> None:
    """Compute slices of a job until all are claimed; `address` is that of the state."""
    state = carray(pointer_of(address), _SIZE, np.int64)
    if _add(state, ENTERED, 1) < state[MOST]:
        _compute_claimed(state)


@compiled
def _compute_claimed(state: Array) -> None:
    number = _claim(state)
    while number >= 0:
        _compute(state[FUNCTION], state[PLACE], number)
        _add(state, DONE, 1)
        number = _claim(state)


@compiled
def _serve(state: Array) -> None:
    """Compute slices until the end."""
    watches = 0
    while _read(state, ENDED, 0) == 0:
        number = _claim(state)
        if number >= 0:
            _compute(state[FUNCTION], state[PLACE], number)
            _add(state, DONE, 1)
            watches = 0
            continue
        watches += 1
        _rest()
        if watches >= WATCHES:
            watches = 0
            _exchange(state, ASLEEP, 1)
            ticket = _read(state, TICKET, 0)
            if ticket & MOST_SLICES >= ticket >> 16 & MOST_SLICES and _read(state, ENDED, 0) == 0:
                _call_futex(state, ASLEEP, _WAIT, 1)


@compiled
def _wake(state: Array) -> None:
    if _read(state, ASLEEP, 0) != 0:
        _exchange(state, ASLEEP, 0)
        _call_futex(state, ASLEEP, _WAKE, MOST_THREADS)


@compiled
def run_slices(state: Array, job: Array, slices: int, is_split: bool) -> None:
    """Compute all slices of a job, with workers where `is_split`, `state` has any, and no other thread has them.

    job : int64; the first number is the address of a function of the job's address and the number of a slice.
    """
    if not is_split or state.size == 0 or not _swap(state, OWNED, 0, 1):
        for number in range(slices):
            _compute(job[0], job.ctypes.data, number)
        return
    state[PLACE], state[FUNCTION] = job.ctypes.data, job[0]
    _exchange(state, DONE, 0)
    _exchange(state, TICKET, (((_read(state, TICKET, 0) >> 32) + 1) & 0x7FFFFFFF) << 32 | slices << 16)
    if state[TEAM] != 0:
        _exchange(state, ENTERED, 0)
        _start_team(state[TEAM], state[HELPER], state.ctypes.data)
    else:
        _wake(state)
        _compute_claimed(state)
    watches = 0
    while _read(state, DONE, 0) < slices:
        watches += 1
        _rest()
        if watches > PATIENCE:
            _yield_core()
    _exchange(state, OWNED, 0)


@compiled
def _end(state: Array) -> None:
    _exchange(state, ENDED, 1)
    _exchange(state, ASLEEP, 0)
    _call_futex(state, ASLEEP, _WAKE, MOST_THREADS)


class _RowThreads:
    """The workers of a process, or the OpenMP function in their place; a child that is forked starts its own workers.

    OpenMP's threads are not in the child, and its runtime would wait for them.
    """

    def __init__(self) -> None:
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self.state: Array | None = None
        self._team = 0
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self) -> Array:
        count = min(thread_count(), MOST_THREADS) - 1
        with self._lock:
            if self.state is not None:
                return self.state
            if count < 1 or not _FUTEX:
                self.state = NO_THREADS
                return self.state
            state = np.zeros(_SIZE, np.int64)
            if self._team:
                state[TEAM], state[HELPER], state[MOST] = self._team, address_of(_help, types.int64), count + 1
                self.state = state
                return state
            state[ENDED] = 1
            _serve(state)  # compiled or loaded here, not by each thread
            state[ENDED] = 0
            with held_signals():
                for number in range(count):
                    thread = threading.Thread(target=_serve, args=(state,), name=f"sparsenn_row_{number}", daemon=True)
                    thread.start()
                    self._threads.append(thread)
            self.state = state
            return state

    def use_team(self, address: int) -> None:
        """Have OpenMP's threads compute slices from the next job on; workers of ours that have started end."""
        self.end()
        with self._lock:
            self._team, self.state = address, None

    def end(self) -> None:
        """End the workers before the interpreter ends under them."""
        if self._threads and self.state is not None:
            _end(self.state)
            for thread in self._threads:
                thread.join()
            self._after_fork()


_process = _RowThreads()
atexit.register(_process.end)


def row_threads() -> Array:
    """Return the workers' state, once they have started; it is empty where there are none."""
    state = _process.state
    return _process.start() if state is None else state


def use_openmp(library: str) -> None:
    """Have slices computed by the threads of the OpenMP runtime of a library that is loaded, if it is of GCC's kind.

    A thread that calls has a team of its own, the one that computes whatever else the library has its threads do.
    """
    if not _FUTEX:
        return
    try:
        found = ctypes.CDLL(library, mode=os.RTLD_NOLOAD).GOMP_parallel
    except (OSError, AttributeError):
        return
    _process.use_team(ctypes.cast(found, ctypes.c_void_p).value or 0)


@example
def _example() -> None:
    if _FUTEX:
        state = np.zeros(_SIZE, np.int64)
        _end(state)
        _help(state.ctypes.data)
