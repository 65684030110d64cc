"""NumPy's files: `.npy`, one array, and `.npz`, an archive of several, as which SciPy saves sparse matrices, too.

Nothing is unpickled, and an array's size is checked against the file and against memory before it is read.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.lib.npyio import NpzFile

from sparsenn.errors import FileFormatError, InputError, MatrixError, SparseNNError
from sparsenn.formats import CSR, Array
from sparsenn.io.arrays.stored import Stored
from sparsenn.io.bounded import check_length, open_plain, reading
from sparsenn.runtime.memory import check_memory

_NUMBERS = "fiub"  # kinds of NumPy types that are real numbers

_SPARSE = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
}
"""SciPy's formats that are read, and the arrays that each consists of."""

_SPARSE_PARTS = {"shape", "format", *_SPARSE["csr"], *_SPARSE["coo"]}


def read_npy(path: str | os.PathLike[str]) -> Array:
    """Read an array of real numbers, in the machine's byte order."""
    with open_plain(path) as file, reading(path):
        shape, by_columns, dtype = _header(path, file)
        check_memory(math.prod(shape) * dtype.itemsize, f"{os.fspath(path)}: an array of shape {shape}")
        array = np.fromfile(file, dtype, math.prod(shape))
    if array.size != math.prod(shape):
        raise FileFormatError(path, "became shorter while it was read")
    return _native(array.reshape(shape, order="F" if by_columns else "C"))


def stored_matrix(path: str | os.PathLike[str], file: IO[bytes], once: bool = False) -> Stored:
    """Return the array of real numbers in an open `.npy` file, unread; it is stored row by row."""
    shape, by_columns, dtype = _header(path, file)
    if by_columns and len(shape) > 1:
        raise FileFormatError(path, "is stored column by column; to stream it, save np.ascontiguousarray(rows)")
    return Stored(path, file, file.tell(), shape, dtype, once)


def read_npz(
    path: str | os.PathLike[str], known: Collection[str] | None = (), refuses_others: bool = False
) -> dict[str, Array]:
    """Read the arrays of an archive, by name; those of a sparse matrix, too.

    known : names that are read where the archive holds more than one array; the others are left alone. None: all.
    refuses_others : whether an archive that holds others beside arrays of known names is refused.
    """
    found = {}
    try:
        with open_plain(path) as plain, reading(path), NpzFile(plain, allow_pickle=False) as archive:
            assert archive.zip is not None, "it is open"
            sizes = {info.filename: info.file_size for info in archive.zip.infolist()}
            names = [name.removesuffix(".npy") for name in sizes if name.endswith(".npy")]
            others = [name for name in names if name not in (known or ())]
            if refuses_others and 0 < len(others) < len(names) and "format" not in names:
                raise FileFormatError(
                    path,
                    f"holds {', '.join(map(repr, others))}, which the model does not name; known: "
                    f"{', '.join(map(repr, known or ()))}",
                )
            for name in names:
                if known is None or len(names) == 1 or name in known or name in _SPARSE_PARTS:
                    size = sizes[f"{name}.npy"]  # zipfile inflates a member to no more
                    check_memory(size, f"{os.fspath(path)}: {name}, an array of {size:,} bytes")
                    array = archive[f"{name}.npy"]
                    if not isinstance(array, np.ndarray) or array.dtype.kind not in (_NUMBERS, "SU")[name == "format"]:
                        kind = getattr(array, "dtype", "no array")
                        raise FileFormatError(path, f"{name} holds {kind}; it must hold real numbers")
                    found[name] = _native(array)
    except SparseNNError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy's parser of headers raise many types
        raise FileFormatError(path, f"not an .npz archive, or damaged ({error}); fetch or make it again") from error
    return found


def sparse_rows(path: str | os.PathLike[str], arrays: dict[str, Array]) -> CSR | None:
    """Return the rows of what `scipy.sparse.save_npz` saved; None if the arrays are none of it."""
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


def _header(path: str | os.PathLike[str], file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of headers that Python 2 wrote
            version = npy_format.read_magic(file)
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            declared, by_columns, dtype = read(file)
            shape = tuple(map(int, declared))
    except OSError:
        raise
    except Exception as error:  # ast.literal_eval of a damaged header raises many types
        reason = str(error).partition("\n")[0]
        raise FileFormatError(path, f"not NumPy's, or damaged ({reason}); fetch or make it again") from error
    if dtype.kind not in _NUMBERS:
        raise FileFormatError(path, f"the array holds {dtype}; it must hold real numbers")
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed > os.fstat(file.fileno()).st_size - file.tell():
        raise FileFormatError(path, f"the array declares {needed:,} bytes, which are not in the file: truncated?")
    return shape, by_columns, dtype


def _native(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), copy=False)
