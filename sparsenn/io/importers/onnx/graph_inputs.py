"""What a graph's inputs may be: rows along an axis, or one row; of several inputs, each is a slice of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import TensorProto

from sparsenn.errors import InputError, OpenSizesError, ShapeError, UsageError
from sparsenn.formats import InputLayout
from sparsenn.formats.named_shapes import checked_shapes
from sparsenn.io.importers.combinations import slices_of_inputs
from sparsenn.io.importers.signal import Signal

InputShapes: TypeAlias = Sequence[int] | Mapping[str, Sequence[int]]
"""The shape of one sample of each input by its name, or of a single input."""

_FLOATING, _WHOLE = (
    [TensorProto.DataType.Value(name) for name in names.split()]
    for names in ("FLOAT DOUBLE FLOAT16 BFLOAT16", "BOOL INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64")
)
"""Types of inputs that are read."""


def fix_sizes(graph: Any, shapes: InputShapes) -> None:
    """Fix the open sizes of a graph's inputs, but for the axis of rows; sizes of one name are the same in all inputs.

    graph : an `onnx.GraphProto`; its inputs are changed.
    shapes : without the axis of rows, or with it, where it becomes fixed, too.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    names = ", ".join(map(repr, inputs))
    if not isinstance(shapes, Mapping):
        if len(inputs) != 1:
            raise UsageError(f"the model's inputs are {names}; give the shape of each by its name")
        shapes = {next(iter(inputs)): shapes}
    checked = checked_shapes(shapes, "shapes of inputs")
    if unknown := [name for name in checked if name not in inputs]:
        raise UsageError(f"the model has no input {', '.join(map(repr, unknown))}; its inputs are {names}")
    named: dict[str, int] = {}
    for name, shape in checked.items():
        named.update(_fix(inputs[name], shape))
    for value in inputs.values():
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in named:
                axis.dim_value = named[axis.dim_param]


def _fix(value: Any, shape: tuple[int, ...]) -> dict[str, int]:
    """Fix the sizes of an input; return those that have a name, which hold for other inputs, too."""
    kind = value.type.tensor_type
    if value.type.HasField("tensor_type") and not _has_axes(value):
        for size in (None, *shape):
            kind.shape.dim.add(dim_value=size)
    sizes = _sizes(value)
    open_axes = [axis for axis, size in enumerate(sizes) if axis and size is None]
    has_batch = sizes[:1] in ([None], [1])
    for rows in (None, *([0] if has_batch else []), *open_axes, *([] if has_batch else [0])):
        axes = [axis for axis in range(len(sizes)) if axis != rows]
        if len(axes) != len(shape):
            continue
        pairs = list(zip(axes, shape, strict=True))
        if all(sizes[axis] in (None, size) for axis, size in pairs):
            fixed = {kind.shape.dim[axis].dim_param: size for axis, size in pairs if sizes[axis] is None}
            for axis, size in pairs:
                kind.shape.dim[axis].dim_value = size
            return {name: size for name, size in fixed.items() if name}
    raise ShapeError(
        f"the input {value.name!r} has the shape {_shown(value)}; one sample cannot have the shape {shape}"
    )


def _sizes(value: Any) -> list[int | None]:
    """Return the sizes of an input's axes; None for open ones."""
    dimensions = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else None for size in dimensions]


def _has_axes(value: Any) -> bool:
    return bool(value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"))


def open_sizes(message: str, inputs: Sequence[Any]) -> OpenSizesError:
    """Return the error that says with a message that sizes of inputs are open."""
    return OpenSizesError(message, {each.name: tuple(_sizes(each)) if _has_axes(each) else None for each in inputs})


def _shown(value: Any, without: int | None = None) -> str:
    dimensions = value.type.tensor_type.shape.dim
    names = [str(size or each.dim_param or "?") for size, each in zip(_sizes(value), dimensions, strict=True)]
    shown = [name for axis, name in enumerate(names) if axis != without]
    return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"


def input_signals(
    graph: Any, names_read: Collection[str], constants: Collection[str], sparse_below: float
) -> Iterator[dict[str, Signal]]:
    """Yield what the inputs may be, by name.

    names_read : of values that the outputs depend on; of several inputs, others are left out.
    constants : names of initialisers, which may be inputs, too.
    sparse_below : as of `fully_connected`.
    """
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) > 1:
        inputs = [value for value in inputs if value.name in names_read]
    if not inputs:
        raise InputError("it has no input that is not a constant and that its outputs depend on")
    choices = [_choices(value, inputs, sparse_below) for value in inputs]
    along, whole = (tuple(each[place] for each in choices) for place in (0, -1))
    alike = [
        signals
        for signals in dict.fromkeys((along, whole))
        if len({(each.axis is None, each.rows) for each in signals}) == 1
    ]
    for signals in alike or [tuple(each[0 if each[0].rows is None else -1] for each in choices)]:
        yield slices_of_inputs({value.name: signal for value, signal in zip(inputs, signals, strict=True)})


def differ_in_rows(signals: Mapping[str, Signal]) -> bool:
    """Whether some inputs have an axis of rows, and others none."""
    return len({signal.axis is None for signal in signals.values()}) > 1


def _choices(value: Any, inputs: Sequence[Any], sparse_below: float) -> list[Signal]:
    """Return what one of the inputs may be: rows along an axis, or one row."""
    kind, name = value.type.tensor_type, value.name
    floating, whole = kind.elem_type in _FLOATING, kind.elem_type in _WHOLE
    if not value.type.HasField("tensor_type") or not (floating or whole):
        raise InputError(f"its input {name!r} is not a tensor of numbers")
    if not _has_axes(value):
        raise open_sizes(
            f"the shape of its input {name!r} is not known; give that of one sample: "
            f"from_onnx(path, shape={{{name!r}: …}}), or --shape",
            inputs,
        )
    sizes = _sizes(value)
    open_axes = [axis for axis, size in enumerate(sizes) if size is None]
    if len(open_axes) > 1:
        sample = _shown(value, without=open_axes[0])
        option = f"--shape {name}={sample.strip('(),').replace(', ', 'x')}"
        raise open_sizes(
            f"its input {name!r} of shape {_shown(value)} has open sizes at axes {open_axes}; only that of rows may "
            f"be open: fix the others, all by numbers: from_onnx(path, shape={{{name!r}: {sample}}}), or {option}",
            inputs,
        )
    axes: list[int | None] = list(open_axes) if open_axes else [*([0] if len(sizes) > 1 else []), None]
    signals = []
    for axis in axes:
        shape = tuple(size for place, size in enumerate(sizes) if place != axis and size is not None)
        rows = None if axis is None else sizes[axis]
        layout = InputLayout(shape) if axis in (0, None) and len(shape) > 1 else None
        signals.append(Signal(shape, axis, rows, integers=whole, sparse_below=sparse_below, layout=layout))
    return signals
