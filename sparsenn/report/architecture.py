"""The layers of a network of images: what each is, what it gives, its parameters and its work."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    ForeignLayer,
    ImageLayer,
    LayerNorm,
    Linear,
    MaxPool2d,
    PerPosition,
    Pool2d,
    SparseLinear,
)
from sparsenn.network import Network
from sparsenn.report.fitting import FittedTable, numbers
from sparsenn.report.quantities import count, percentage


def architecture_table(network: Network) -> Table:
    """Return the table by layer: what it is, shape of its outputs, parameters, multiply-adds of one input."""
    counted = numbers("outputs", "parameters", "multiply-adds")
    table = FittedTable(*numbers("layer"), "what", *counted, "activation", title="layers")
    table.add_row("", "inputs", shape_text(network.shapes[0]), "", "", "")
    for number, layer in enumerate(network, start=1):
        work = layer.multiply_adds((1, *network.input_shapes(number - 1)[0]))
        activation = getattr(layer, "activation", None)  # layers with weights have one
        counts = (count(layer.parameters), count(work)) if layer.parameters else ("–", "–")
        described = Text("–" if activation is None else str(activation))
        what = layer_title(layer)
        if isinstance(layer, Conv2d) and layer.nonzeros < layer.weights.size:
            what += f", {percentage(layer.nonzeros, layer.weights.size)} of the weights"
        table.add_row(str(number), Text(what), shape_text(network.shapes[number]), *counts, described)
    table.add_section()
    table.add_row("", "all", "", count(network.parameters), count(network.multiply_adds), "")
    return table


def layer_title(layer: Any) -> str:
    """Return what a layer is in a few words: its kind, its window, and what is not as usual."""
    match layer:
        case SparseLinear():
            return f"sparse, {percentage(layer.edges, layer.inputs * layer.outputs)} of the weights"
        case Linear():
            return "dense"
        case ForeignLayer():
            return f"ONNX Runtime: {', '.join(layer.operators)}"
        case PerPosition():
            return f"{layer_title(layer.layer)}, at {count(layer.positions)} positions"
        case LayerNorm():
            positions = f", at {count(layer.positions)} positions" if layer.positions > 1 else ""
            return f"layer norm of {count(layer.width)} numbers{positions}"
        case Conv2d():
            size, stride, padding, dilation = layer.sliding_window
            options = [*_stride(stride, (1, 1), padding), *_unusual("dilation", dilation, (1, 1))]
            return ", ".join([f"convolution {_across(size)}", *options, *_unusual("groups", layer.groups, 1)])
        case MaxPool2d():
            return _pool_title("max-pool", layer)
        case AvgPool2d():
            return _pool_title("average pool", layer)
        case ImageLayer():
            return layer.name
    return type(layer).__name__


def _pool_title(kind: str, layer: Pool2d) -> str:
    window, stride, padding, _ = layer.sliding_window
    options = [*_stride(stride, window, padding), *_unusual("padding after", layer.after, padding)]
    counts = not layer.is_padded or not isinstance(layer, AvgPool2d) or layer.counts_padding
    return ", ".join([f"{kind} {_across(window)}", *options, *([] if counts else ["padding left out"])])


def shape_text(shape: tuple[int, ...]) -> str:
    """Return the shape of one input or output as it is read: channels × height × width, or a width."""
    return " × ".join(map(count, shape))


def _across(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]} × {sizes[1]}"


def _stride(stride: tuple[int, int], usual: tuple[int, int], padding: tuple[int, int]) -> list[str]:
    return [*_unusual("stride", stride, usual), *_unusual("padding", padding, (0, 0))]


def _unusual(name: str, value: int | tuple[int, int], usual: int | tuple[int, int]) -> list[str]:
    if value == usual:
        return []
    return [f"{name} {value if isinstance(value, int) else _across(value)}"]
