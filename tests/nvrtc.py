"""Compiling CUDA C++ with no GPU, and reading what the compiler says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from compiled import compiled

__all__ = ["CUPY_OPTIONS", "compile_log", "faults"]

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy adds to every compilation."""

_ROUTINE = re.compile(r"ptxas info\s*:|ptxas\s+\.\s")
_COSTS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class _NotCompiledError(Exception):
    """Carries the log; such a compilation is not kept."""


def compile_log(source: str, name: str, arch: str, options: Sequence[str]) -> tuple[bool, str]:
    """Compile to machine code for `arch`, such as sm_90; returns whether that worked, and the compiler's log.

    The log of a compilation that worked before is taken from the cache, see `compiled`.

    Parameters
    ----------
    source : with all that it includes in place.
    """
    every = [*options, *CUPY_OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v"]
    assert "#include" not in source, "a header left to the compiler would go unnoticed when it changes"
    try:
        log = compiled((*_compiler(), name, source, *every), lambda: _compile(source, name, every).encode())
    except _NotCompiledError as error:
        return False, str(error)
    return True, log.decode()


@cache
def _compiler() -> tuple[str, ...]:
    """What tells one compiler from another: NVRTC tells its version but for the last part, which its package has."""
    from cuda.bindings import nvrtc

    try:
        package = version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        package = "of another origin"
    return "nvrtc", *map(str, _checked(nvrtc.nvrtcVersion())), package


def _compile(source: str, name: str, options: Sequence[str]) -> str:
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    said = log.decode().strip("\0 \n")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise _NotCompiledError(said)
    return said


def faults(log: str) -> list[str]:
    """Return the lines of a log that are warnings or errors, or tell of registers spilt or of products one by one."""
    found = []
    for line in log.splitlines():
        costs = _COSTS.search(line)
        routine = _ROUTINE.match(line) and "Performance Loss" not in line
        if (costs and any(map(int, costs.groups()))) or (line.strip() and not routine):
            found.append(line)
    return found


def _checked(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == 0, answer
    return answer[1:] if len(answer) > 2 else answer[-1]
