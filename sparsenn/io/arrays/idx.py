"""IDX, the format of MNIST: a magic number, big-endian lengths, then the elements of one dense array.

The magic number's third byte says the type of the elements, its fourth how many dimensions there are.
"""

from __future__ import annotations

import math
import os

import numpy as np

from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import Array
from sparsenn.io.bounded import Source
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import open_to_write, replacing

__all__ = ["read_idx", "write_idx"]

_TYPES = {
    code: np.dtype(name) for code, name in ((8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8"))
}
_CODES = {dtype.newbyteorder("="): code for code, dtype in _TYPES.items()}

_DEFLATE_RATIO = 1032
"""The most that a byte of deflate data can become (258 bytes from two bits)."""


def read_idx(path: str | os.PathLike[str]) -> Array:
    """Read an IDX file, through gzip if its name ends in `.gz`.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    array
        Of the file's shape and type, in the machine's byte order.

    Raises
    ------
    FileFormatError
        The file is not IDX, is damaged, or does not have the size that its lengths ask for.
    InputError, ResourceError
        The file is not there or cannot be read, or the array is larger than memory.
    """
    with Source(path) as source:
        dtype, shape = _read_header(source, path)
    header, size = 4 + 4 * len(shape), math.prod(shape) * dtype.itemsize
    most = source.size * _DEFLATE_RATIO if source.compressed else source.size
    if header + size > most:
        raise FileFormatError(path, f"declares {dtype.name} of shape {shape}, {size:,} bytes, but ends before that")
    check_memory(size, f"{os.fspath(path)}: an array of shape {shape}")
    with Source(path, header + size, ratio=None) as source:
        data = source.read(header + size)[header:]
        source.read(1)  # refused: more than the limit
    if len(data) != size:
        raise FileFormatError(
            path, f"holds {len(data):,} bytes of the {size:,} that {dtype.name} of shape {shape} take: truncated?"
        )
    try:
        return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:  # lengths beyond any array, one of them 0; or too many of them
        raise FileFormatError(path, f"declares the shape {shape}, which no array can have") from error


def write_idx(path: str | os.PathLike[str], array: Array) -> None:
    """Write an array as IDX, through gzip if the name ends in `.gz`; whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    array : array
        Of any shape; uint8, int8, int16, int32, float32 or float64.

    Raises
    ------
    UsageError
        IDX has no such type, or no such shape.
    ResourceError
        The file cannot be written.
    """
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _CODES:
        raise UsageError(f"IDX cannot hold {array.dtype}; it has {', '.join(sorted(kind.name for kind in _CODES))}")
    if not 1 <= array.ndim <= 255 or max(array.shape) >= 1 << 32:
        raise UsageError(f"IDX cannot hold the shape {array.shape}; it takes 1 to 255 lengths below 2^32")
    header = bytes([0, 0, _CODES[dtype], array.ndim]) + np.array(array.shape, ">u4").tobytes()
    data = header + array.astype(dtype.newbyteorder(">")).tobytes()
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(data)


def _read_header(source: Source, path: str | os.PathLike[str]) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    magic = source.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not magic[3]:
        known = ", ".join(f"{code} ({dtype.name})" for code, dtype in _TYPES.items())
        raise FileFormatError(
            path,
            f"not IDX: begins with {magic.hex(' ') or 'nothing'}; an IDX file begins with 00 00, a type of {known}",
        )
    lengths = source.read(4 * magic[3])
    if len(lengths) < 4 * magic[3]:
        raise FileFormatError(path, f"ends before the last of its {magic[3]} lengths: truncated?")
    return _TYPES[magic[2]], tuple(np.frombuffer(lengths, ">u4").tolist())
