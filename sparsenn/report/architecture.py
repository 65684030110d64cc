"""The layers of a network of images: what each is, what it gives, its parameters and its work."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sparsenn.layers import Conv2d, Linear, Pool2d, SparseLinear
from sparsenn.network import Layer, Network, multiply_adds
from sparsenn.report.quantities import count, percentage

__all__ = ["architecture_table", "layer_title", "parameters", "shape_text"]


def architecture_table(network: Network) -> Table:
    """Return the table by layer: what it is, shape of its outputs, parameters, multiply-adds of one input."""
    table = Table(title="layers", title_justify="left")
    table.add_column("layer", justify="right")
    table.add_column("what")
    for heading in ("outputs", "parameters", "multiply-adds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("activation")
    table.add_row("", "inputs", shape_text(network.shapes[0]), "", "", "")
    for number, layer in enumerate(network, start=1):
        work = multiply_adds(layer, network.shapes[number - 1])
        weighted = isinstance(layer, (Conv2d, Linear, SparseLinear))
        table.add_row(
            str(number),
            Text(layer_title(layer)),
            shape_text(network.shapes[number]),
            count(parameters(layer)) if weighted else "–",
            count(work) if weighted else "–",
            Text(str(layer.activation) if isinstance(layer, (Conv2d, Linear, SparseLinear)) else "–"),
        )
    total = sum(map(parameters, network))
    table.add_section()
    table.add_row("", "all", "", count(total), count(network.multiply_adds), "")
    return table


def layer_title(layer: Layer) -> str:
    """Return what a layer is in a few words: its kind, its window, and what is not as usual."""
    if isinstance(layer, Conv2d):
        stride, padding, dilation = layer.steps
        options = [*_steps(stride, (1, 1), padding), *_unusual("dilation", dilation, (1, 1))]
        parts = [f"convolution {_across(layer.kernel_size)}", *options, *_unusual("groups", layer.groups, 1)]
        return ", ".join(parts)
    if isinstance(layer, Pool2d):
        window, stride, padding = layer.steps
        kind = "max-pool" if layer.name == "max_pool2d" else "average pool"
        return ", ".join([f"{kind} {_across(window)}", *_steps(stride, window, padding)])
    if isinstance(layer, SparseLinear):
        return f"sparse, {percentage(layer.edges, layer.inputs * layer.outputs)} of the weights"
    return "dense" if isinstance(layer, Linear) else layer.name


def parameters(layer: Layer) -> int:
    """Return how many weights and biases a layer has; of a sparse one, weights that are stored."""
    if not isinstance(layer, (Conv2d, Linear, SparseLinear)):
        return 0
    biases = layer.filters if isinstance(layer, Conv2d) else layer.outputs
    return layer.edges + (0 if layer.bias is None else biases)


def shape_text(shape: tuple[int, ...]) -> str:
    """Return the shape of one input or output as it is read: channels × height × width, or a width."""
    return " × ".join(map(count, shape))


def _across(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]} × {sizes[1]}"


def _steps(stride: tuple[int, int], usual: tuple[int, int], padding: tuple[int, int]) -> list[str]:
    return [*_unusual("stride", stride, usual), *_unusual("padding", padding, (0, 0))]


def _unusual(name: str, value: int | tuple[int, int], usual: int | tuple[int, int]) -> list[str]:
    if value == usual:
        return []
    return [f"{name} {value if isinstance(value, int) else _across(value)}"]
