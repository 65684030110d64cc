"""What the tensors of a graph are: ONNX Runtime computes them for different numbers of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.foreign import onnx_runtime, runtime_session
from sparsenn.formats import Array
from sparsenn.io.importers.onnx.library import onnx_library
from sparsenn.io.signal import Signal
from sparsenn.layers import RowTensor

__all__ = ["Probed", "probed"]

_FEW, _MORE = 2, 3
"""Numbers of rows that a graph is run for."""

_NEAR = 1e-3
"""What another number of rows may change of an output, in parts of its largest number."""


@dataclass(frozen=True)
class Probed:
    """A tensor of a graph.

    Parameters
    ----------
    rows : the shape of its rows; None of what differs in no axis, or in more than one, with the number of rows.
    type_number : its type, one of `onnx.TensorProto`.
    """

    rows: RowTensor | None
    type_number: int

    @property
    def is_float(self) -> bool:
        """Whether it holds numbers of float32."""
        return self.type_number == int(onnx_library().TensorProto.FLOAT)


def probed(model: Any, signals: Mapping[str, Signal], row_by_row: bool) -> dict[str, Probed] | None:
    """Return the tensors of a graph by name.

    None where ONNX Runtime does not compute it for these rows, or rows change each other's outputs.

    Parameters
    ----------
    model : an `onnx.ModelProto`.
    signals : of the inputs, which say where the axis of rows is.
    row_by_row : whether one row is computed at a time.

    Raises
    ------
    UsageError
        The package onnxruntime is not installed.
    """
    onnx_runtime()
    onnx = onnx_library()
    by_rows = not row_by_row and all(signal.axis is not None for signal in signals.values())
    if not by_rows and not row_by_row:
        return None
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    graph = traced.graph
    for value in graph.input:
        if by_rows and value.name in signals:
            value.type.tensor_type.shape.dim[signals[value.name].axis or 0].dim_param = "rows"
    names = [value.name for value in graph.output]
    asked = dict.fromkeys(name for node in graph.node for name in node.output if name)
    for value in graph.output:
        if by_rows:
            value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked if name not in names)
    try:
        session = runtime_session(traced.SerializeToString())
        runs = [_run(session, signals, rows) for rows in ((_FEW, _MORE) if by_rows else (1,))]
    except Exception:  # of whatever kinds that ONNX Runtime raises
        return None
    found = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        rows = _axis(*values) if by_rows else _one_row(values[0], signals)
        if by_rows and name in names and (rows is None or not _alike(rows, *values)):
            return None
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[0].dtype) if values[0].dtype != object else 0
        found[name] = Probed(rows if values[0].dtype.kind in "fiub" else None, int(kind))
    return found


def _run(session: Any, signals: Mapping[str, Signal], rows: int) -> dict[str, Array]:
    feeds = {}
    for value in session.get_inputs():
        generator = np.random.default_rng(0)
        signal = signals[value.name]
        whole = "int" in value.type
        kind = {"float16": np.float16, "double": np.float64, "float": np.float32}.get(value.type[7:-1])
        kind = kind or np.dtype(value.type[7:-1])
        numbers = generator.standard_normal((_MORE, *signal.shape)) if not whole else np.ones((_MORE, *signal.shape))
        some = np.moveaxis(numbers[:rows], 0, signal.axis) if signal.axis is not None else numbers[0]
        feeds[value.name] = some.astype(kind)
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, feeds)
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True) if isinstance(value, np.ndarray)}


def _axis(few: Array, more: Array) -> RowTensor | None:
    """Return the rows of a tensor that was computed for `_FEW` rows and for `_MORE`."""
    if few.ndim != more.ndim:
        return None
    axes = [axis for axis, sizes in enumerate(zip(few.shape, more.shape, strict=True)) if sizes[0] != sizes[1]]
    if len(axes) != 1 or (few.shape[axes[0]], more.shape[axes[0]]) != (_FEW, _MORE) or 0 in few.shape:
        return None
    (axis,) = axes
    return RowTensor((*few.shape[:axis], *few.shape[axis + 1 :]), axis)


def _one_row(value: Array, signals: Mapping[str, Signal]) -> RowTensor | None:
    if not value.size:
        return None
    has_axis = any(signal.axis is not None for signal in signals.values())
    if has_axis and value.ndim and value.shape[0] == 1:
        return RowTensor(value.shape[1:], 0)
    return RowTensor(value.shape, None)


def _alike(rows: RowTensor, few: Array, more: Array) -> bool:
    """Whether the first rows are the same in both."""
    assert rows.axis is not None
    first = np.moveaxis(few, rows.axis, 0).astype(np.float64)
    again = np.moveaxis(more, rows.axis, 0)[:_FEW].astype(np.float64)
    largest = max(1e-30, float(np.nanmax(np.abs(first), initial=0.0)))
    return bool(np.allclose(first, again, rtol=_NEAR, atol=_NEAR * largest, equal_nan=True))
