"""Named inputs as one row per sample, which a network takes, and its outputs by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import CSR, InputLayout
from sparsenn.formats.arrays import convert_scipy, real_numbers
from sparsenn.formats.named_shapes import named_columns
from sparsenn.formats.tables import without_table
from sparsenn.network import Network
from sparsenn.printable import kind_of

__all__ = ["are_named", "outputs_by_name", "packed_inputs"]

_SPARSE = {"scipy": "scipy.sparse", "cupyx": "cupyx.scipy.sparse"}
"""Libraries of sparse matrices, and the modules that stack these."""


def are_named(inputs: Any) -> bool:
    """Return whether inputs are a dictionary, and not one of SciPy's sparse matrices that are dictionaries as well."""
    return isinstance(inputs, dict) and not hasattr(inputs, "shape")


def packed_inputs(network: Network, inputs: Any, named: Mapping[str, Any] | None = None) -> Any:
    """Return named inputs side by side, as a matrix of their own library, one row per sample.

    They are a dictionary, or keyword arguments in its place. Errors are those of `Session`.
    """
    shapes = network.named_inputs
    if named and inputs is not None:
        raise UsageError(f"inputs and {', '.join(map(repr, named))} are given; give a dictionary of all named inputs")
    arrays = named or inputs or {}
    if shapes is None:
        raise UsageError(f"the network's inputs have no names, such as {', '.join(map(repr, arrays))}; give one matrix")
    differences = {"missing": shapes.keys() - arrays.keys(), "unknown": arrays.keys() - shapes.keys()}
    faults = [f"{kind} are {', '.join(sorted(map(repr, names)))}" for kind, names in differences.items() if names]
    if faults:
        raise UsageError(f"{'; '.join(faults)}; the network takes {', '.join(map(repr, shapes))}")
    matrices = [_matrix(network, name, shape, arrays[name]) for name, shape in shapes.items()]
    counts = [int(matrix.shape[0]) for matrix in matrices]
    if len(set(counts)) > 1:
        by_name = ", ".join(f"{name!r} has {count:,}" for name, count in zip(shapes, counts, strict=True))
        raise ShapeError(f"the inputs differ in their number of rows: {by_name}")
    return _side_by_side(matrices)


def _matrix(network: Network, name: str, shape: tuple[int, ...], rows: Any) -> Any:
    array = without_table(network.input_layout, rows)
    if isinstance(array, CSR):
        array = array.to_scipy()
    if not hasattr(array, "shape") or isinstance(array, np.ma.MaskedArray):
        array = real_numbers(array, f"input {name!r} holds", MatrixError)
    size, actual = prod(shape), tuple(array.shape)
    if actual[1:] == (size,):
        return array
    layout = InputLayout(shape or (1,))
    if not hasattr(array, "tocsr"):
        if len(actual) > (size > 1) and layout.holds(actual[1:], size):
            return array.reshape(actual[0], size)
        if actual == (size,) or layout.holds(actual, size):
            return array.reshape(1, size)
    expected = ", ".join(map(str, ("rows", *shape)))
    raise MatrixError(f"the input {name!r} has the shape {actual}; it takes ({expected})")


def _side_by_side(matrices: list[Any]) -> Any:
    if len(matrices) == 1:
        return matrices[0]
    roots = [type(matrix).__module__.partition(".")[0] for matrix in matrices]
    sparse = next((_SPARSE[root] for root in roots if root in _SPARSE), None)
    try:
        if sparse is not None:
            library = sys.modules[sparse]
            if sparse == "scipy.sparse":  # whose C++ reads wherever a damaged matrix says
                matrices = [convert_scipy(each, "tocsr") if hasattr(each, "tocsr") else each for each in matrices]
            return library.hstack([library.csr_matrix(matrix) for matrix in matrices], format="csr")
        libraries = {root: sys.modules[root] for root in roots}
        if len(libraries) > 1 or not hasattr(libraries[roots[0]], "concatenate"):
            return np.concatenate([np.from_dlpack(matrix) for matrix in matrices], axis=1)
        return libraries[roots[0]].concatenate(matrices, axis=1)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kinds = ", ".join(dict.fromkeys(map(kind_of, matrices)))
        raise InputError(
            f"the inputs are {kinds}, which cannot be put side by side ({error}); give all of them as arrays of one "
            "library, on one device"
        ) from error


def outputs_by_name(network: Network, outputs: Any) -> dict[str, Any]:
    """Return the outputs of each name, of shape (rows, ...): views of a matrix of all of them."""
    rows, shapes = outputs.shape[0], network.named_outputs or {}
    return {name: outputs[:, first:last].reshape(rows, *shape) for name, shape, first, last in named_columns(shapes)}
