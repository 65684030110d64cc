"""What a graph's inputs may be: rows along an axis, or one row; of several inputs, each is a slice of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sparsenn.errors import InputError
from sparsenn.formats import InputLayout
from sparsenn.io.combining import slices_of_inputs
from sparsenn.io.signal import Signal
from sparsenn.structure.onnx_library import onnx_library

__all__ = ["input_signals"]


def input_signals(
    graph: Any, names_read: Collection[str], constants: Collection[str], sparse_below: float
) -> Iterator[dict[str, Signal]]:
    """Yield what the inputs may be, by name.

    Parameters
    ----------
    graph : an `onnx.GraphProto`.
    names_read : of values that the outputs depend on; of several inputs, others are left out.
    constants : names of initialisers, which may be inputs, too.
    sparse_below : as of `fully_connected`.

    Raises
    ------
    InputError
        There is no input; one is no tensor of numbers, or has several open axes; or they have different rows.
    """
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) > 1:
        inputs = [value for value in inputs if value.name in names_read]
    if not inputs:
        raise InputError("it has no input that is not a constant and that its outputs depend on")
    choices = [_choices(value, sparse_below) for value in inputs]
    along, whole = (tuple(each[place] for each in choices) for place in (0, -1))
    alike = [signals for signals in dict.fromkeys((along, whole)) if len({_rows(signal) for signal in signals}) == 1]
    if not alike:
        names = ", ".join(f"{value.name!r}: {signal}" for value, signal in zip(inputs, along, strict=True))
        raise InputError(
            f"its inputs differ in their rows ({names}); export all of them with an open axis of rows, or none"
        )
    for signals in alike:
        yield slices_of_inputs({value.name: signal for value, signal in zip(inputs, signals, strict=True)})


def _rows(signal: Signal) -> tuple[bool, int | None]:
    return signal.axis is None, signal.rows


def _choices(value: Any, sparse_below: float) -> list[Signal]:
    """Return what one input may be: rows along an axis, or one row."""
    types = onnx_library().TensorProto
    kind, name = value.type.tensor_type, value.name
    floating = kind.elem_type in (types.FLOAT, types.DOUBLE, types.FLOAT16, types.BFLOAT16)
    whole = kind.elem_type in (types.INT8, types.UINT8, types.INT16, types.UINT16, types.INT32, types.INT64)
    if not value.type.HasField("tensor_type") or not (floating or whole):
        raise InputError(f"its input {name!r} is not a tensor of numbers")
    if not kind.HasField("shape"):
        raise InputError(f"the shape of its input {name!r} is not known; fix it first")
    sizes = [size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else None for size in kind.shape.dim]
    open_axes = [axis for axis, size in enumerate(sizes) if size is None]
    if len(open_axes) > 1:
        raise InputError(
            f"its input {name!r} has open sizes at axes {open_axes}; only the axis of rows may be open: fix the others"
        )
    axes: list[int | None] = list(open_axes) if open_axes else [*([0] if len(sizes) > 1 else []), None]
    signals = []
    for axis in axes:
        shape = tuple(size for place, size in enumerate(sizes) if place != axis and size is not None)
        rows = None if axis is None else sizes[axis]
        layout = InputLayout(shape) if axis in (0, None) and len(shape) > 1 else None
        signals.append(Signal(shape, axis, rows, integers=whole, sparse_below=sparse_below, layout=layout))
    return signals
