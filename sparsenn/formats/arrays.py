"""Types and limits that all formats share, sizes, and arrays that nobody else writes to."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from numbers import Real
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsenn.errors import InputError, MatrixError, SparseNNError, UsageError
from sparsenn.printable import kind_of

Array: TypeAlias = npt.NDArray[Any]
"""A NumPy array, or an array of the same interface that lives on a device."""

INDEX16_LIMIT = 1 << 16  # widths up to this one are indexed by uint16

INDEX32_LIMIT = (1 << 31) - 1
"""No matrix may be wider or taller than this: indices are at most 32-bit and signed beyond 16 bits."""

_DIMENSIONS = {"coo": 1, "csr": 1, "csc": 1, "dia": 2, "bsr": 3}
"""Of the values of a matrix of SciPy's, by its format."""

_LIBRARIES = ("scipy.sparse", "cupyx.scipy.sparse")  # whose classes have such formats


def index_dtype(width: int) -> np.dtype[Any]:
    """Return the narrowest index type for `width` columns: uint16 up to 65,536, int32 beyond."""
    if not 0 <= width <= INDEX32_LIMIT:
        raise MatrixError(f"a width of {width:,} is outside 0..{INDEX32_LIMIT:,}")
    return np.dtype(np.uint16 if width <= INDEX16_LIMIT else np.int32)


def size(value: Any, name: str, least: int = 1) -> int:
    """Return a size, an integer of any type, as Python's own, which no computation makes wrap around.

    Parameters
    ----------
    value : an integer; truth values are none.
    name : what the message calls it, such as `batch_size`.
    least : the smallest that is allowed.
    """
    try:
        found = None if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise UsageError(f"{name} is {value!r}; give an integer of at least {least}")
    return found


def real_number(value: Any, name: str, error: type[SparseNNError] = UsageError) -> float:
    """Return a finite real number of any type as Python's own.

    Parameters
    ----------
    value : a number, or an array of no dimension; texts and truth values are none.
    name : what the message calls it, such as `the learning rate`.
    error : what is raised.
    """
    number = value.item() if isinstance(value, np.ndarray) and not value.ndim else value
    if isinstance(number, Real | Decimal) and not isinstance(number, bool):
        try:
            if isfinite(found := float(number)):
                return found
        except OverflowError:
            pass
    raise error(f"{name} is {value!r}; give a finite number")


def real_numbers(values: Any, what: str, error: type[InputError] = InputError) -> Array:
    """Return what becomes an array of real numbers as one of NumPy, of any real type; of other things nothing is made.

    Parameters
    ----------
    values : an array, or nested lists of numbers.
    what : how messages begin, such as `weights hold`.
    error : what is raised.
    """
    try:
        found = np.asanyarray(values)
        if found.dtype.kind == "O" and all(isinstance(item, Real | Decimal) for item in found.flat):
            found = found.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as reason:
        raise _no_numbers(values, what, error) from reason
    if found.dtype.kind == "c":
        raise error(f"the {what} complex numbers; real ones are needed")
    if found.dtype.kind not in "biuf":
        raise _no_numbers(values, what, error)
    if np.ma.is_masked(found) or (isinstance(values, list | tuple) and any(map(np.ma.is_masked, values))):
        raise error(f"the {what} masked numbers; give them values, as by filled(0)")
    return np.asarray(found)


def _no_numbers(values: Any, what: str, error: type[InputError]) -> InputError:
    found = f"{values.dtype} array" if isinstance(values, np.ndarray) else type(values).__name__
    return error(f"the {what} no array of numbers: a dense one is needed, not a {found}")


def check_shape(shape: Any) -> tuple[int, int]:
    """Return a shape as two of Python's integers, or refuse what is not two non-negative lengths within int32."""
    try:
        rows, columns = (-1 if isinstance(length, bool | np.bool_) else index(length) for length in shape)
    except (TypeError, ValueError):
        rows = columns = -1
    if not (0 <= rows <= INDEX32_LIMIT and 0 <= columns <= INDEX32_LIMIT):
        raise MatrixError(f"the shape {shape} is not two lengths in 0..{INDEX32_LIMIT:,}")
    return rows, columns


def check_arrays(matrix: Any, *names: str) -> None:
    """Make a matrix's parts read-only through it, or refuse those that are no arrays."""
    for name in names:
        array = getattr(matrix, name)
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise MatrixError(f"{name} are {kind_of(array)}; a matrix takes arrays of NumPy")
        object.__setattr__(matrix, name, read_only(array))


def sound_scipy(matrix: Any, conversion: str) -> Any:
    """Return a matrix of SciPy's that may be converted: one of two dimensions, whose indices lie inside of it.

    SciPy's conversions read and write wherever indices point to. Those of other libraries are not looked into.

    Parameters
    ----------
    conversion : name of the method that will be called.

    Returns
    -------
    The matrix; if it is one of diagonals, lists or keys, its entries.
    """
    if not hasattr(matrix, conversion):
        raise MatrixError(f"{kind_of(matrix)} is not a SciPy sparse matrix; `from_dense` takes arrays")
    if len(matrix.shape) != 2:
        raise MatrixError(f"the sparse array has {len(matrix.shape)} dimensions; a matrix has two")
    if not any(kind.__module__.startswith(_LIBRARIES) for kind in type(matrix).__mro__):
        return matrix
    (rows, columns), form = matrix.shape, matrix.format
    if form == "dia":
        check_diagonals(matrix)
    elif form in _DIMENSIONS:
        _check_dimensions(matrix)
    elif form == "lil":
        _check_lists(matrix)
    if form in ("dia", "lil", "dok"):
        try:
            matrix, form = matrix.tocoo(), "coo"
        except (OverflowError, TypeError, ValueError) as error:
            raise MatrixError(f"the sparse matrix is not sound: {error}") from error
    if form == "coo":
        _check_range("rows", matrix.row, rows)
        _check_range("columns", matrix.col, columns)
        if not len(matrix.row) == len(matrix.col) == len(matrix.data):
            raise MatrixError("each entry takes a row, a column and a value")
    elif form in ("csr", "csc", "bsr"):
        height, width = matrix.blocksize if form == "bsr" else (1, 1)
        if 0 in (height, width) or rows % height or columns % width:
            raise MatrixError(f"blocks of {height} x {width} do not make up {rows:,} x {columns:,}")
        groups, length = (columns, rows) if form == "csc" else (rows // height, columns // width)
        offsets = matrix.indptr
        _check_integers("indptr", offsets)
        _check_integers("indices", matrix.indices)
        stored = min(len(matrix.indices), len(matrix.data))
        if offsets.shape != (groups + 1,) or offsets[0] != 0 or offsets[-1] > stored or falls(offsets):
            raise MatrixError(f"indptr must hold {groups + 1:,} offsets that rise from 0 to at most {stored:,}")
        _check_range("indices", matrix.indices[: offsets[-1]], length)
    return matrix


def convert_scipy(matrix: Any, conversion: str, copy: bool = False) -> Any:
    """Return a matrix of SciPy's in another format, by its own method; unused memory behind its entries is left out.

    Parameters
    ----------
    matrix : one of CuPy's is copied to the host first.
    conversion : name of that method.
    copy : whether the result must not share memory with the matrix.
    """
    if hasattr(getattr(matrix, "data", None), "__cuda_array_interface__") and hasattr(matrix, "get"):
        matrix = matrix.get()
    sound = sound_scipy(matrix, conversion)
    try:
        if hasattr(sound, "prune") and len(sound.indices) + len(sound.data) > 2 * int(sound.indptr[-1]):
            sound = sound.copy()
            sound.prune()
        convert = getattr(sound, conversion)
        return convert(copy=True) if copy else convert()
    except (OverflowError, TypeError, ValueError) as error:
        raise MatrixError(f"the sparse matrix cannot be read: {error}") from error


def check_diagonals(matrix: Any) -> None:
    """Refuse a matrix of diagonals of SciPy's or CuPy's whose offsets are not one number of int32's range for each."""
    _check_dimensions(matrix)
    offsets, count = matrix.offsets, len(matrix.data)
    _check_integers("offsets", offsets)
    if offsets.size != count:
        raise MatrixError(f"offsets must hold a number for each of the {count:,} diagonals")
    if count and not -INDEX32_LIMIT <= int(offsets.min()) <= int(offsets.max()) <= INDEX32_LIMIT:
        raise MatrixError(f"offsets run from {int(offsets.min())} to {int(offsets.max())}, beyond int32")


def falls(numbers: Array) -> bool:
    """Whether a number of a vector is below the one before; differences may be too large for the vector's type."""
    return bool((numbers[1:] < numbers[:-1]).any())


def _check_dimensions(matrix: Any) -> None:
    if getattr(matrix.data, "ndim", None) != _DIMENSIONS[matrix.format]:
        raise MatrixError(f"values are {_shown(matrix.data)}, unlike those of a {matrix.format.upper()} matrix")


def _check_lists(matrix: Any) -> None:
    """Refuse a matrix of lists of SciPy's that has not one of columns and one of as many values for each row."""
    columns, values = matrix.rows, matrix.data
    if not getattr(columns, "shape", None) == getattr(values, "shape", None) == matrix.shape[:1]:
        raise MatrixError(f"there must be a list of columns and one of values for each of the {matrix.shape[0]:,} rows")
    lists = all(isinstance(found, list) for found in (*columns, *values))
    if not lists or list(map(len, columns)) != list(map(len, values)):
        raise MatrixError("a row has not as many columns as values")


def _check_integers(name: str, numbers: Any) -> None:
    if getattr(numbers, "ndim", None) != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise MatrixError(f"{name} must be a vector of integers, not {_shown(numbers)}")


def _shown(array: Any) -> str:
    return f"{array.dtype} with shape {array.shape}" if hasattr(array, "dtype") else kind_of(array)


def _check_range(name: str, indices: Array, length: int) -> None:
    _check_integers(name, indices)
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < length:
        raise MatrixError(f"{name} run from {int(indices.min())} to {int(indices.max())}, outside 0..{length - 1}")


def read_only(array: Array) -> Array:
    """Return an array, or a view of it where it could be written to through this one; a device's array as it is."""
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def frozen(array: Array) -> Array:
    """Return an array that its maker alone holds, read-only from here on, with all of the memory that it is part of."""
    part: Any = array
    while isinstance(part, np.ndarray):
        part.flags.writeable = False
        part = part.base
    return array


def is_own(array: Array) -> bool:
    """Whether an array is read-only, and so is the memory that it is part of: an array's, or that of bytes."""
    part: Any = array
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return False
        part = part.base
    return part is None or isinstance(part, bytes)


def own(array: Array) -> Array:
    """Return an array that nobody else writes to: itself, where `is_own` says so, else a read-only copy."""
    return array if is_own(array) else frozen(np.array(array))


def as_indices(name: str, indices: Array, length: int) -> Array:
    """Return indices of any integer type as the one that `length` takes."""
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise MatrixError(f"{name} must be a vector of integers, not {indices.dtype} with shape {indices.shape}")
    _check_range(name, indices, length)
    return np.ascontiguousarray(indices, dtype=index_dtype(length))


def as_floats(values: Array, dtype: npt.DTypeLike) -> Array:
    """Return a copy of real numbers as `dtype`; what is beyond its range becomes infinite, which `validate` refuses."""
    if values.dtype.kind not in "biuf":
        raise MatrixError(f"values must be real numbers, not {values.dtype}")
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def check_values(values: Array, nnz: int) -> None:
    """Refuse values that are not floating point, or neither one per entry nor a single one for all."""
    if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
        raise MatrixError(f"values must be a float32 or float64 vector, not {values.dtype} with shape {values.shape}")
    if values.size not in (nnz, 1):
        raise MatrixError(f"{values.size:,} values for {nnz:,} entries; give one per entry, or one for all (iso)")


def collapse_iso(values: Array) -> Array:
    """Return a one-element copy when all of a float32 or float64 vector are bit-equal, else `values` itself."""
    if values.size > 1 and values.ndim == 1 and values.dtype in (np.float32, np.float64):
        bits = values.view(np.uint32 if values.itemsize == 4 else np.uint64)
        if bits[0] == bits[-1] and bool((bits == bits[0]).all()):
            return values[:1].copy()
    return values
