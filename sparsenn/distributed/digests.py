"""What networks, options and rows are known by: digests of their content, the same in every process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.errors import InputError, UsageError
from sparsenn.io.bounded import reading
from sparsenn.runtime.workers import chunks, map_threads

_ENDS = 1 << 20
"""Bytes at either end of a file that its stamp looks at."""

_BLOCK = 1 << 22  # bytes of an array that a thread hashes at a time


def content_digest(*values: Any) -> str:
    """Return the SHA-256 of arrays, numbers, texts, and dataclasses, tuples and lists of them; in hexadecimals."""
    found = hashlib.sha256()
    for value in values:
        for part in _parts(value):
            found.update(part)
    return found.hexdigest()


def file_stamp(path: Path) -> str:
    """Return a digest of a file's size, time of change and ends, which is quick for large files, too."""
    size, changed = file_state(path)
    with reading(path), path.open("rb") as file:
        head = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return content_digest(size, changed, head, file.read(_ENDS))


def file_state(path: Path) -> tuple[int, int]:
    """Return a file's size and time of change in ns."""
    with reading(path):
        state = path.stat()
    return state.st_size, state.st_mtime_ns


def check_unchanged(path: Path, state: tuple[int, int]) -> None:
    """Refuse a file that has changed since it had a state."""
    if file_state(path) != state:
        raise InputError(f"{path}: changed while it was read; run again when nothing writes to it")


def prepare_key(prepare: Callable[[Any], Any] | None, resume: bool) -> Any:
    """Return what `content_digest` tells one preparation of rows from another by.

    prepare : known by its content if it is a dataclass, or a method of one; of other functions it is not known
        whether they are the same in another process.
    resume : whether an earlier run is to be resumed.
    """
    owner = getattr(prepare, "__self__", prepare)
    if is_dataclass(owner):
        return type(owner).__module__, getattr(prepare, "__name__", None), owner
    if prepare is not None and resume:
        raise UsageError(
            "cannot resume with a function as prepare: whether it is that of the earlier run is not known; give a "
            "method of a dataclass, such as model.scaling.apply, or leave out resume"
        )
    return None if prepare is None else ("function",)


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        yield f"array {array.dtype.str} {value.shape};".encode()
        data = array.reshape(-1).view(np.uint8).data
        if array.nbytes <= _BLOCK:
            yield data
        else:
            yield from map_threads(
                lambda part: hashlib.sha256(data[slice(*part)]).digest(), chunks(data.nbytes, _BLOCK)
            )
    elif is_dataclass(value) and not isinstance(value, type):
        given = [getattr(value, field.name) for field in fields(value) if field.init]
        yield f"{type(value).__qualname__} {len(given)};".encode()
        for item in given:
            yield from _parts(item)
    elif isinstance(value, tuple | list):
        yield f"list {len(value)};".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, bytes):
        yield f"bytes {len(value)};".encode()
        yield value
    elif isinstance(value, os.PathLike):
        yield from _parts(os.fspath(value))
    else:
        text = repr(value.item() if isinstance(value, np.generic) else value)
        yield f"{type(value).__name__} {len(text)};{text}".encode()
