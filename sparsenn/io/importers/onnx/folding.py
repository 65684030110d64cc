"""What is computed from constants alone: the onnx package's own reference computes it, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from scipy.sparse import issparse

from sparsenn.errors import InputError, SparseNNError
from sparsenn.formats import Array
from sparsenn.io.importers.onnx.tensors import SMALL_BYTES, Constant, dense
from sparsenn.printable import reason_of
from sparsenn.runtime.memory import check_memory

ROWS = -(1 << 62)
"""What stands for the number of rows in a shape that the graph computes with, always as int64."""

ROWS_UNKNOWN = (
    "it computes with the number of rows, which is not known when the file is read: export with fixed sizes, or a "
    "model that does not compute with the size of its batch"
)

_MOVING = frozenset(
    ("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Transpose")
)
"""Operators that only move the numbers of their data, also one that stands for the number of rows."""

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Ceil", "Clip", "Div", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sign"),
        *("Sigmoid", "Sqrt", "Sub", "Tanh", "Where"),
    )
)

_OTHER = frozenset(
    (
        *("BatchNormalization", "Constant", "ConstantOfShape", "DequantizeLinear", "Expand", "Flatten", "Gemm"),
        *("MatMul", "QuantizeLinear", "Range", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("Shape", "Size"),
    )
)


def fold(node: Any, inputs: Sequence[Constant | None], opsets: dict[str, int]) -> list[Constant]:
    """Return what a node gives for constants, one for each output.

    inputs : None where an optional one is left out.
    opsets : the version of each domain's operators.
    """
    operator = node.op_type
    if operator not in _MOVING | _ELEMENTWISE | _OTHER or node.domain not in ("", "ai.onnx"):
        raise InputError(
            "all its inputs are constants, but sparsenn cannot compute it: fold constants first (onnxsim does)"
        )
    if any(map(names_rows, inputs)):
        moved = len(inputs) if operator == "Concat" else 1
        if operator not in _MOVING or any(map(names_rows, inputs[moved:])):
            raise InputError(ROWS_UNKNOWN)
        if operator == "Cast":
            return [_cast_rows(node, inputs[0])]
    if (folded := _sparse(operator, inputs)) is not None:
        return [folded]
    arrays = [None if value is None else dense(value) for value in inputs]
    try:
        needed = 2 * 8 * _numbers(operator, [array for array in arrays if array is not None])
        if needed > SMALL_BYTES:
            check_memory(needed, "what it computes")
        return _computed(node, arrays, opsets)
    except SparseNNError:
        raise
    except Exception as error:  # the library raises whatever its parts raise
        raise InputError(f"it cannot be computed from its constants: {reason_of(error)}") from error


def names_rows(value: Constant | None) -> bool:
    """Whether one of these integers stands for the number of rows."""
    return isinstance(value, np.ndarray) and value.dtype == np.int64 and bool((value == ROWS).any())


def _cast_rows(node: Any, value: Constant) -> Constant:
    """Return sizes, of which one is the number of rows, as integers of another type: they stay int64."""
    to = next(attribute.i for attribute in node.attribute if attribute.name == "to")
    if to not in (TensorProto.INT32, TensorProto.INT64):
        raise InputError(ROWS_UNKNOWN)
    return value


_FIRST = {"DequantizeLinear": 19}
"""The first version that the reference knows, where it is not the first there is; what older ones do it does, too."""


def _computed(node: Any, arrays: list[Array | None], opsets: dict[str, int]) -> list[Constant]:
    from onnx import reference  # which takes long to import

    opsets = opsets | {"": max(opsets[""], _FIRST.get(node.op_type, 0))}
    named = {name: array for name, array in zip(node.input, arrays, strict=True) if array is not None}
    graph = helper.make_graph(
        [node],
        "folded",
        [helper.make_empty_tensor_value_info(name) for name in named],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    results = iter(reference.ReferenceEvaluator(graph, opsets=opsets).run(None, named))
    return [np.asarray(next(results)) if name else None for name in node.output]


def _sparse(operator: str, inputs: Sequence[Constant | None]) -> Constant | None:
    """Return what becomes of a sparse matrix without making it dense; None where that is not so."""
    matrices: list[Any] = [value for value in inputs if issparse(value)]
    if not matrices:
        return None
    if operator == "Transpose":
        return matrices[0].T
    if operator in ("Identity", "Cast"):
        return matrices[0]
    masks = [value for value in inputs if isinstance(value, np.ndarray) and value.shape == matrices[0].shape]
    if operator == "Mul" and masks:
        return matrices[0].multiply(masks[0]).tocoo()
    return None


def _numbers(operator: str, arrays: Sequence[Array]) -> int:
    """Return how many numbers an operator gives, or more than that."""
    if operator == "ConstantOfShape":
        return prod(int(size) for size in arrays[0].reshape(-1))
    if operator == "Expand":
        return prod(np.broadcast_shapes(arrays[0].shape, tuple(map(int, arrays[1].reshape(-1)))))
    if operator == "Range":
        start, limit, step = (float(array.reshape(-1)[0]) for array in arrays)
        return int(abs((limit - start) / step)) + 1
    if operator in ("MatMul", "Gemm"):
        summed: int = max(1, min(arrays[0].shape[-1:] + arrays[1].shape[-2:]))
        return int(arrays[0].size) * int(arrays[1].size) // summed
    if operator == "Gather":
        return int(arrays[0].size) * int(arrays[1].size)
    if operator in _ELEMENTWISE - {"Clip"}:
        return prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    return sum(int(array.size) for array in arrays)
