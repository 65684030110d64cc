"""Compiles the source of kernels with the values of its defines, once for a process."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeAlias

from sparsenn.backends.cuda.runtime.activation import HEADER, activation_header
from sparsenn.backends.cuda.runtime.device import as_current, cupy, machine_of
from sparsenn.backends.cuda.runtime.machine_code import machine_code
from sparsenn.errors import DeviceError
from sparsenn.runtime.interrupts import held_signals
from sparsenn.runtime.progress import announce_compilation
from sparsenn.runtime.spans import span
from sparsenn.runtime.timing import count_as_compiling
from sparsenn.runtime.workers import thread_count

COMPILE_OPTIONS = ("-std=c++17", "-lineinfo")  # line numbers let profilers and sanitizers name them

_Defines: TypeAlias = tuple[tuple[str, int | str], ...]

_INCLUDE = re.compile(r'^#include "([^"]+)"[ \t]*$', re.MULTILINE)


def source_text(path: str) -> str:
    """Return a kernel's source with all that it includes in place, each header once; `HEADER` is generated.

    CuPy keys its cache of compiled kernels by their text; a header left to the compiler would go unnoticed when it
    changes.
    """
    return _expanded(path, set())


def _file(path: str) -> Traversable:
    own = files("sparsenn.backends.cuda").joinpath("kernels", path)
    return own if own.is_file() else files("sparsenn").joinpath(path)


def _expanded(path: str, seen: set[str]) -> str:
    text = activation_header() if path == HEADER else _file(path).read_text(encoding="utf-8")

    def include(found: re.Match[str]) -> str:
        beside = f"{path.rpartition('/')[0]}/{found[1]}".lstrip("/")
        name = beside if beside == HEADER or _file(beside).is_file() else found[1]
        line = text.count("\n", 0, found.start()) + 2
        if name in seen:
            return ""
        seen.add(name)
        return f'{_expanded(name, seen).replace("#pragma once", "")}\n#line {line} "{path}"'

    return f'#line 1 "{path}"\n{_INCLUDE.sub(include, text)}'


def define_options(defines: Mapping[str, int | str]) -> tuple[str, ...]:
    """Return defines as compiler options, in the order of their names."""
    return tuple(f"-D{name}={defines[name]}" for name in sorted(defines))


class _Here(threading.local):
    rehearses = False


MOST_THREADS = 8  # threads that compile side by side
SILENT_SECONDS = 0.3  # until waiting for a module is announced: loading one that was compiled before takes less

_here = _Here()
_locks: defaultdict[tuple[Any, ...], threading.Lock] = defaultdict(threading.Lock)
"""By all that a module is made of but its device: threads for several devices make it one after the other, so that all
but the first find it compiled."""
_modules: dict[tuple[Any, ...], Future[Any]] = {}


@contextmanager
def rehearsal(rehearses: bool = True) -> Iterator[None]:
    """Have this thread launch no kernels in the block, but begin to compile them, side by side; or launch them again.

    Within a rehearsal, `rehearsal(False)` is for results that last.
    """
    before, _here.rehearses = _here.rehearses, rehearses
    try:
        yield
    finally:
        _here.rehearses = before


def rehearses() -> bool:
    """Return whether this thread rehearses."""
    return _here.rehearses


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_THREADS, thread_count()), thread_name_prefix="sparsenn-compile")


def _begin(source: str, defines: _Defines, device: int, architecture: str | None) -> Future[Any]:
    """Begin to compile a module, unless that has begun before and not failed."""
    key = source, defines, device, architecture
    found = _modules.get(key)
    if found is None or _has_failed(found):
        with held_signals():  # a thread that is interrupted while it starts would wait for ever
            found = _modules[key] = _threads().submit(_compiled, *key)
    return found


def _has_failed(module: Future[Any]) -> bool:
    return module.done() and module.exception() is not None


def _module(source: str, defines: _Defines, device: int, architecture: str | None) -> Any:
    known = _modules.get((source, defines, device, architecture))
    if known is not None and known.done() and not _has_failed(known):
        return known.result()
    module = _begin(source, defines, device, architecture)
    _wait_for([module])
    return module.result()


def wait_for_modules() -> None:
    """Wait until no module is being compiled."""
    _wait_for(tuple(_modules.values()))


def _wait_for(modules: Sequence[Future[Any]]) -> None:
    start = time.perf_counter()
    try:
        if wait(modules, SILENT_SECONDS).not_done:
            announce_compilation()
            wait(modules)
    finally:
        count_as_compiling(time.perf_counter() - start)


def _compiled(source: str, defines: _Defines, device: int, architecture: str | None) -> Any:
    cp = cupy()
    text, options = source_text(source), (*COMPILE_OPTIONS, *define_options(dict(defines)))
    try:
        with (
            as_current(device),
            _locks[source, defines, architecture],
            span(f"compile {source}", "compile", compiler="nvrtc", **dict(defines)),
        ):
            if architecture is None:
                built = cp.RawModule(code=text, options=options)
                built.compile()
            else:
                built = cp.RawModule(path=str(machine_code(cp, source, text, options, architecture)))
            return built
    except (cp.cuda.compiler.CompileException, cp.cuda.driver.CUDADriverError, RuntimeError, OSError) as error:
        shown = ", ".join(f"{name}={value}" for name, value in defines) or "no defines"
        raise DeviceError(
            f"the kernel {source} ({shown}) cannot be compiled for cuda:{device}: {error}; "
            "check that the CuPy package is the one for the driver's CUDA version (cupy-cuda12x[ctk] or "
            "cupy-cuda13x[ctk]), or use device cpu"
        ) from error


class RehearsedKernel:
    """A kernel requested in a rehearsal, which `load` returns once it is compiled."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    @cached_property
    def loaded(self) -> Any:
        """The kernel itself."""
        return self._load()

    def __call__(self, *arguments: Any, **named: Any) -> None:
        """Launch the kernel, unless this thread rehearses."""
        if not _here.rehearses:
            self.loaded(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loaded, name)


@cache
def _kernel(program: Program, defines: _Defines, device: int, name: str) -> Any:
    found = _module(program.source, defines, device, program.architecture).get_function(name)
    if program.dynamic_shared:
        found.max_dynamic_shared_size_bytes = machine_of(device).block_bytes - found.shared_size_bytes
    if program.carveout is not None:
        found.preferred_shared_memory_carveout = program.carveout
    return found


@cache
def _kernel_of_unordered(program: Program, defines: _Defines, device: int, name: str) -> Any:
    """Return a kernel for defines in any order; the same ones in the same order again take no time."""
    return _kernel(program, program.every(dict(defines)), device, name)


@dataclass(frozen=True, eq=False)
class Program:
    """A source file with the values that its defines may take, the first of them the default; compiled when needed.

    `choices` is None where the defines are a problem's own sizes; `architecture` None for the device that runs the
    kernel, or such as sm_90a. With `dynamic_shared`, launches may ask for all the shared memory that a block can have;
    `carveout` is the percentage of a multiprocessor's first cache that becomes shared memory.
    """

    source: str
    choices: Mapping[str, tuple[int | str, ...]] | None
    architecture: str | None = None
    dynamic_shared: bool = False
    carveout: int | None = None

    def builds(self) -> Iterator[dict[str, int | str]]:
        """Yield every set of defines; none where they are a problem's own sizes."""
        if self.choices is not None:
            for values in itertools.product(*self.choices.values()):
                yield dict(zip(self.choices, values, strict=True))

    def kernel(self, name: str, **defines: int | str) -> Any:
        """Return one kernel for the current device, compiled with the defines; raises DeviceError where that fails.

        It is compiled, or loaded, on first use; in a rehearsal, by a thread of its own.
        """
        device = cupy().cuda.runtime.getDevice()
        load = partial(_kernel_of_unordered, self, tuple(defines.items()), device, name)
        if not _here.rehearses:
            return load()
        _begin(self.source, self.every(defines), device, self.architecture)
        return RehearsedKernel(load)

    def constant(self, name: str, **defines: int | str) -> Any:
        """Return where a variable of the program is in the current device's memory; errors as `kernel`."""
        device = cupy().cuda.runtime.getDevice()
        return _module(self.source, self.every(defines), device, self.architecture).get_global(name)

    def every(self, defines: Mapping[str, int | str]) -> tuple[tuple[str, int | str], ...]:
        """Return the given defines and the defaults of the others, in the order of their names."""
        if self.choices is None:
            return tuple(sorted(defines.items()))
        for define, value in defines.items():
            assert value in self.choices[define], f"{self.source}: {define}={value} was never compiled in the tests"
        return tuple(sorted(({define: values[0] for define, values in self.choices.items()} | dict(defines)).items()))


PROGRAMS: list[Program] = []  # every program there is; the test-suite compiles all builds of all of them


def program(
    source: str,
    architecture: str | None = None,
    /,
    *,
    dynamic_shared: bool = False,
    carveout: int | None = None,
    **choices: tuple[int | str, ...],
) -> Program:
    """Declare a source file and what its defines may be; parameters as those of `Program`."""
    PROGRAMS.append(Program(source, choices, architecture, dynamic_shared, carveout))
    return PROGRAMS[-1]


def specialised(
    source: str, architecture: str | None = None, /, *, dynamic_shared: bool = False, carveout: int | None = None
) -> Program:
    """Declare a source file that is compiled for a problem's own sizes, whatever they are."""
    PROGRAMS.append(Program(source, None, architecture, dynamic_shared, carveout))
    return PROGRAMS[-1]
