"""From a kernel's source file and the values of its defines to a compiled module, kept for the process.

CuPy is imported here and nowhere else, when a kernel or an array is first needed.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from sparsenn.backends.cuda.machine_code import machine_code
from sparsenn.errors import DeviceError

__all__ = [
    "COMPILE_OPTIONS",
    "PROGRAMS",
    "Program",
    "compile_seconds",
    "cupy",
    "define_options",
    "module",
    "program",
    "source_text",
]

COMPILE_OPTIONS = ("-std=c++17", "-lineinfo")
"""What every kernel is compiled with, besides its defines; line numbers let profilers and sanitizers name them."""

_INCLUDE = re.compile(r'^#include "([^"]+)"[ \t]*$', re.MULTILINE)


_imported: Any = None
"""CuPy, once it has been imported in full."""


def cupy() -> Any:
    """Import CuPy on first use. It warns about installations that it still works with; those warnings are dropped.

    Launches ask for it many times over, so that what was imported is looked at first.
    """
    global _imported
    if _imported is None or sys.modules.get("cupy") is not _imported:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _imported = import_module("cupy")
    return _imported


def source_text(path: str) -> str:
    """Return a kernel's source with everything that it includes in place, each header once.

    CuPy keys its cache of compiled kernels by their text; a header left to the compiler would go unnoticed when it
    changes.

    Parameters
    ----------
    path : within the package's `kernels` folder; a name in an include is looked for beside the including file first.
    """
    return _expanded(path, set())


def _expanded(path: str, seen: set[str]) -> str:
    root = files("sparsenn.backends.cuda") / "kernels"
    text = root.joinpath(path).read_text(encoding="utf-8")

    def include(found: re.Match[str]) -> str:
        beside = f"{path.rpartition('/')[0]}/{found[1]}".lstrip("/")
        name = beside if root.joinpath(beside).is_file() else found[1]
        line = text.count("\n", 0, found.start()) + 2
        if name in seen:
            return ""
        seen.add(name)
        return f'{_expanded(name, seen).replace("#pragma once", "")}\n#line {line} "{path}"'

    return f'#line 1 "{path}"\n{_INCLUDE.sub(include, text)}'


def define_options(defines: Mapping[str, int | str]) -> tuple[str, ...]:
    """Return defines as compiler options, in the order of their names."""
    return tuple(f"-D{name}={defines[name]}" for name in sorted(defines))


def module(source_path: str, defines: Mapping[str, int | str] | None = None, architecture: str | None = None) -> Any:
    """Return the compiled `cupy.RawModule` of a source file for the current device; compiled on first use.

    Parameters
    ----------
    source_path : within the package's `kernels` folder, such as `spmspm/01_naive.cu`.
    defines : macros and their values.
    architecture : what it must be compiled for, such as sm_90a; None for whichever device runs it.

    Raises
    ------
    DeviceError
        It cannot be compiled or loaded here.
    """
    device = cupy().cuda.runtime.getDevice()
    return _module(source_path, tuple(sorted((defines or {}).items())), device, architecture)


_spent: list[float] = []
"""Seconds that each module took to make."""


def compile_seconds() -> float:
    """Return the seconds that this process has spent on compiling kernels, or on loading them from CuPy's cache.

    Kernels that CuPy makes for its own functions are not counted.
    """
    return sum(_spent)


@cache
def _module(
    source_path: str, defines: tuple[tuple[str, int | str], ...], device: int, architecture: str | None = None
) -> Any:
    cp = cupy()
    start = time.perf_counter()
    text, options = source_text(source_path), (*COMPILE_OPTIONS, *define_options(dict(defines)))
    try:
        if architecture is None:
            built = cp.RawModule(code=text, options=options)
            built.compile()
        else:
            built = cp.RawModule(path=str(machine_code(cp, source_path, text, options, architecture)))
    except (cp.cuda.compiler.CompileException, cp.cuda.driver.CUDADriverError, RuntimeError, OSError) as error:
        shown = ", ".join(f"{name}={value}" for name, value in defines) or "no defines"
        raise DeviceError(
            f"the kernel {source_path} ({shown}) cannot be compiled for cuda:{device}: {error}; "
            "check that the CuPy package is the one for the driver's CUDA version (sparsenn[cuda12] or "
            "sparsenn[cuda13]), or use --device cpu"
        ) from error
    finally:
        _spent.append(time.perf_counter() - start)
    return built


@cache
def _kernel(
    source_path: str, defines: tuple[tuple[str, int | str], ...], device: int, architecture: str | None, name: str
) -> Any:
    return _module(source_path, defines, device, architecture).get_function(name)


@dataclass(frozen=True, eq=False)
class Program:
    """A source file together with the values that its defines may take. `program` makes and records one.

    Parameters
    ----------
    source : path within the package's `kernels` folder.
    choices : for each define, its possible values; the first is the default.
    architecture : what it must be compiled for, such as sm_90a; None for whichever device runs it.
    """

    source: str
    choices: Mapping[str, tuple[int | str, ...]]
    architecture: str | None = None

    def builds(self) -> Iterator[dict[str, int | str]]:
        """Yield every set of defines."""
        for values in itertools.product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))

    def kernel(self, name: str, **defines: int | str) -> Any:
        """Return one kernel, compiled with the given defines and the defaults of the others.

        Raises
        ------
        DeviceError
            As `module`.
        """
        for define, value in defines.items():
            assert value in self.choices[define], f"{self.source}: {define}={value} was never compiled in the tests"
        chosen = {define: values[0] for define, values in self.choices.items()} | defines
        device = cupy().cuda.runtime.getDevice()
        return _kernel(self.source, tuple(sorted(chosen.items())), device, self.architecture, name)


PROGRAMS: list[Program] = []
"""Every program there is; the test-suite compiles all builds of all of them."""


def program(source: str, architecture: str | None = None, /, **choices: tuple[int | str, ...]) -> Program:
    """Declare a source file and what its defines may be, and the only architecture that has its instructions."""
    PROGRAMS.append(Program(source, choices, architecture))
    return PROGRAMS[-1]
