"""NumPy's files: `.npy`, one array, and `.npz`, an archive of several, as which SciPy saves sparse matrices, too.

Nothing is unpickled. An array's size is known to be in the file, or in what the archive says that its member inflates
to, and to fit into memory, before memory is taken for it.
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Collection
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from sparsenn.errors import FileFormatError, InputError, MatrixError
from sparsenn.formats import CSR, Array
from sparsenn.io.arrays.stored import Stored
from sparsenn.io.bounded import check_length, open_plain, reading
from sparsenn.runtime.memory import check_memory

__all__ = ["read_npy", "read_npz", "sparse_rows", "stored_matrix"]

_BLOCK = 1 << 24
"""Bytes read at a time."""

_LONGEST_HEADER = 10_000
"""Bytes of an array's header; NumPy evaluates no longer ones either."""

_NUMBERS = "fiub"
"""Kinds of NumPy types that are real numbers."""

_SPARSE = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
}
"""SciPy's formats that are read, and the arrays that each consists of."""

_SPARSE_PARTS = {"shape", "format", *_SPARSE["csr"], *_SPARSE["coo"]}


def read_npy(path: str | os.PathLike[str]) -> Array:
    """Read an array of real numbers, in the machine's byte order.

    Raises
    ------
    FileFormatError
        The file is no `.npy`, is truncated, or holds something else than real numbers.
    InputError, ResourceError
        The file is not there, cannot be read, or is larger than memory.
    """
    with open_plain(path) as file, reading(path):
        return _array(path, "the array", file, os.fstat(file.fileno()).st_size)


def stored_matrix(path: str | os.PathLike[str], file: IO[bytes], once: bool = False) -> Stored:
    """Return the array of real numbers in an open `.npy` file, unread; it is stored row by row.

    Parameters
    ----------
    once : as of a `Stored`.

    Raises
    ------
    FileFormatError
        As `read_npy`; or the array is stored column by column.
    """
    shape, by_columns, dtype = _sound_header(path, "the array", file, os.fstat(file.fileno()).st_size, "")
    if by_columns and len(shape) > 1:
        raise FileFormatError(path, "is stored column by column; to stream it, save np.ascontiguousarray(rows)")
    return Stored(path, file, file.tell(), shape, dtype, once)


def read_npz(
    path: str | os.PathLike[str], known: Collection[str] | None = (), refuses_others: bool = False
) -> dict[str, Array]:
    """Read the arrays of an archive, by name; those of a sparse matrix, too.

    Parameters
    ----------
    path : the file.
    known : names that are read where the archive holds more than one array; the others are left alone. None: all.
    refuses_others : whether an archive that holds others beside arrays of known names is refused.

    Raises
    ------
    FileFormatError
        The file is no zip archive, is damaged, or holds something else than arrays of real numbers.
    InputError, ResourceError
        The file is not there, cannot be read, or takes more than memory.
    """
    found = {}
    try:
        with open_plain(path) as plain, reading(path), zipfile.ZipFile(plain) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            names = [member.filename.removesuffix(".npy") for member in members]
            others = [name for name in names if name not in (known or ())]
            if refuses_others and 0 < len(others) < len(names) and "format" not in names:
                raise FileFormatError(
                    path,
                    f"holds {', '.join(map(repr, others))}, which the model does not name; known: "
                    f"{', '.join(map(repr, known or ()))}",
                )
            for name, member in zip(names, members, strict=True):
                if known is None or len(members) == 1 or name in known or name in _SPARSE_PARTS:
                    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise NotImplementedError(f"{name} is compressed in a way that NumPy does not write")
                    with archive.open(member) as file:
                        found[name] = _array(path, name, file, member.file_size, "SU" if name == "format" else "")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise FileFormatError(path, f"not an .npz archive, or damaged ({error}); fetch or make it again") from error
    return found


def sparse_rows(path: str | os.PathLike[str], arrays: dict[str, Array]) -> CSR | None:
    """Return the rows of what `scipy.sparse.save_npz` saved; None if the arrays are none of it.

    Raises
    ------
    FileFormatError
        The matrix is in a format that is not read, or is not sound.
    """
    if "format" not in arrays:
        return None
    kind = arrays["format"].item()
    name = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if name not in _SPARSE:
        raise FileFormatError(path, f"holds a sparse matrix in the format {name!r}; known: {', '.join(_SPARSE)}")
    missing = [part for part in ("shape", *_SPARSE[name]) if part not in arrays]
    if missing:
        raise FileFormatError(path, f"holds a sparse matrix without {missing[0]!r}")
    try:
        return CSR.from_scipy(_scipy_matrix(path, name, arrays))
    except FileFormatError:
        raise
    except (ValueError, TypeError, OverflowError, MatrixError, InputError) as error:
        raise FileFormatError(path, f"the sparse matrix is invalid: {error}") from error


def _scipy_matrix(path: str | os.PathLike[str], name: str, arrays: dict[str, Array]) -> Any:
    import scipy.sparse

    rows, columns = arrays["shape"].tolist()
    check_memory(8 * max(rows, columns), "a sparse matrix's offsets")
    data, first, second = (arrays[part] for part in _SPARSE[name])
    if name != "csr":  # of which the file holds something for each row
        check_length(path, "rows", rows, data.size)
    if name == "coo":
        return scipy.sparse.coo_array((data, (first, second)), shape=(rows, columns))
    matrix = getattr(scipy.sparse, f"{name}_array")((data, first, second), shape=(rows, columns))
    matrix.check_format(full_check=True)
    return matrix


def _array(path: str | os.PathLike[str], name: str, file: IO[bytes], size: int, kinds: str = "") -> Array:
    """Read an array of real numbers, or of `kinds`, from a stream of `size` bytes."""
    shape, by_columns, dtype = _sound_header(path, name, file, size, kinds)
    needed = math.prod(shape) * dtype.itemsize
    check_memory(needed, f"{os.fspath(path)}: {name}, an array of shape {shape}")
    try:
        array = np.empty(shape, dtype, order="F" if by_columns else "C")
    except ValueError as error:
        raise FileFormatError(path, f"{name} declares the shape {shape}, which no array can have") from error
    data = array.reshape(-1, order="A").view(np.uint8)
    done = 0
    while done < needed:
        piece = file.read(min(_BLOCK, needed - done))
        if not piece:
            raise FileFormatError(path, f"{name} ends after {done:,} bytes of {needed:,}: truncated?")
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _sound_header(
    path: str | os.PathLike[str], name: str, file: IO[bytes], size: int, kinds: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array of real numbers, or of `kinds`, that is in a stream of `size` bytes."""
    try:
        shape, by_columns, dtype = _header(file)
    except OSError:
        raise
    except Exception as error:  # NumPy evaluates the header as Python, which may fail in any way
        reason = str(error).partition("\n")[0]
        raise FileFormatError(path, f"{name}: not NumPy's, or damaged ({reason}); fetch or make it again") from error
    if dtype.kind not in (kinds or _NUMBERS) or not dtype.itemsize:
        raise FileFormatError(path, f"{name} holds {dtype}; it must hold real numbers")
    needed = math.prod(shape) * dtype.itemsize
    if needed > size - file.tell():
        raise FileFormatError(path, f"{name} declares {needed:,} bytes, which are not in the file: truncated?")
    return shape, by_columns, dtype


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read an array's shape, whether it is stored column by column, and its type; no more than a header may take."""
    version = npy_format.read_magic(file)
    width, read = (2, npy_format.read_array_header_1_0) if version == (1, 0) else (4, npy_format.read_array_header_2_0)
    length = file.read(width)
    size = int.from_bytes(length, "little")
    if size > _LONGEST_HEADER:
        raise ValueError(f"a header of {size:,} bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of headers that Python 2 wrote
        shape, by_columns, dtype = read(io.BytesIO(length + file.read(size)))
    return shape, by_columns, dtype
