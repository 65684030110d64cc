"""What the engine is given to compute: a network, and rows in any of the forms that a caller may have them in."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import Backend, SparseRows
from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import CSR, Array
from sparsenn.formats.arrays import convert_scipy, real_numbers
from sparsenn.layers.elementwise import FLOAT32_MAX
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.workers import chunks, map_threads

__all__ = ["Given", "Inputs", "canonical", "check_network", "like", "look"]

PIECE = 1 << 16
"""Numbers of float64 that are looked at together: they stay in a core's cache, so that memory is read once."""

Inputs: TypeAlias = CSR | Array | Any
"""Rows of inputs: CSR, a SciPy or CuPy sparse matrix or array, a NumPy or CuPy array, nested lists of numbers, or
whatever speaks DLPack or CUDA's array interface."""


@dataclass(frozen=True, eq=False)
class Given:
    """Rows as a caller gave them: looked at, neither moved nor converted.

    Parameters
    ----------
    rows : CSR, sparse rows of any types that are yet to be checked, or a matrix of real numbers.
    on_host : whether they are in host memory.
    source : what the caller gave.
    among : how many rows there are in all, where these are some of them; None where these are all. Which kernels run
        them depends on that.
    """

    rows: CSR | SparseRows | Array
    on_host: bool
    source: Any
    among: int | None = None

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0])

    @property
    def whole(self) -> int:
        """Number of rows in all."""
        return self.count if self.among is None else self.among

    @property
    def sparse(self) -> bool:
        """Whether they are sparse rows."""
        return isinstance(self.rows, CSR | SparseRows)

    @property
    def density(self) -> float | None:
        """Stored entries as a fraction of all positions; None for a matrix, which is not counted."""
        if not isinstance(self.rows, CSR | SparseRows):
            return None
        positions = self.rows.shape[0] * self.rows.shape[1]
        return self.rows.indices.size / positions if positions else 0.0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, on average."""
        if isinstance(self.rows, CSR | SparseRows):
            return 8 + int(8 * self.rows.indices.size / max(1, self.count))
        return int(self.rows.dtype.itemsize * self.rows.shape[1])

    def part(self, first: int, last: int) -> CSR | SparseRows | Array:
        """Return rows `first` to `last`, sharing memory."""
        if (first, last) == (0, self.count):
            return self.rows
        if isinstance(self.rows, CSR):
            return self.rows.slice_groups(first, last)
        return self.rows.slice_rows(first, last) if isinstance(self.rows, SparseRows) else self.rows[first:last]


def look(network: Network, inputs: Inputs, backend: Backend) -> Given:
    """Return inputs as rows of shape (rows, network.inputs), where they are.

    Parameters
    ----------
    network : what they are the inputs of.
    inputs : as `Inputs` says; where the network takes images, an array may have the shape (images, channels, height,
        width), too.
    backend : of the device that is to compute.

    Raises
    ------
    UsageError
        They are on a GPU, and the network is not on that one.
    InputError
        They are none of these.
    MatrixError
        They do not have two dimensions, or are not of real numbers; or, on the host, some are masked, or finite and
        beyond float32, unless the backend computes in float64.
    ShapeError
        They are not as wide as the network's first layer.
    """
    found = backend.device_rows(inputs)
    on_host = found is None
    rows = _on_host(inputs) if found is None else found
    if not isinstance(rows, CSR | SparseRows):
        if len(rows.shape) == 4 and rows.shape[1:] == network.image:
            rows = rows.reshape(rows.shape[0], network.inputs)
        if len(rows.shape) != 2:
            raise MatrixError(f"the inputs have {len(rows.shape)} dimensions; a matrix of samples has two")
    numbers = rows.values if isinstance(rows, CSR | SparseRows) else rows
    if numbers.dtype.kind not in "fiub":
        raise MatrixError(f"the inputs are of type {numbers.dtype}; real numbers are needed")
    if rows.shape[1] != network.inputs:
        raise ShapeError(f"the inputs have {rows.shape[1]} columns; layer 1 takes {network.inputs}")
    if on_host and isinstance(rows, np.ndarray) and not backend.doubles:
        _check_range(rows)
    return Given(rows, on_host, inputs)


def check_network(network: Network) -> None:
    """Refuse what is no network.

    Raises
    ------
    UsageError
        It is something else.
    """
    if not isinstance(network, Network):
        raise UsageError(f"the network is {kind_of(network)}; give a sparsenn.Network")


def _check_range(matrix: Array) -> None:
    """Refuse finite numbers that float32 cannot hold. Those that are infinite, or NaN, stay what they are."""
    if matrix.dtype.kind == "f" and matrix.dtype.itemsize > 4 and matrix.size:
        found = map_threads(
            lambda piece: _beyond_float32(matrix[slice(*piece)]),
            chunks(matrix.shape[0], max(1, PIECE // matrix.shape[1])),
        )
        beyond = next((number for number in found if number is not None), None)
        if beyond is not None:
            raise MatrixError(f"the inputs hold {beyond:g}, which is outside the range of float32")


def _beyond_float32(numbers: Array) -> float | None:
    """Return the first finite number that float32 cannot hold; None if there is none."""
    if numbers.min() >= -FLOAT32_MAX and numbers.max() <= FLOAT32_MAX:
        return None
    with np.errstate(all="ignore"):
        beyond = numbers[np.isfinite(numbers) & ~np.isfinite(numbers.astype(np.float32))]
    return float(beyond[0]) if beyond.size else None


def _on_host(inputs: Any) -> CSR | SparseRows | Array:
    """Return inputs in host memory as CSR, as sparse rows or as an array."""
    if isinstance(inputs, np.ma.MaskedArray):
        return real_numbers(inputs, "inputs hold", MatrixError)
    if isinstance(inputs, CSR | np.ndarray):
        return inputs
    if hasattr(inputs, "tocsr"):
        if len(inputs.shape) != 2:
            raise MatrixError(f"the inputs have {len(inputs.shape)} dimensions; a matrix of samples has two")
        rows = inputs if getattr(inputs, "format", None) == "csr" else convert_scipy(inputs, "tocsr")
        if not all(isinstance(part, np.ndarray) for part in (rows.indptr, rows.indices, rows.data)):
            raise MatrixError("indptr, indices and data of the inputs must be arrays")
        if rows.indptr.size and rows.indptr.flat[0] != 0:
            raise MatrixError(f"indptr of the inputs begins with {rows.indptr.flat[0]}, not with 0")
        return SparseRows(rows.shape, rows.indptr, rows.indices, rows.data)
    if hasattr(inputs, "__dlpack__"):
        try:
            return np.from_dlpack(inputs)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"the inputs are {kind_of(inputs)}, which cannot be read: {error}") from error
    if isinstance(inputs, list | tuple):
        return real_numbers(inputs, "inputs hold", MatrixError)
    raise InputError(
        f"the inputs are {kind_of(inputs)}; give a sparsenn.CSR, a SciPy sparse matrix, a NumPy "
        f"array or any array that supports DLPack"
    )


def canonical(rows: SparseRows) -> SparseRows:
    """Return sparse rows in host memory with the entries of each row by column, and those of one place added up."""
    from scipy.sparse import csr_array

    offsets = rows.indptr - rows.indptr[0]
    nnz = int(offsets[-1])
    values = rows.values.astype(np.result_type(rows.values.dtype, np.float32))  # small integers would wrap around
    one_each = np.repeat(values, nnz) if values.size == 1 else values[:nnz]
    matrix = csr_array((one_each, rows.indices[:nnz].copy(), offsets), shape=rows.shape)
    matrix.sum_duplicates()
    return SparseRows(rows.shape, matrix.indptr, matrix.indices, matrix.data)


def like(source: Any, outputs: CSR | Array) -> Any:
    """Return outputs in the type of what the rows were given in: SciPy's or PyTorch's, for example.

    Parameters
    ----------
    source : what a caller gave the rows in.
    outputs : in the same memory as the rows.
    """
    if isinstance(outputs, CSR):
        return outputs.to_scipy() if hasattr(source, "tocsr") and isinstance(outputs.indptr, np.ndarray) else outputs
    if isinstance(source, type(outputs)):
        return outputs
    library = sys.modules.get(type(source).__module__.partition(".")[0])
    from_dlpack = getattr(library, "from_dlpack", None)
    return outputs if from_dlpack is None or library is np else from_dlpack(outputs)
