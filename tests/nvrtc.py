"""Compiling CUDA C++ with no GPU, and reading what the compiler says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["CUPY_OPTIONS", "compile_log", "faults"]

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy adds to every compilation."""

_ROUTINE = re.compile(r"ptxas info\s*:|ptxas\s+\.\s")
_COSTS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def compile_log(source: str, name: str, arch: str, options: Sequence[str]) -> tuple[bool, str]:
    """Compile to machine code for `arch`, such as sm_90; returns whether that worked, and the compiler's log."""
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    every = [*options, *CUPY_OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(every), [option.encode() for option in every])
    log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode().strip("\0 \n")


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
    return answer[1] if len(answer) > 1 else None
