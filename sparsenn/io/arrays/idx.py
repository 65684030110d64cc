"""IDX, the format of MNIST: a magic number, big-endian lengths, then the elements of one dense array.

The magic number's third byte says the type of the elements, its fourth how many dimensions there are.
"""

from __future__ import annotations

import math
import os

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import Source
from sparsenn.runtime.memory import check_memory

_TYPES = {
    code: np.dtype(name) for code, name in ((8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8"))
}

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
