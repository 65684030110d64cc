"""Inputs of a run: rows in any of the forms that a caller may have them in, as a matrix or sparse rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import Backend, SparseRows
from sparsenn.errors import InputError, MatrixError, ShapeError, SparseNNError, UsageError
from sparsenn.formats import CSR, Array, InputLayout
from sparsenn.formats.arrays import convert_scipy, real_numbers
from sparsenn.formats.libraries import EXACT_INTEGER, largest, readable_tensor, side_by_side
from sparsenn.formats.named_shapes import check_names
from sparsenn.formats.tables import without_table
from sparsenn.graph import integer_columns
from sparsenn.layers.elementwise import FLOAT32_MAX
from sparsenn.model import feature_names
from sparsenn.network import Network
from sparsenn.printable import kind_of
from sparsenn.runtime.workers import NUMBERS, chunks, map_threads

Inputs: TypeAlias = CSR | Array | Any
"""Rows of inputs: CSR, a SciPy or CuPy sparse matrix or array, a NumPy or CuPy array, nested lists of numbers, a
table of pandas, polars or Arrow, or an array that speaks DLPack or CUDA's array interface."""


@dataclass(frozen=True, eq=False)
class InputRows:
    """Rows of a run: their type and shape are checked; they are neither moved nor converted."""

    rows: CSR | SparseRows | Array
    on_host: bool
    source: Any  # the inputs as the caller gave them
    total: int  # rows of the whole run, where these are some of them: the choice of kernels depends on it

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether they are sparse rows."""
        return isinstance(self.rows, CSR | SparseRows)

    @property
    def density(self) -> float | None:
        """Stored entries as a fraction of all positions; None for a matrix, which is not counted."""
        if not isinstance(self.rows, CSR | SparseRows):
            return None
        positions = self.rows.shape[0] * self.rows.shape[1]
        return self.rows.indices.size / positions if positions else 0.0

    def slice(self, first: int, last: int) -> CSR | SparseRows | Array:
        """Return rows `first` to `last`, sharing memory."""
        if (first, last) == (0, self.count):
            return self.rows
        if isinstance(self.rows, CSR):
            return self.rows.slice_groups(first, last)
        return self.rows.slice_rows(first, last) if isinstance(self.rows, SparseRows) else self.rows[first:last]


def read_inputs(network: Network, inputs: Inputs, backend: Backend) -> InputRows:
    """Return inputs of a session as rows of shape (rows, network.inputs), where they are; errors are `Session`'s."""
    if are_named(inputs):
        inputs = packed_inputs(network, inputs)
    inputs = without_table(feature_names(network), readable_tensor(_unwrapped(network, inputs)))
    device_rows = backend.device_rows(inputs)
    rows = _on_host(inputs) if device_rows is None else device_rows
    if not isinstance(rows, CSR | SparseRows):
        rows = as_matrix(network, rows)
    numbers = rows.values if isinstance(rows, CSR | SparseRows) else rows
    if numbers.dtype.kind not in "fiub":
        raise MatrixError(f"the inputs are of type {numbers.dtype}; real numbers are needed")
    if rows.shape[1] != network.inputs:
        others = f"; {_taken_shapes(network)}" if _layouts(network) or len(network.named_inputs or ()) > 1 else ""
        raise ShapeError(f"the inputs have {rows.shape[1]} columns; layer 1 takes {network.inputs}{others}")
    if device_rows is None and isinstance(rows, np.ndarray) and not backend.doubles:
        _check_range(rows)
        _check_integers(network, rows)
    return InputRows(rows, device_rows is None, inputs, int(rows.shape[0]))


def as_matrix(network: Network, array: Any) -> Any:
    """Return an array of inputs, of any library, as a matrix with a row for each, as the network takes them.

    Inputs come as rows, as images with the channels first, or as the model holds them that the network was made of;
    where a shape may be either, it is that of the model. Axes of size 1 do not matter. A single input may come without
    the axis of rows. Other shapes are refused by a `MatrixError`, but for matrices of another width.
    """
    shape = tuple(array.shape)
    is_matrix = len(shape) == 2 and shape[1] == network.inputs
    held = None if is_matrix else _batch_of(_layouts(network), network.inputs, shape)
    if held is not None:
        batch, layout = held
        return layout.matrix(array.reshape(batch))
    if len(shape) != 2:
        raise MatrixError(f"the inputs have the shape {shape}; {_taken_shapes(network)}")
    return array


def takes_shape(network: Network, shape: tuple[int, ...]) -> bool:
    """Return whether `as_matrix` takes an array of a shape."""
    return _batch_of(_layouts(network), network.inputs, shape) is not None


def _taken_shapes(network: Network) -> str:
    shapes = [(network.inputs,), *(layout.shape for layout in _layouts(network) if layout.shape is not None)]
    names = " or ".join(f"(rows, {', '.join(map(str, shape))})" for shape in dict.fromkeys(shapes))
    if len(inputs := network.named_inputs or {}) > 1:
        return f"the network takes {', '.join(map(repr, inputs))} by name, or {names}"
    return f"a matrix of samples has two dimensions: {names}" if len(set(shapes)) == 1 else f"the network takes {names}"


def _layouts(network: Network) -> list[InputLayout]:
    images = [] if network.image is None else [InputLayout(network.image)]
    return images if network.input_layout is None else [network.input_layout, *images]


def _batch_of(
    layouts: Sequence[InputLayout], width: int, shape: tuple[int, ...], least_axes: int = 2
) -> tuple[tuple[int, ...], InputLayout] | None:
    """Return the shape of a batch of inputs that an array of `shape` is, and how these are held; None if it is none."""
    for batch in (shape, (1, *shape)):
        if batch[1:] == (width,):
            return batch, InputLayout(batch[1:])
        for layout in layouts:
            if len(batch) >= least_axes and layout.holds(batch[1:], width):
                return batch, layout
    return None


def _unwrapped(network: Network, inputs: Any) -> Any:
    """Return the only array of a list, unless it is a row of the list's; matrices of named inputs side by side."""
    names = network.named_inputs or ()
    is_list = isinstance(inputs, list | tuple) and len(inputs) in (1, len(names) or 1)
    if not is_list or not all(hasattr(each, "shape") for each in inputs):
        return inputs
    if len(inputs) > 1:
        matrices = all(len(each.shape) > 1 for each in inputs)
        named = inputs._asdict() if hasattr(inputs, "_asdict") else dict(zip(names, inputs, strict=True))
        return packed_inputs(network, named) if matrices else inputs
    shape = tuple(inputs[0].shape)
    return inputs[0] if takes_shape(network, shape) and not takes_shape(network, (1, *shape)) else inputs


def check_form(form: object) -> None:
    """Refuse a form of outputs that is neither None nor `dense` nor `csr`, by a `UsageError`."""
    if form is not None and not (isinstance(form, str) and form in ("dense", "csr")):
        raise UsageError(f"outputs are dense or csr, not {form!r}")


def check_network(network: Network) -> None:
    """Refuse what is no network, by a `UsageError`."""
    if not isinstance(network, Network):
        raise UsageError(f"the network is {kind_of(network)}; give a sparsenn.Network")


def _check_range(matrix: Array) -> None:
    """Refuse finite numbers that float32 cannot hold. Those that are infinite, or NaN, stay what they are."""
    if matrix.dtype.kind == "f" and matrix.dtype.itemsize > 4 and matrix.size:
        slices = chunks(matrix.shape[0], max(1, NUMBERS // matrix.shape[1]))
        for beyond in map_threads(lambda rows: _beyond_float32(matrix[slice(*rows)]), slices):
            if beyond.size:
                raise MatrixError(f"the inputs hold {beyond[0]:g}, which is outside the range of float32")


def _check_integers(network: Network, matrix: Array) -> None:
    """Refuse numbers that ONNX Runtime takes as integers, but that float32 may have rounded."""
    is_large = network.has_foreign_layers and largest(matrix) >= EXACT_INTEGER
    columns = integer_columns(network.nodes, network.shapes[0]) if is_large else []
    if any(largest(matrix[:, first:last]) >= EXACT_INTEGER for first, last in columns):
        raise MatrixError(f"the inputs hold integers beyond {EXACT_INTEGER - 1:,}, which float32 rounds")


def _beyond_float32(numbers: Array) -> Array:
    if numbers.min() >= -FLOAT32_MAX and numbers.max() <= FLOAT32_MAX:
        return numbers[:0].ravel()
    with np.errstate(all="ignore"):
        return numbers[np.isfinite(numbers) & ~np.isfinite(numbers.astype(np.float32))]


def _on_host(inputs: Any) -> CSR | SparseRows | Array:
    if isinstance(inputs, np.ma.MaskedArray | list | tuple):
        return real_numbers(inputs, "inputs hold", MatrixError)
    if isinstance(inputs, CSR | np.ndarray):
        return inputs if isinstance(inputs, CSR) else np.asarray(inputs)  # a numpy.matrix computes otherwise
    if hasattr(inputs, "tocsr"):
        if len(inputs.shape) != 2:
            raise MatrixError(f"the inputs have {len(inputs.shape)} dimensions; a matrix of samples has two")
        rows = inputs if getattr(inputs, "format", None) == "csr" else convert_scipy(inputs, "tocsr")
        if not all(isinstance(array, np.ndarray) for array in (rows.indptr, rows.indices, rows.data)):
            raise MatrixError("indptr, indices and data of the inputs must be arrays")
        if rows.indptr.size and rows.indptr.flat[0] != 0:
            raise MatrixError(f"indptr of the inputs begins with {rows.indptr.flat[0]}, not with 0")
        return SparseRows(rows.shape, rows.indptr, rows.indices, rows.data)
    if hasattr(inputs, "__dlpack__"):
        try:
            return np.from_dlpack(inputs)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"the inputs are {kind_of(inputs)}, which cannot be read: {error}") from error
    raise InputError(f"the inputs are {kind_of(inputs)}; give a NumPy array, a SciPy matrix, or an array with DLPack")


def are_named(inputs: Any) -> bool:
    """Return whether inputs are a dictionary, and not one of SciPy's sparse matrices that are dictionaries as well."""
    return isinstance(inputs, dict) and not hasattr(inputs, "shape")


def packed_inputs(network: Network, inputs: Any, named: Mapping[str, Any] | None = None) -> Any:
    """Return inputs by name, in a dictionary or as keyword arguments, side by side: a matrix of their own library."""
    shapes = network.named_inputs
    if named and inputs is not None:
        raise UsageError(f"inputs and {', '.join(map(repr, named))} are given; give a dictionary of all named inputs")
    arrays = named or inputs or {}
    if shapes is None:  # a single one has any name
        if len(arrays) != 1:
            raise UsageError(f"the network has one input, not {', '.join(map(repr, arrays)) or 'none'}")
        return next(iter(arrays.values()))
    check_names(arrays, shapes)
    matrices = [_named_matrix(network, name, shape, arrays[name]) for name, shape in shapes.items()]
    counts = [int(matrix.shape[0]) for matrix in matrices]
    if len(set(counts)) > 1:
        by_name = ", ".join(f"{name!r} has {count:,}" for name, count in zip(shapes, counts, strict=True))
        raise ShapeError(f"the inputs differ in their number of rows: {by_name}")
    return side_by_side(matrices)


def rows_in_order(network: Network, inputs: Array | dict[str, Array]) -> int:
    """Return the number of rows of inputs whose numbers, in row-major order, are the network's; 0 for all others."""
    names, arrays = network.named_inputs or {}, inputs if isinstance(inputs, dict) else {"": inputs}
    if (arrays.keys() != names.keys()) if arrays is inputs else len(names) > 1:
        return 0
    counts = set()
    for name, array in arrays.items():
        numbers = np.empty(array.shape, np.int8)  # never touched: addresses and strides show whether they stay in order
        size = prod(names[name]) if name else network.inputs
        try:
            matrix = _named_matrix(network, name, names[name], numbers) if name else as_matrix(network, numbers)
        except SparseNNError:  # which `read_inputs` raises, too
            return 0
        if matrix.shape[1] != size or not matrix.flags.c_contiguous or matrix.ctypes.data != numbers.ctypes.data:
            return 0
        counts.add(matrix.shape[0])
    return counts.pop() if len(counts) == 1 else 0


def _named_matrix(network: Network, name: str, shape: tuple[int, ...], rows: Any) -> Any:
    array = without_table(None, readable_tensor(rows))
    if isinstance(array, CSR):
        array = array.to_scipy()
    if not hasattr(array, "shape") or isinstance(array, np.ma.MaskedArray):
        array = real_numbers(array, f"input {name!r} holds", MatrixError)
    size, actual = prod(shape), tuple(array.shape)
    if actual[1:] == (size,):
        return array
    layouts = [InputLayout(shape or (1,))]
    if network.input_layout is not None and network.input_layout.channels_last and len(shape) > 1:
        layouts.insert(0, InputLayout((*shape[1:], shape[0]), channels_last=True))
    held = None if hasattr(array, "tocsr") else _batch_of(layouts, size, actual, 1 if size == 1 else 2)
    if held is not None:
        batch, layout = held
        return layout.matrix(array.reshape(batch))
    expected = " or ".join(f"({', '.join(map(str, ('rows', *(layout.shape or ()))))})" for layout in layouts)
    raise MatrixError(f"the input {name!r} has the shape {actual}; it takes {expected}")
