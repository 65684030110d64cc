"""The layers of a model in HDF5: one table, and each layer's parameters in a group of its own.

::

    layers              one record a layer, `LAYER`
    layer1/weights      of a linear layer float32 (inputs, outputs); of a convolution a filter a row, float32
                        (filters, channels / groups · kernel height · kernel width); so for each layer, from 1
    layer1/offsets      of a sparse layer in place of weights: int64 (outputs + 1,), where each column begins
    layer1/indices      the rows of its entries, uint16, or int32 where it has more than 65,536 inputs
    layer1/values       float32 or float64, one for each entry, or one for all
    layer1/bias         of a layer with weights: float32 (outputs,)
    layer1/pooling      of a pooling whose padding differs between sides, or is left out of means: int64, the pixels
                        below and to the right of the image, and 1 where means count padding, else 0
    layer1/scale        of a layer normalisation: float32 (inputs,), as layer1/shift
    layer1/epsilon      float64 (1,): what is added to the variance
    layer1/model        of a foreign layer: uint8, a serialised `onnx.ModelProto`
    layer1/operators    the names of its operators, uint8, separated by commas
    layer1/tensors      int64: 1 where it takes one row at a time, else 0; then of each of its inputs and outputs the
                        axis of rows, -1 for none, the number of other axes, and their lengths
    sources             where the layers are no chain: int64, the numbers of the layers that each one reads, one layer
                        after the other; 0 is the network's input
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import h5py
import numpy as np

from sparsenn.errors import FileFormatError, InputError, SparseNNError, UsageError
from sparsenn.formats import CSC, INDEX32_LIMIT, Array
from sparsenn.formats.arrays import frozen, index_dtype
from sparsenn.io.hdf5.layer_sources import read_sources
from sparsenn.io.hdf5.reading import Hdf5Source
from sparsenn.layers import (
    Activation,
    Add,
    AvgPool2d,
    Concatenate,
    Conv2d,
    Flatten,
    ForeignLayer,
    FullyConnected,
    LayerNorm,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Multiply,
    PerPosition,
    Pool2d,
    RowTensor,
    Slice,
    Softmax,
    SparseLinear,
    activation_named,
)
from sparsenn.layers.activation_names import table_row
from sparsenn.network import Layer, Network, Node
from sparsenn.printable import kind_of

LAYER = np.dtype(
    [
        ("kind", "S16"),
        ("inputs", "<i8"),  # of a convolution: channels; of a slice the first; of others without weights 0, as the next
        ("outputs", "<i8"),  # of a convolution: filters; of a slice the one after its last
        ("entries", "<i8"),  # stored weights
        ("window", "<i8", (2,)),  # of a convolution or a pool, down and across, as the next three; the image of a slice
        ("stride", "<i8", (2,)),
        ("padding", "<i8", (2,)),  # of a slice its axis, and 0
        ("dilation", "<i8", (2,)),
        ("groups", "<i8"),  # of combining layers: how many they read; channels of a slice's image, or 0; positions
        ("activation", "S16"),  # of layers with weights, and of sums and products
        ("clip", "<f8"),  # NaN: none
    ]
)
"""What the table holds of each layer."""

_NONE = (0, 0)  # windows and paddings of layers without any
_ONE = (1, 1)  # strides and dilations of layers without any

_COUNTS = ("inputs", "outputs", "window", "stride", "padding", "dilation", "groups")


def write_model_layers(group: h5py.Group, network: Network) -> None:
    """Write a network's layers into a file or a group of one. A bias that is one number or none becomes a vector."""
    nodes = network.nodes
    group["layers"] = np.array([_record(number, node) for number, node in enumerate(nodes, start=1)], LAYER)
    if any(node.sources != (number,) for number, node in enumerate(nodes)):
        group["sources"] = np.concatenate([node.sources for node in nodes]).astype("<i8")
    for number, layer in enumerate(network, start=1):
        for name, array in _arrays(layer).items():
            group[f"layer{number}/{name}"] = array.astype(array.dtype.newbyteorder("<"), copy=False)


def read_model_layers(source: Hdf5Source) -> tuple[Node, ...]:
    """Read the nodes that `write_model_layers` wrote, in this version or one before it."""
    table = source.vector("layers", LAYER)
    if not table.size:
        raise source.fault("layers is empty; a network needs at least one layer")
    nodes = []
    for number, sources in read_sources(source, table):
        layer = _layer(source, number, table[number - 1])
        try:
            nodes.append(Node(layer, sources))
        except InputError as error:
            raise source.fault(f"layer {number}: {error}") from error
    return tuple(nodes)


def activation_fields(number: int, activation: Activation) -> tuple[bytes, float]:
    """Return an activation's name and clip as tables hold them; a clip of NaN is none."""
    row = table_row(activation)
    clip = row.argument if row else None
    try:
        known = activation_named(activation.name, clip)
    except (InputError, UsageError):
        known = None
    if activation != known:
        raise UsageError(f"layer {number} has the activation {activation}, which HDF5 files cannot hold")
    return activation.name.encode("ascii"), math.nan if clip is None else clip


def read_activation(record: Any) -> Activation:
    """Return the activation that a table's record names."""
    clip = float(record["clip"])
    return activation_named(_text(record["activation"]), None if math.isnan(clip) else clip)


def _record(number: int, node: Node) -> tuple[object, ...]:
    layer = node.layer
    kind = _KIND_OF.get(type(layer))
    if kind is None:
        raise UsageError(f"layer {number} is {kind_of(layer)}, which HDF5 files cannot hold")
    activation = getattr(layer, "activation", None)
    fields = (b"", math.nan) if activation is None else activation_fields(number, activation)
    *sizes, groups = _sizes(layer)
    return (kind.encode("ascii"), *sizes, len(node.sources) if len(node.sources) > 1 else groups, *fields)


def _sizes(layer: Any) -> tuple[object, ...]:
    """Return inputs, outputs, entries, window, stride, padding, dilation and groups, as the table has them."""
    match layer:
        case FullyConnected():
            return layer.inputs, layer.outputs, layer.edges, _NONE, _ONE, _NONE, _ONE, 1
        case PerPosition():
            *sizes, _ = _sizes(layer.layer)
            return *sizes, layer.positions
        case LayerNorm():
            return layer.width, layer.width, 0, _NONE, _ONE, _NONE, _ONE, layer.positions
        case Conv2d():
            return layer.channels, layer.filters, layer.edges, *layer.sliding_window, layer.groups
        case Pool2d():
            return 0, 0, 0, *layer.sliding_window, 1
        case Slice():
            channels, *pixels = layer.image or (0, *_NONE)
            return layer.first, layer.last, 0, tuple(pixels), _ONE, (layer.axis, 0), _ONE, channels
        case ForeignLayer():
            return layer.inputs, layer.outputs, 0, _NONE, _ONE, _NONE, _ONE, len(layer.takes)
    return 0, 0, 0, _NONE, _ONE, _NONE, _ONE, 1


def _arrays(layer: Any) -> dict[str, Array]:
    """Return a layer's parameters under the names that they have in its group."""
    match layer:
        case SparseLinear(weights=weights):
            arrays = {"offsets": weights.indptr, "indices": weights.indices, "values": weights.values}
            return {**arrays, "bias": layer.bias_vector()}
        case Linear():
            return {"weights": layer.weights, "bias": layer.bias_vector()}
        case PerPosition():
            return _arrays(layer.layer)
        case LayerNorm():
            return {"scale": layer.scale, "shift": layer.shift, "epsilon": np.array([layer.epsilon])}
        case Conv2d():
            return {"weights": layer.weights.reshape(layer.filters, -1), "bias": layer.bias_vector()}
        case Pool2d():
            counts_padding = not isinstance(layer, AvgPool2d) or layer.counts_padding
            if layer.after != layer.sliding_window.padding or not counts_padding:
                return {"pooling": np.array([*layer.after, counts_padding], np.int64)}
        case ForeignLayer():
            operators = ",".join(layer.operators).encode()
            tensors = [
                (-1 if each.axis is None else each.axis, len(each.shape), *each.shape)
                for each in layer.takes + layer.gives
            ]
            return {
                "model": np.frombuffer(layer.model, np.uint8),
                "operators": np.frombuffer(operators, np.uint8),
                "tensors": np.array([int(layer.row_by_row), *chain.from_iterable(tensors)], np.int64),
            }
    return {}


def _layer(source: Hdf5Source, number: int, record: Any) -> Layer:
    for name in _COUNTS:
        if not ((record[name] >= 0) & (record[name] <= INDEX32_LIMIT)).all():
            raise source.fault(f"layer {number}: {name} of {record[name]} is invalid")
    kind = _text(record["kind"])
    if kind not in _KINDS:
        raise source.fault(f"layer {number} is of the kind {kind!r}; known: {', '.join(_KINDS)}")
    _, read = _KINDS[kind]
    try:
        return read(source, f"layer{number}", record)
    except FileFormatError:
        raise
    except SparseNNError as error:
        raise source.fault(f"layer {number}: {error}") from error


def _linear(source: Hdf5Source, place: str, record: Any) -> Layer:
    shape = int(record["inputs"]), int(record["outputs"])
    weights = _dense(source, place, shape, int(record["entries"]))
    return Linear(weights, _bias(source, place, shape[1]), read_activation(record))


def _sparse_linear(source: Hdf5Source, place: str, record: Any) -> Layer:
    shape, entries = (int(record["inputs"]), int(record["outputs"])), int(record["entries"])
    offsets = source.vector(f"{place}/offsets", "<i8", length=shape[1] + 1)
    indices = source.vector(f"{place}/indices", index_dtype(shape[0]), length=entries)
    values = source.vector(f"{place}/values", "<f4", "<f8")
    weights = CSC(shape, frozen(offsets), frozen(indices), frozen(values))
    return SparseLinear(weights, _bias(source, place, shape[1]), read_activation(record))


def _per_position(source: Hdf5Source, place: str, record: Any) -> Layer:
    read = _sparse_linear if source.has(f"{place}/offsets") else _linear
    return PerPosition(read(source, place, record), int(record["groups"]))  # type: ignore[arg-type]


def _layer_norm(source: Hdf5Source, place: str, record: Any) -> Layer:
    scale, shift = (
        frozen(source.vector(f"{place}/{name}", "<f4", length=int(record["inputs"]))) for name in ("scale", "shift")
    )
    epsilon = source.vector(f"{place}/epsilon", "<f8", length=1)
    return LayerNorm(scale, shift, float(epsilon[0]), int(record["groups"]))


def _conv2d(source: Hdf5Source, place: str, record: Any) -> Layer:
    channels, filters, groups = int(record["inputs"]), int(record["outputs"]), int(record["groups"])
    if not groups or channels % groups:
        raise source.fault(f"{place}: {channels} channels cannot be cut into {groups} groups")
    shape = (filters, channels // groups, *_pair(record["window"]))
    weights = _dense(source, place, (filters, math.prod(shape[1:])), int(record["entries"])).reshape(shape)
    stride, padding, dilation = (_pair(record[name]) for name in ("stride", "padding", "dilation"))
    bias = _bias(source, place, filters)
    return Conv2d(weights, bias, read_activation(record), stride, padding, dilation, groups)


def _pool(source: Hdf5Source, place: str, record: Any) -> Layer:
    window, stride, padding = (_pair(record[name]) for name in ("window", "stride", "padding"))
    *after, counts_padding = *padding, 1
    if source.has(f"{place}/pooling"):
        *after, counts_padding = source.vector(f"{place}/pooling", "<i8", length=3).tolist()
    if _text(record["kind"]) == MaxPool2d.name:
        return MaxPool2d(window, stride, padding, (after[0], after[1]))
    return AvgPool2d(window, stride, padding, (after[0], after[1]), bool(counts_padding))


def _slice(source: Hdf5Source, place: str, record: Any) -> Layer:
    image = int(record["groups"]), *_pair(record["window"])
    axis = int(record["padding"][0])
    return Slice(int(record["inputs"]), int(record["outputs"]), image if any(image) else None, axis)


def _foreign(source: Hdf5Source, place: str, record: Any) -> Layer:
    row_by_row, *numbers = source.vector(f"{place}/tensors", "<i8").tolist() or [0]
    tensors = []
    while len(numbers) > 1:
        axis, rank, *numbers = numbers
        shape, numbers = tuple(numbers[:rank]), numbers[max(rank, 0) :]
        if not (0 <= rank == len(shape) and -1 <= axis <= rank and all(0 < each <= INDEX32_LIMIT for each in shape)):
            raise source.fault(f"{place}/tensors: a tensor of shape {shape} with rows along axis {axis} is invalid")
        tensors.append(RowTensor(shape, None if axis < 0 else axis))
    count = int(record["groups"])
    if numbers or not 0 < count < len(tensors):
        raise source.fault(f"{place}/tensors: {len(tensors)} tensors, of which {count} are inputs")
    model, names = (source.vector(f"{place}/{name}", "|u1").tobytes() for name in ("model", "operators"))
    operators = tuple(names.decode("utf-8", "replace").split(","))
    return ForeignLayer(model, tuple(tensors[:count]), tuple(tensors[count:]), bool(row_by_row), operators)


def _dense(source: Hdf5Source, place: str, shape: tuple[int, int], entries: int) -> Array:
    weights = source.matrix(f"{place}/weights", "<f4")
    if weights.shape != shape or weights.size != entries:
        raise source.fault(f"{place}/weights has the shape {weights.shape}; declared are {shape} and {entries} entries")
    return frozen(weights)


def _bias(source: Hdf5Source, place: str, outputs: int) -> Array:
    return frozen(source.vector(f"{place}/bias", "<f4", length=outputs))


def _pair(numbers: Array) -> tuple[int, int]:
    return int(numbers[0]), int(numbers[1])


def _text(name: Any) -> str:
    return bytes(name).decode("ascii", "backslashreplace")


_KINDS: dict[str, tuple[type[Layer], Callable[[Hdf5Source, str, Any], Layer]]] = {
    "linear": (Linear, _linear),
    "sparse_linear": (SparseLinear, _sparse_linear),
    PerPosition.name: (PerPosition, _per_position),
    Conv2d.name: (Conv2d, _conv2d),
    MaxPool2d.name: (MaxPool2d, _pool),
    AvgPool2d.name: (AvgPool2d, _pool),
    Flatten.name: (Flatten, lambda source, place, record: Flatten()),
    Slice.name: (Slice, _slice),
    Softmax.name: (Softmax, lambda source, place, record: Softmax()),
    LogSoftmax.name: (LogSoftmax, lambda source, place, record: LogSoftmax()),
    LayerNorm.name: (LayerNorm, _layer_norm),
    Add.name: (Add, lambda source, place, record: Add(read_activation(record))),
    Multiply.name: (Multiply, lambda source, place, record: Multiply(read_activation(record))),
    Concatenate.name: (Concatenate, lambda source, place, record: Concatenate()),
    ForeignLayer.name: (ForeignLayer, _foreign),
}
"""Names of kinds of layers in tables, and functions that read them."""

_KIND_OF = {kind: name for name, (kind, _) in _KINDS.items()}
