"""Rows on a GPU that come from other libraries and go to them; sparse ones are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from sparsenn.backends.chains import SparseRows
from sparsenn.backends.cpu.incoming import check_rows as check_on_host
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import arriving
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, coo_to_csr, index_type, scan
from sparsenn.backends.host_arrays import HOST_DEVICES
from sparsenn.backends.machine import WARP
from sparsenn.errors import InputError, MatrixError, UnsortedError, UsageError
from sparsenn.formats import COO, CSR, Array, index_dtype
from sparsenn.formats.arrays import check_diagonals, sound_scipy
from sparsenn.printable import kind_of

THREADS = 256
PIECE = 4096  # entries that a block checks at a time: 16 for each thread
ROWS_PER_BLOCK = 4 * THREADS  # rows for which there is a block more, where rows are short
SHARED_BYTES = THREADS // 32 * 16  # of a block: what each warp has found
MOST_BLOCKS = 1 << 16  # more than fill any device; blocks go on in strides

FOUND = 6
"""Numbers of the kernel's record; in order: faults of order, of offsets, of indices, of values, values that differ, and
the first offset. A graph that is queued behind the kernel takes rows only if all are 0."""

_TO_CSR = program("rows/to_csr.cu", NUMBER=("float", "half_bits"))
_CHECK = program(
    "incoming/check_rows.cu",
    OFFSET=("int64", "index32"),
    INDEX=("index32", "int64", "index16"),
    NARROW=INDEX_TYPES,
    PIECE=(PIECE,),
    THREADS=(THREADS,),
)

_KERNEL_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.uint16): "index16",
    np.dtype(np.int32): "index32",
    np.dtype(np.int64): "int64",
}
"""Types that the kernel reads, and what `common.cuh` calls them."""

_OFFSET_TYPES = (np.dtype(np.int32), np.dtype(np.int64))
_FLOAT32 = np.dtype(np.float32)
_FLOAT16 = np.dtype(np.float16)
_SPARSE = "cupyx.scipy.sparse"

MOST_ENTRIES = int(np.iinfo(np.int32).max)  # of a sparse matrix of CuPy's, whose offsets are int32


# ---- Rows of other libraries ------------------------------------------------------------------------------------


def device_rows(rows: Any, index: int) -> SparseRows | Array | None:
    """Return rows that are on a GPU, sparse ones unchecked; None for what is not on a GPU.

    Rows are CuPy's arrays and sparse matrices, `CSR` over arrays of CuPy's, or anything with DLPack (for which the
    current stream waits) or CUDA's array interface. Raises UsageError for another GPU, InputError for rows that cannot
    be read, and MatrixError for an unsound matrix of another format than CSR.
    """
    if isinstance(rows, np.ndarray):
        return None
    if isinstance(rows, cupy().ndarray):
        return _on(index, rows)
    if isinstance(rows, CSR):
        return None if isinstance(rows.indptr, np.ndarray) else _sparse(rows, rows.values, index)
    if type(rows).__module__.startswith(_SPARSE) and hasattr(rows, "tocsr"):
        return _sparse(rows, rows.data, index) if rows.format == "csr" else _by_row(rows, index)
    return _from_interface(rows, index)


def _by_row(matrix: Any, index: int) -> SparseRows:
    """Return CuPy's matrix of another format as CSR, sorted on the device; duplicates stay in their order."""
    cp, (count, width) = cupy(), matrix.shape
    for name in ("data", "row", "col", "indptr", "indices", "offsets"):
        if hasattr(matrix, name):
            _on(index, getattr(matrix, name))
    rows, columns, values = _entries(matrix)
    rows, columns = rows.astype(index_dtype(count)), columns.astype(index_dtype(width))
    numbers = cp.arange(rows.size, dtype=np.int32)
    by_row = coo_to_csr(COO((count, width), rows, columns, numbers.view(np.float32)))  # its kernels move four bytes
    order = by_row.values.view(np.int32)
    places = rows.astype(np.int64) * width + columns
    if bool((places[order[1:]] <= places[order[:-1]]).any()):  # one is given twice, which those kernels do not take
        order = cp.argsort(places, kind="stable")
    return SparseRows((count, width), by_row.indptr, columns[order], values[order])


def _entries(matrix: Any) -> tuple[Any, Any, Any]:
    """Return rows, columns and values of the entries of CuPy's matrix in COO, CSC or DIA; all lie inside of it."""
    cp, (count, width) = cupy(), matrix.shape
    if matrix.format == "dia":
        check_diagonals(matrix)
        columns = cp.arange(min(matrix.data.shape[1], width))
        values, rows = matrix.data[:, : columns.size], columns - matrix.offsets.astype(np.int64)[:, None]
        stored = (rows >= 0) & (rows < count) & (values != 0)
        return rows[stored], cp.broadcast_to(columns, rows.shape)[stored], values[stored]
    sound_scipy(matrix, "tocsr")
    if matrix.format == "coo":
        return matrix.row, matrix.col, matrix.data
    nnz = int(matrix.indptr[-1])
    columns = cp.searchsorted(matrix.indptr, cp.arange(nnz), "right") - 1
    return matrix.indices[:nnz], columns, matrix.data[:nnz]


def _sparse(matrix: Any, values: Array, index: int) -> SparseRows:
    count, width = matrix.shape
    return SparseRows((count, width), *(_on(index, array) for array in (matrix.indptr, matrix.indices, values)))


def _from_interface(rows: Any, index: int) -> Array | None:
    cp = cupy()
    place = getattr(rows, "__dlpack_device__", None)
    try:
        if place is not None:
            kind, number = place()
            if int(kind) in HOST_DEVICES:
                return None
            _check_place(int(number), index)
            return _on(index, cp.from_dlpack(rows))
        if not hasattr(rows, "__cuda_array_interface__"):
            return None
        return _on(index, cp.asarray(rows))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"the rows, {kind_of(rows)}, cannot be read on the GPU: {error}") from error


def _on(index: int, array: Any) -> Array:
    _check_place(array.data.device_id, index)
    return array


def _check_place(found: int, index: int) -> None:
    if found != index:
        raise UsageError(f"the rows are on cuda:{found}, the network on cuda:{index}")


def is_ready(rows: Any, keep_half: bool) -> bool:
    """Return whether rows are a row-major matrix of float32 (or, with `keep_half`, float16) on a device."""
    if not isinstance(rows, cupy().ndarray) or not rows.flags.c_contiguous:
        return False
    return rows.dtype == _FLOAT32 or (keep_half and rows.dtype == _FLOAT16)


def matrix(rows: Any, keep_half: bool) -> Array:
    """Return CuPy's matrix row-major in float32, or float16 with `keep_half`; without a copy where it is so."""
    kept = keep_half and rows.dtype == np.float16
    return as_rows(rows, np.float16 if kept else np.float32)


# ---- Dense rows that leave as sparse ones -----------------------------------------------------------------------


def count_nonzeros(rows: Array) -> Any:
    """Return the non-zeros of each row of a row-major matrix on the device, (rows,) int64."""
    counts = cupy().empty(rows.shape[0], np.int64)
    _launch_by_row("count_numbers", rows, counts)
    return counts


def to_cupy_csr(rows: Any) -> Any:
    """Return the non-zeros of a matrix on the device as a `cupyx.scipy.sparse.csr_matrix` of float32; waits for them.

    Raises UsageError for more non-zeros than such a matrix can have.
    """
    cp, count = cupy(), rows.shape[0]
    rows = matrix(rows, True)
    offsets = scan(count_nonzeros(rows))
    entries = int(cp.asnumpy(offsets[-1:])[0])
    if entries > MOST_ENTRIES:
        raise UsageError(
            f"the outputs have {entries:,} non-zeros; CuPy's sparse matrices have up to {MOST_ENTRIES:,}: "
            'ask for form="dense"'
        )
    starts, columns, values = cp.empty(count + 1, np.int32), cp.empty(entries, np.int32), cp.empty(entries, np.float32)
    _launch_by_row("list_numbers", rows, offsets, starts, columns, values)
    return import_module(_SPARSE).csr_matrix((values, columns, starts), shape=rows.shape)


def _launch_by_row(name: str, rows: Array, *arrays: Any) -> None:
    count, width = rows.shape
    kernel = _TO_CSR.kernel(name, NUMBER="half_bits" if rows.dtype == np.float16 else "float")
    grid = (min(MOST_BLOCKS, count * WARP // THREADS + 1),)
    launch("to_csr", kernel, grid, (THREADS,), np.int64(count), np.int64(width), rows, *arrays)


# ---- Sparse rows, checked ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UncheckedCSR(CSR):
    """CSR whose check is queued; `found` is as of `QueuedCheck`, which has looked at shapes and types."""

    found: Any = None

    def __post_init__(self) -> None:
        return


class QueuedCheck:
    """A check of sparse rows on the device, by one kernel, once; a `RowsCheck`.

    Faults name `source`, the rows on the host. `found`, (FOUND,) uint64 on the device, is all 0 if the check passes.
    Raises MatrixError for shapes or types that do not fit together.
    """

    def __init__(self, given: SparseRows, source: SparseRows | None = None) -> None:
        cp, (count, width) = cupy(), given.shape
        narrow = index_dtype(width)  # refuses widths beyond int32
        _check_shapes(given)
        indptr, indices = _as_integers(given.indptr, _OFFSET_TYPES), _as_integers(given.indices, tuple(_KERNEL_TYPES))
        self._given, self._source = given, source
        self._values = as_rows(given.values, _FLOAT32)
        self._offsets = indptr if indptr.dtype == np.int64 else cp.empty(count + 1, np.int64)
        self._indices = indices if indices.dtype == narrow else cp.empty(indices.size, narrow)
        self._moved = self._offsets is indptr
        self.found = cp.zeros(FOUND, np.uint64)
        self._fetched: Callable[[], Array] | None = None
        kernel = _CHECK.kernel(
            "check_rows",
            OFFSET=_KERNEL_TYPES[indptr.dtype],
            INDEX=_KERNEL_TYPES[indices.dtype],
            NARROW=index_type(self._indices),
        )
        sizes = np.int64(count), np.int64(width), np.int64(indices.size), np.int32(self._values.size == 1)
        pairs = (self._offsets, indptr), (self._indices, indices)
        written = (np.uintp(0) if kept is read else kept for kept, read in pairs)
        grid = (min(MOST_BLOCKS, max(-(-indices.size // PIECE), -(-(count + 1) // ROWS_PER_BLOCK))),)
        arguments = (*sizes, indptr, indices, self._values, *written, self.found)
        launch("check_rows", kernel, grid, (THREADS,), *arguments, shared_bytes=SHARED_BYTES)

    @property
    def rows(self) -> CSR:
        """The rows, with the first value for all entries."""
        return UncheckedCSR(self._given.shape, self._offsets, self._indices, self._values[:1], self.found)

    def fetch(self) -> None:
        """Queue the copy of what is found to the host."""
        self._fetched = arriving(self.found)

    def passed(self) -> bool:
        """Wait for the check; return whether the rows are sound, begin at offset 0, and have one value.

        False, too, where sorting would mend them: placing them does that.
        """
        try:
            differ, base = self._answer()
        except UnsortedError:
            return False
        return not differ and not base

    def result(self) -> CSR:
        """Wait for the check, and return the rows; of values that are all the same, one is kept."""
        differ, base = self._answer()
        offsets = self._offsets
        if base and self._moved:
            on_host = cupy().asnumpy(offsets)
            offsets = cupy().asarray(on_host - on_host[0])
        values = self._values if differ else self._values[:1]
        return CSR(self._given.shape, offsets, self._indices, values)

    def _answer(self) -> tuple[int, int]:
        """Wait for the kernel; return how many values differ from the first, and the first offset."""
        found = cupy().asnumpy(self.found) if self._fetched is None else self._fetched()
        *faults, differ, base = found.tolist()
        if any(faults):
            check_on_host(fetch_rows(self._given) if self._source is None else self._source)
            raise MatrixError(
                f"indptr must rise to {self._indices.size:,}, as many entries as there are; or the rows were written "
                "to while they were checked"
            )
        return differ, base


def check_rows(rows: SparseRows, source: SparseRows | None = None) -> CSR:
    """Return sparse rows on the device in the types that kernels take, checked as by `QueuedCheck`.

    Raises UnsortedError where indices do not increase and nothing else is wrong, else MatrixError, as the CPU does.
    """
    return QueuedCheck(rows, source).result()


def fetch_rows(rows: SparseRows) -> SparseRows:
    """Copy sparse rows from the device to the host; their types stay."""
    return SparseRows(rows.shape, *map(cupy().asnumpy, (rows.indptr, rows.indices, rows.values)))


def _check_shapes(rows: SparseRows) -> None:
    count = rows.shape[0]
    for name, array in (("indptr", rows.indptr), ("indices", rows.indices)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise MatrixError(f"{name} must be a vector of integers, not {array.dtype} with shape {array.shape}")
    if rows.indptr.size != count + 1:
        raise MatrixError(f"indptr has {rows.indptr.size:,} numbers; {count:,} rows take {count + 1:,}")
    if rows.values.ndim != 1 or rows.values.dtype.kind not in "fiub":
        found = rows.values
        raise MatrixError(f"values must be a vector of real numbers, not {found.dtype} with shape {found.shape}")
    if rows.values.size not in (rows.indices.size, 1):
        raise MatrixError(
            f"{rows.values.size:,} values for {rows.indices.size:,} entries; give one per entry, or one for all (iso)"
        )


def _as_integers(array: Array, kinds: Sequence[np.dtype[Any]]) -> Any:
    return array if array.dtype in kinds and array.flags.c_contiguous else as_rows(array, np.int64)
