"""Running a tensor-core kernel of `sparsenn/backends/cuda/kernels` on the host, compiled by g++.

What stands in for the device is in `emulation.h`, and for headers that consist of instructions, in `STAND_INS`.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from compiled import compiled

from sparsenn.backends.cuda.runtime.loader import source_text

__all__ = ["Emulated", "EmulationError", "emulated"]

HERE = Path(__file__).parent
OPTIONS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-gnu-unique")
MOST_SECONDS = 120

STAND_INS = {
    f"ptx/{name}.cuh": f"emulation_{name}.h"
    for name in (
        "barriers",
        "clusters",
        "copies",
        "edges",
        "half_edges",
        "launches",
        "matrix_products",
        "memory",
        "numbers",
        "opaque",
        "warpgroup_products",
    )
}
"""What is included in the place of a header's own lines."""

_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s*(\w+)\(([^{]*)\) \{')


class EmulationError(Exception):
    """A kernel has done what it must not do."""


class Emulated:
    """A kernel that can be launched with NumPy arrays and scalars of the very types that it takes.

    Parameters
    ----------
    library : what g++ has made of it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name in ("bank_conflicts", "bank_reads"):
            getattr(library, name).restype = ctypes.c_long
        library.launch.restype = ctypes.c_char_p
        self._before = 0, 0

    def _counted(self) -> tuple[int, int]:
        return self._library.bank_conflicts(), self._library.bank_reads()

    @property
    def conflicts(self) -> float:
        """How often reads of shared memory waited for another's banks in the last launch, in parts of all reads."""
        conflicts, reads = (now - before for now, before in zip(self._counted(), self._before, strict=True))
        return conflicts / max(1, reads)

    def launch(self, blocks: int, threads: int, *arguments: np.ndarray | np.generic, seed: int = 1) -> None:
        """Run all blocks, in an order of chance.

        Parameters
        ----------
        arguments : arrays must be contiguous, or consist of rows that are.

        Raises
        ------
        EmulationError
            A copy of no proper size or place, a place outside of the arrays, a barrier that some threads miss, or lanes
            of a warp that do different things where they must do the same.
        """
        self._library.clear_regions()
        passed: list[object] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                assert argument.ndim == 0 or argument.strides[-1] == argument.itemsize
                size = argument.strides[0] * (argument.shape[0] - 1) if argument.size else 0
                size += argument[:1].nbytes
                self._library.add_region(ctypes.c_void_p(argument.ctypes.data), ctypes.c_int64(size))
                passed.append(ctypes.c_void_p(argument.ctypes.data))
            else:
                passed.append(np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item()))
        self._before = self._counted()
        fault = self._library.launch(blocks, threads, ctypes.c_uint(seed), *passed)
        if fault:
            raise EmulationError(fault.decode())


def emulated(source: str, defines: Mapping[str, int | str], planted: tuple[str, str] = ("", "")) -> Emulated:
    """Compile a kernel for the host; the calling test is skipped where there is no g++.

    Parameters
    ----------
    source : path within the package's `kernels` folder.
    planted : what to replace in its text, by what: a fault.
    """
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    return _emulated(source, tuple(sorted(defines.items())), planted)


@cache
def _headers() -> dict[str, str]:
    """Return the texts of what stands in for the device, by file."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("emulation*.h"))}


@cache
def _compiler() -> tuple[str, ...]:
    """Return what decides, besides a source, what comes out of compiling it: compiler, machine, options, headers."""
    told = [
        subprocess.run(["g++", asked], capture_output=True, text=True, check=True, timeout=MOST_SECONDS).stdout
        for asked in ("--version", "-dumpmachine")
    ]
    return "g++", *told, platform.machine(), *OPTIONS, *(text for pair in _headers().items() for text in pair)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the headers, of which the one that includes the library is compiled already."""
    folder = tempfile.TemporaryDirectory()
    for name, text in _headers().items():
        (Path(folder.name) / name).write_text(text, encoding="utf-8")
    arguments = ("-x", "c++-header", f"{folder.name}/emulation.h")
    precompiled = compiled((*_compiler(), "emulation.h.gch"), lambda: _compiled_by_gcc(*arguments))
    (Path(folder.name) / "emulation.h.gch").write_bytes(precompiled)
    return folder


def _compiled_by_gcc(*arguments: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        done = subprocess.run(
            ["g++", *OPTIONS, *arguments, "-o", str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return made.read_bytes()


def _with_stand_ins(text: str) -> str:
    """Replace what headers of instructions hold themselves; what they include stays."""
    beginning, *parts = re.split(r'^(#line \d+ "([^"]+)"\n)', text, flags=re.MULTILINE)
    files = parts[1::3]
    kept = [beginning]
    for number, (line, file, own) in enumerate(zip(parts[::3], files, parts[2::3], strict=True)):
        if file not in STAND_INS:
            kept += line, own
        elif file not in files[number + 1 :]:
            kept.append(f'#include "{STAND_INS[file]}"\n')
    return "".join(kept)


@cache
def _emulated(source: str, defines: tuple[tuple[str, int | str], ...], planted: tuple[str, str]) -> Emulated:
    text = _with_stand_ins(source_text(source))
    assert "asm" not in text
    assert planted[0] in text
    text = text.replace(*planted) if planted[0] else text
    found = _KERNEL.search(text)
    assert found is not None
    name, parameters = found.groups()
    names = [re.split(r"[\s*]+", parameter.strip())[-1] for parameter in parameters.split(",")]
    text += (
        f'\nextern "C" const char* launch(int blocks, int threads, unsigned seed, {parameters}) {{\n'
        f"    return run_blocks(blocks, threads, seed, [&] {{ {name}({', '.join(names)}); }});\n}}\n"
    ).replace("__restrict__", "")
    values = [f"-D{define}={value}" for define, value in defines]
    library = compiled((*_compiler(), text, *values), lambda: _compiled_library(text, values))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernel.so"
        made.write_bytes(library)
        return Emulated(ctypes.CDLL(str(made)))


def _compiled_library(text: str, values: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "kernel.cpp"
        program.write_text(f'#include "emulation.h"\n{text}', encoding="utf-8")
        return _compiled_by_gcc("-shared", f"-I{_folder().name}", *values, str(program))
