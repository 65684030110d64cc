"""The `.safetensors` format: named arrays, described by a header of JSON.

::

    8 bytes             length of the header, little-endian
    header              JSON: {name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {text: text}}
    data                the arrays' bytes, little-endian and row-major, one after the other without gaps

Nothing in such a file is evaluated; what it declares is held against its size before memory is taken.
"""

from __future__ import annotations

import json
import math
import os
from typing import IO, Any

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import open_plain, reading
from sparsenn.runtime.memory import check_memory

_LONGEST_HEADER = 100_000_000
"""Bytes of a header; the format's own library takes no longer ones either."""

_MOST_DIMENSIONS = 64  # of an array of NumPy

_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
"""NumPy's types for those of the format that are read; the upper halves of float32 become such."""


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read all arrays, by name, in the order of their bytes."""
    with open_plain(path) as file, reading(path):
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LONGEST_HEADER, size - 8):
            raise FileFormatError(path, f"not .safetensors, or truncated: {size:,} bytes hold no header of {length:,}")
        header = _header(path, file.read(length))
        check_memory(2 * (size - 8 - length), f"{os.fspath(path)}: its arrays")
        end = 0
        arrays = {}
        for name, (kind, shape, offsets) in sorted(header.items(), key=lambda item: item[1][2]):
            dtype = np.dtype(_TYPES[kind])
            if offsets != (end, end + math.prod(shape) * dtype.itemsize) or offsets[1] > size - 8 - length:
                what = f"{kind} of shape {list(shape)}"
                raise FileFormatError(
                    path, f"{name}: bytes {offsets[0]:,} to {offsets[1]:,} are no {what}, or not there"
                )
            arrays[name] = _array(file, kind, dtype, shape)
            end = offsets[1]
        if end != size - 8 - length:
            raise FileFormatError(path, f"{size - 8 - length - end:,} bytes follow the arrays; the file is damaged")
    return arrays


def _array(file: IO[bytes], kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    array: Array = np.fromfile(file, dtype, math.prod(shape)).reshape(shape)
    if kind == "BF16":
        return (array.astype("<u4") << 16).view(np.float32)
    return array.astype(dtype.newbyteorder("="), copy=False)


Described = tuple[str, tuple[int, ...], tuple[int, int]]
"""An array's type, shape, and where its bytes begin and end."""


def _header(path: str | os.PathLike[str], text: bytes) -> dict[str, Described]:
    try:
        header = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"not .safetensors, or damaged: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise FileFormatError(path, "not .safetensors: its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _described(path, name, entry) for name, entry in header.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; no name may come twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _described(path: str | os.PathLike[str], name: str, entry: Any) -> Described:
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or offsets is None or len(offsets) != 2:
        raise FileFormatError(path, f"{name}: has no valid dtype, shape and data_offsets")
    if kind not in _TYPES:
        raise FileFormatError(path, f"{name}: holds {kind}; known: {', '.join(_TYPES)}")
    return kind, shape, (offsets[0], offsets[1])


def _sizes(value: Any) -> tuple[int, ...] | None:
    """Return a list of sizes; None if it is none."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    return tuple(value) if all(type(size) is int and 0 <= size < 1 << 62 for size in value) else None
