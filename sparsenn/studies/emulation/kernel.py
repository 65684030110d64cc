"""Kernels of CUDA C++, compiled for the host by g++ and launched there.

The headers in `device/` stand in for the device, and for those of the package's headers that consist of instructions.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sparsenn.errors import SparseNNError, UsageError
from sparsenn.formats import Array
from sparsenn.runtime.progress import announce_compilation

HEADERS = Path(__file__).parent / "device"
OPTIONS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-gnu-unique")

MOST_SECONDS = 120
"""Seconds that compiling a kernel, or a launch, may take."""

ALIGNMENT = 16
"""Bytes at whose multiples arrays begin, so that four numbers may be read at a time."""

GUARD_BYTES = 16 << 20
"""Bytes behind an array to which every access is a fault; they take addresses, not memory."""

PROT_NONE = 0  # of mprotect: no access

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
"""Headers of the emulator that take the place of a header's own lines."""

_BOUNDS = r"(?: __launch_bounds__\((?:[^()]|\([^()]*\))*\))?"
_SIGNATURE = r'extern "C" __global__ void(?: BLOCKS_OF_A_\w+)?' + _BOUNDS + r"\s*({name})\(([^{{]*)\)\s*\{{"
_STATIC = re.compile(r"^( +)__shared__ ", re.MULTILINE)

Store: TypeAlias = Callable[[Sequence[str], Callable[[], bytes]], bytes]
"""Returns what was compiled from the very same texts before, else what the function returns."""


class EmulationError(SparseNNError):
    """A kernel has done what it must not do."""


class EmulatedKernel:
    """A kernel that can be launched with NumPy arrays and scalars of the very types that it takes."""

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

    def launch(self, blocks: int, threads: int, *arguments: Array | np.generic, seed: int = 1) -> None:
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
                kind: Any = argument.dtype
                number: Any = np.ctypeslib.as_ctypes_type(kind)
                passed.append(number(argument.item()))
        self._before = self._counted()
        fault = self._library.launch(blocks, threads, ctypes.c_uint(seed), *passed)
        if fault:
            raise EmulationError(fault.decode())

    def launch_apart(self, blocks: int, threads: int, output: Array, *arguments: Array | np.generic) -> None:
        """Run all blocks in a process of its own, which an access behind the end of an array ends.

        Parameters
        ----------
        output : the only array that the kernel writes, the last of its arguments.

        Raises
        ------
        EmulationError
            As `launch`; or the process crashed, or took longer than `MOST_SECONDS`.
        """
        there = _guarded(output)
        given = [_guarded(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no lock that the child takes
            child = os.fork()
        if not child:
            message = b""
            try:
                faulthandler.disable()
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(MOST_SECONDS)
                self.launch(blocks, threads, *given, there)
            except EmulationError as error:
                message = str(error).encode()
            finally:
                os.write(writer, message)
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            message = stream.read()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if message:
            raise EmulationError(message.decode())
        if ended == -signal.SIGALRM:
            raise EmulationError(f"it took longer than {MOST_SECONDS} s; an endless loop?")
        if ended:
            raise EmulationError(
                f"it crashed ({signal.Signals(-ended).name}); does it read or write outside of its arrays?"
            )
        output[...] = there


def _guarded(array: Array) -> Array:
    """Return a copy in memory that child processes share, and behind whose end no access is allowed."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE + GUARD_BYTES)
    first = (pages * mmap.PAGESIZE - array.nbytes) // ALIGNMENT * ALIGNMENT
    copy = np.frombuffer(memory, array.dtype, array.size, first).reshape(array.shape)
    copy[...] = array
    start = np.frombuffer(memory, np.uint8).ctypes.data
    libc = ctypes.CDLL(None)
    libc.mprotect(ctypes.c_void_p(start + pages * mmap.PAGESIZE), ctypes.c_size_t(GUARD_BYTES), PROT_NONE)
    return copy


@cache
def emulated_kernel(text: str, defines: tuple[tuple[str, int | str], ...], name: str) -> EmulatedKernel:
    """Compile a kernel of a source, whose includes are in their places already."""
    if shutil.which("g++") is None:
        raise UsageError("emulating a kernel takes g++; install it")
    announce_compilation()
    program = host_program(f'#include "emulation_warps.h"\n{text}', name)
    return EmulatedKernel(loaded(compiled_library(program, [f"-D{name}={value}" for name, value in defines])))


def loaded(library: bytes) -> ctypes.CDLL:
    """Return a compiled library, loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.so"
        file.write_bytes(library)
        return ctypes.CDLL(str(file))


def host_program(text: str, name: str = r"\w+") -> str:
    """Return a source with a function that launches one of its kernels, by default the first."""
    text = _STATIC.sub(r"\1static ", _with_stand_ins(text))
    found = re.search(_SIGNATURE.format(name=name), text)
    if found is None:
        called = "" if name == r"\w+" else f" called {name}"
        raise UsageError(f'the source has no kernel{called}; it begins with extern "C" __global__ void')
    kernel, parameters = found[1], " ".join(found[2].replace("__restrict__", "").split())
    names = [re.split(r"[\s*]+", parameter.strip())[-1] for parameter in parameters.split(",")]
    return text + (
        f'\nextern "C" const char* launch(int blocks, int threads, unsigned seed, {parameters}) {{\n'
        f"    return run_blocks(blocks, threads, seed, [&] {{ {kernel}({', '.join(names)}); }});\n}}\n"
    )


def _with_stand_ins(text: str) -> str:
    """Replace what headers of instructions hold themselves; what they include stays."""
    beginning, *parts = re.split(r'^(#line \d+ "([^"]+)"\n)', text, flags=re.MULTILINE)
    files = parts[1::3]
    lines = [beginning]
    for number, (line, file, own) in enumerate(zip(parts[::3], files, parts[2::3], strict=True)):
        if file not in STAND_INS:
            lines += line, own
        elif file not in files[number + 1 :]:
            lines.append(f'#include "{STAND_INS[file]}"\n')
    return "".join(lines)


@cache
def _headers(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("emulation*.h"))}


@cache
def _compiler() -> tuple[str, ...]:
    asked = ("--version", "-dumpmachine")
    answers = [
        subprocess.run(["g++", flag], capture_output=True, text=True, check=True, timeout=MOST_SECONDS).stdout
        for flag in asked
    ]
    return "g++", *answers, platform.machine(), *OPTIONS


@cache
def _folder(store: Store, key: tuple[str, ...]) -> Path:
    """Return a folder, until the process ends, with the headers, the one that includes the library compiled already."""
    folder = Path(tempfile.mkdtemp(prefix="sparsenn-emulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in _headers(HEADERS).items():
        (folder / name).write_text(text, encoding="utf-8")
    arguments = ("-x", "c++-header", folder / "emulation.h")
    (folder / "emulation.h.gch").write_bytes(store((*key, "emulation.h.gch"), lambda: _compiled_by_gcc(*arguments)))
    return folder


def compiled_library(text: str, options: Sequence[str], store: Store = lambda depends_on, make: make()) -> bytes:
    """Return the shared library of a program."""
    # what decides, besides a source, what compiling it makes: compiler, machine, options, headers
    key = *_compiler(), *(text for pair in _headers(HEADERS).items() for text in pair)

    def make() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "kernel.cpp"
            program.write_text(f'#include "emulation.h"\n{text}', encoding="utf-8")
            return _compiled_by_gcc("-shared", f"-I{_folder(store, key)}", *options, str(program))

    return store((*key, text, *options), make)


def _compiled_by_gcc(*arguments: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        done = subprocess.run(
            ["g++", *OPTIONS, *arguments, "-o", str(made)],
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
        )
        if done.returncode:
            lines = done.stderr.splitlines()
            raise UsageError(
                f"g++: {next((line for line in lines if 'error' in line), lines[0] if lines else 'failed')}"
            )
        return made.read_bytes()
