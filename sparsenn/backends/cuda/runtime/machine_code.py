"""Machine code for an architecture that CuPy does not compile for, such as sm_90a, in the cache folder."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sparsenn.errors import ResourceError
from sparsenn.runtime.storage import cache_folder, replacing

ELF_HEADER = 64  # bytes
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy adds to every compilation


def machine_code(cp: Any, name: str, text: str, options: tuple[str, ...], architecture: str) -> Path:
    """Return a file with the machine code of a source, compiled on first use; RuntimeError with the compiler's message.

    Where the cache folder cannot be written to, the file lives as long as the process.
    """
    nvrtc = cp.cuda.nvrtc
    every = (*options, *CUPY_OPTIONS, f"-arch={architecture}")
    key = "\0".join((text, *every, *map(str, nvrtc.getVersion())))
    file = f"{Path(name).stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.cubin"
    code: bytes | None = None
    for folder in _folders():
        path = folder / file
        try:
            if path.is_file() and _is_whole(path.read_bytes()):
                return path
            code = code or _compiled(nvrtc, name, text, every)
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as new:
                new.write_bytes(code)
        except (ResourceError, OSError):
            continue
        return path
    raise RuntimeError(f"there is no folder to keep the machine code of {name} in; set SPARSENN_CACHE to one")


def _folders() -> Iterator[Path]:
    with suppress(ResourceError):
        yield cache_folder() / "kernels"
    yield _folder_of_process()


def _folder_of_process() -> Path:
    return Path(_temporary().name)


@cache
def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="sparsenn-")


def _compiled(nvrtc: Any, name: str, text: str, options: tuple[str, ...]) -> bytes:
    """Return machine code as a whole ELF file. CuPy takes the last byte for the end of a text and drops it."""
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        code: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{error}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    return code.ljust(_elf_size(code), b"\0")


def _is_whole(code: bytes) -> bool:
    return len(code) >= ELF_HEADER and code.startswith(b"\x7fELF") and len(code) >= _elf_size(code)


def _elf_size(code: bytes) -> int:
    """Return where the tables of an ELF file of 64 bits end, one of which is its last part."""
    segments, sections = struct.unpack_from("<QQ", code, 0x20)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<4H", code, 0x36)
    return max(int(segments + segment_size * segment_count), int(sections + section_size * section_count))
