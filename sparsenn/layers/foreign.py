"""Layers of another program's graph that this package has none for, and that ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import ClassVar, NamedTuple

from sparsenn.errors import ShapeError
from sparsenn.formats.named_shapes import NamedShapes
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.combining import CombiningLayer
from sparsenn.layers.images import Image

AS_FLOAT = "/float32"
"""The end of the name of a graph's input or output that stands for one of another type."""


class RowTensor(NamedTuple):
    """A tensor of several rows.

    Parameters
    ----------
    shape : of one row, without the axis of rows.
    axis : of rows; None where a tensor is one row.
    """

    shape: tuple[int, ...]
    axis: int | None = 0

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return prod(self.shape)

    @property
    def image(self) -> Image | None:
        """Channels, height and width of rows that are images, of height 1 where they have two axes; else None."""
        if self.axis != 0 or len(self.shape) not in (2, 3):
            return None
        channels, *height, width = self.shape
        return channels, height[0] if height else 1, width


@dataclass(frozen=True, eq=False)
class ForeignLayer(Rebuilt, CombiningLayer):
    """Y' holds the outputs of an ONNX graph, which ONNX Runtime computes on the host, one after the other.

    Parameters
    ----------
    model : bytes
        A serialised `onnx.ModelProto`. Its inputs and outputs are tensors of float32, whose rows are independent.
    takes : tuple of RowTensor
        The inputs, in the graph's order: what the layer reads, each row flattened, its first axis slowest.
    gives : tuple of RowTensor
        The outputs, likewise.
    row_by_row : bool, default False
        Whether the graph takes one row at a time.
    operators : tuple of str
        Names of the graph's operators, for plans and messages.
    """

    name: ClassVar[str] = "foreign"
    least_sources: ClassVar[int] = 1
    model: bytes
    takes: tuple[RowTensor, ...]
    gives: tuple[RowTensor, ...]
    row_by_row: bool = False
    operators: tuple[str, ...] = ()

    @property
    def inputs(self) -> int:
        """Numbers of a row of the first input."""
        return self.takes[0].width

    @property
    def outputs(self) -> int:
        """Numbers of a row of all outputs."""
        return sum(each.width for each in self.gives)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the graph, most of which are weights."""
        return len(self.model)

    @cached_property
    def takes_integers(self) -> tuple[bool, ...]:
        """Whether an input stands for integers, which the graph makes of it again; for each."""
        from onnx import ModelProto, TensorProto

        graph = ModelProto.FromString(self.model).graph
        floats = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
        casts = {node.input[0]: node.attribute[0].i for node in graph.node if node.op_type == "Cast"}
        # a graph may also make integers of an input that was float32 before
        return tuple(
            value.name.endswith(AS_FLOAT) and casts.get(value.name, floats[0]) not in floats for value in graph.input
        )

    def _combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of a single output that is an image, and otherwise the numbers of all outputs."""
        if [prod(shape) for shape in shapes] != [each.width for each in self.takes]:
            wanted = ", ".join(f"{each.width:,}" for each in self.takes)
            raise ShapeError(f"it takes rows of {wanted} numbers; they have {[prod(shape) for shape in shapes]}")
        image = self.gives[0].image if len(self.gives) == 1 else None
        return image or (self.outputs,)

    def __repr__(self) -> str:
        return f"ForeignLayer({len(self.model):,} bytes, operators={self.operators})"


@dataclass(frozen=True, eq=False)
class ForeignGraph:
    """The ONNX graph that a whole network was imported from.

    Parameters
    ----------
    model : a serialised `onnx.ModelProto`. Its inputs and outputs are tensors of float32, whose first axis is that of
        rows.
    inputs, outputs : names in the graph, and shapes of a row, in the order in which the network's rows hold them.
    row_by_row : whether the graph takes one row at a time.
    """

    model: bytes = field(repr=False)
    inputs: NamedShapes
    outputs: NamedShapes
    row_by_row: bool = False
