"""The tensors of a graph: ONNX Runtime computes them for different numbers of rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto

from sparsenn.backends.foreign import onnx_runtime, runtime_session
from sparsenn.formats import Array
from sparsenn.io.importers.onnx.graph_inputs import differ_in_rows
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import RowTensor
from sparsenn.printable import reason_of

_FEW, _MORE = 2, 3  # numbers of rows that a graph is run for

_SCALES = 1.0, 30.0
"""Factors of random inputs: a graph may compute the same for all small ones."""

_WHOLE = (0.0,)
"""Stands in place of scales for random whole numbers."""

_FEW_NUMBERS, _MANY_NUMBERS = 2, 100
"""How many whole numbers, from 0 on, are drawn: places in a table may be no more, but of equal rows, a normalisation
divides rounding errors by next to nothing."""

_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)

_NUMERIC, _SMALL = (
    frozenset(TensorProto.DataType.Value(name) for name in names.split())
    for names in (
        "FLOAT DOUBLE FLOAT16 BOOL INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64",
        "FLOAT FLOAT16 BOOL INT8 UINT8 INT16 UINT16",
    )
)
"""Types of tensors with numbers, and those of them whose numbers float32 holds."""

_NEAR, _NEAR_QUANTISED = 1e-3, 0.1
"""The largest difference that other rows may make to an output, relative to its largest number; the second one where
they change the step of a quantisation."""

_QUANTISING = frozenset(("DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"))
"""Operators whose step of quantisation depends on all rows."""


_Draw: TypeAlias = Callable[[slice, float], dict[str, Array]]
"""A function of rows and a scale, which returns the inputs of these rows."""


@dataclass(frozen=True)
class Probed:
    """A tensor of a graph.

    rows : the shape of its rows; None of what differs in no axis, or in more than one, with the number of rows.
    type_number : its type, one of `TensorProto`.
    """

    rows: RowTensor | None
    type_number: int

    @property
    def crosses(self) -> bool:
        """Whether it can pass from one subgraph to another as rows of float32, which hold all of its numbers."""
        return self.rows is not None and self.type_number in _SMALL

    @property
    def is_float(self) -> bool:
        """Whether it holds numbers of float32."""
        return self.type_number == int(TensorProto.FLOAT)


class RunError(Exception):
    """ONNX Runtime does not compute a graph; the message says why."""


def probed(model: Any, signals: Mapping[str, Signal], row_by_row: bool) -> dict[str, Probed] | None:
    """Return the tensors of a graph by name.

    None where rows change each other's outputs, or nothing shows whether they do. A `RunError` says why ONNX Runtime
    does not compute the graph.

    signals : of the inputs, which say where the axis of rows is.
    row_by_row : whether one row is computed at a time.
    """
    onnx_runtime()
    by_rows = not row_by_row and all(signal.axis is not None for signal in signals.values())
    if not by_rows and not row_by_row:
        return None
    if any(node.op_type in _RANDOM for node in model.graph.node):
        return None
    found = _tensors(model, signals, by_rows)
    if found is None or not (row_by_row and differ_in_rows(signals)):
        return found
    along = _tensors(model, signals, by_rows=True)  # of several rows, whose axes a single one does not show
    if along is None:
        return None
    return {name: each if along[name].rows is None else along[name] for name, each in found.items()}


def _tensors(model: Any, signals: Mapping[str, Signal], by_rows: bool) -> dict[str, Probed] | None:
    """Return what `probed` does; inputs without an axis of rows are the same for all rows."""
    traced = _traced(model, signals, by_rows)
    try:
        session = runtime_session(traced, quiet=True)
    except Exception as error:  # of whatever kinds that ONNX Runtime raises
        raise RunError(reason_of(error)) from error
    faults = list[Exception]()
    ranges = [(0, _FEW_NUMBERS), (0, 1), *((number, number + 1) for number in _numbers_compared(model))]
    whole = [signal for signal in signals.values() if signal.integers]
    if not whole or (by_rows and any(signal.axis is not None for signal in whole)):
        ranges = ranges[:1]  # equal rows do not show whether they change each other
    for numbers, scales in itertools.product(ranges, (_SCALES, _WHOLE)):
        draw = partial(_feeds, session, signals, numbers=numbers)
        try:
            found = _probed(session, model, signals, by_rows, scales, draw)
        except Exception as error:  # as above: numbers that are cast to places in a table may lie outside of that
            faults.append(error)
            continue
        if found is None and any(signal.integers for signal in signals.values()):
            with suppress(Exception):  # as above
                found = _probed(session, model, signals, by_rows, scales, partial(draw, numbers=(0, _MANY_NUMBERS)))
        return found
    raise RunError(reason_of(faults[0])) from faults[0]


def _numbers_compared(model: Any) -> list[int]:
    """Return the whole numbers that a graph compares with: some inputs take no others, as sampling rates do."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    constants = (node for node in model.graph.node if node.op_type == "Constant")
    tensors |= {node.output[0]: each.t for node in constants for each in node.attribute if each.name == "value"}
    names = dict.fromkeys(name for node in model.graph.node if node.op_type == "Equal" for name in node.input)
    arrays = [onnx.numpy_helper.to_array(tensors[name]) for name in names if name in tensors]
    return [int(array.item()) for array in arrays if array.size == 1 and array.dtype.kind in "iu"]


def _probed(
    session: Any, model: Any, signals: Mapping[str, Signal], by_rows: bool, scales: Sequence[float], draw: _Draw
) -> dict[str, Probed] | None:
    """Return the tensors of a session's graph for random inputs of some scales; None where rows change each other."""
    sizes = (slice(_FEW), slice(_MORE)) if by_rows else (slice(1),)
    runs = [_traced_types(session, draw(rows, scales[0])) for rows in sizes]
    found = {}
    for name, (kind, first) in runs[0].items():
        rows = _axis(first, runs[1][name][1]) if by_rows else _one_row(first, signals)
        found[name] = Probed(rows, kind) if kind in _NUMERIC else Probed(None, 0)
    outputs = {output.name: found.get(output.name) for output in model.graph.output}
    near = _NEAR_QUANTISED if quantises(model) else _NEAR
    if by_rows and not _are_independent(session, draw, scales, outputs, near):
        return None
    return found


def quantises(model: Any) -> bool:
    """Return whether a graph quantises by steps that depend on all rows of a call."""
    return any(node.op_type in _QUANTISING for node in model.graph.node)


def _traced(model: Any, signals: Mapping[str, Signal], by_rows: bool) -> bytes:
    """Return a model that gives all of its values, of which none has a shape."""
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    graph = traced.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name in signals or value.name in constants]
    del graph.input[:], graph.value_info[:]
    graph.input.extend(inputs)
    for value in graph.input:
        axis = signals[value.name].axis if value.name in signals else None
        if by_rows and axis is not None:
            value.type.tensor_type.shape.dim[axis].dim_param = "rows"
    for value in graph.output:
        if by_rows:
            value.type.tensor_type.ClearField("shape")
    known = {value.name for value in graph.output}
    made = dict.fromkeys(name for node in graph.node for name in node.output if name and name not in known)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    content: bytes = traced.SerializeToString()
    return content


def _are_independent(
    session: Any, draw: _Draw, scales: Sequence[float], outputs: Mapping[str, Probed | None], near: float
) -> bool:
    """Whether the outputs of each of a few rows are the same alone as among the others."""
    axes = {name: output.rows for name, output in outputs.items() if output is not None and output.rows is not None}
    if len(axes) != len(outputs):
        return False
    for scale in scales:
        together = _run(session, draw(slice(_MORE), scale), axes)
        alone = [_run(session, draw(slice(row, row + 1), scale), axes) for row in range(_MORE)]
        if not all(_alike(rows, together[name], [run[name] for run in alone], near) for name, rows in axes.items()):
            return False
    return True


def _traced_types(session: Any, numbers: Mapping[str, Array]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the type and the shape of all values that are tensors; their numbers, of all layers, are not copied."""
    new_value = onnx_runtime().OrtValue.ortvalue_from_numpy
    feeds = {name: new_value(feed) for name, feed in numbers.items()}
    names = [output.name for output in session.get_outputs()]
    values = zip(names, session.run_with_ort_values(names, feeds), strict=True)
    return {name: (value.element_type(), tuple(value.shape())) for name, value in values if value.is_tensor()}


def _run(session: Any, feeds: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    found = session.run([*names], feeds)
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}


def _feeds(
    session: Any, signals: Mapping[str, Signal], rows: slice, scale: float, numbers: tuple[int, int]
) -> dict[str, Array]:
    """Return inputs for some rows, the same ones each time; `numbers`: the range of whole ones."""
    feeds = {}
    for value in session.get_inputs():
        generator = np.random.default_rng(0)
        signal = signals[value.name]
        whole = "int" in value.type or "bool" in value.type or scale == 0
        kind = {"float16": np.float16, "double": np.float64, "float": np.float32}.get(value.type[7:-1])
        kind = kind or np.dtype(value.type[7:-1])
        shape = _MORE, *signal.shape
        found = generator.integers(*numbers, shape) if whole else scale * generator.standard_normal(shape)
        some = np.moveaxis(found[rows], 0, signal.axis) if signal.axis is not None else found[0]
        feeds[value.name] = np.asarray(some, kind)
    return feeds


def _axis(few: tuple[int, ...], more: tuple[int, ...]) -> RowTensor | None:
    """Return the rows of a tensor by its shapes for `_FEW` rows and for `_MORE`."""
    if len(few) != len(more):
        return None
    axes = [axis for axis, sizes in enumerate(zip(few, more, strict=True)) if sizes[0] != sizes[1]]
    if len(axes) != 1 or (few[axes[0]], more[axes[0]]) != (_FEW, _MORE) or 0 in few:
        return None
    (axis,) = axes
    return RowTensor((*few[:axis], *few[axis + 1 :]), axis)


def _one_row(shape: tuple[int, ...], signals: Mapping[str, Signal]) -> RowTensor | None:
    if 0 in shape:
        return None
    has_axis = any(signal.axis is not None for signal in signals.values())
    return RowTensor(shape[1:], 0) if has_axis and shape[:1] == (1,) else RowTensor(shape, None)


def _alike(rows: RowTensor, together: Array, alone: Sequence[Array], near: float) -> bool:
    """Whether single rows are nearly the same as among others."""
    assert rows.axis is not None
    if together.dtype.kind not in "fiub":
        return False
    shape = (*rows.shape[: rows.axis], 1, *rows.shape[rows.axis :])
    if any(each.shape != shape for each in alone):
        return False
    first, again = together.astype(np.float64), np.concatenate(alone, rows.axis).astype(np.float64)
    finite = np.isfinite(first)
    if not finite.any() or not np.array_equal(finite, np.isfinite(again)):
        return False
    largest = max(1e-30, float(np.abs(first[finite]).max()))
    return bool(np.allclose(first, again, rtol=near, atol=near * largest, equal_nan=True))
