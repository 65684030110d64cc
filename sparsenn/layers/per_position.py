"""A fully connected layer along the last axis of rows of several axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.fully_connected import FullyConnected
from sparsenn.layers.images import ImageLayer, integers
from sparsenn.printable import kind_of, one_line


@dataclass(frozen=True, eq=False)
class PerPosition(Rebuilt, ImageLayer):
    """Y' holds, position by position, what a fully connected layer makes of Y there.

    A row of Y is (positions, inputs of the layer), such as the tokens of a sentence, or the patches of an image,
    flattened.

    Parameters
    ----------
    layer : SparseLinear or Linear
        The layer, the same for all positions.
    positions : int
        Positions of a row.

    Raises
    ------
    InputError
        The layer is not fully connected.
    UsageError
        `positions` is not an integer of at least 1.
    """

    name: ClassVar[str] = "per_position"
    layer: FullyConnected
    positions: int

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.layer, FullyConnected):
            raise InputError(
                f"{kind_of(self.layer)} is no layer that positions can share; give a Linear or SparseLinear"
            )
        positions = integers(self.positions, 1)
        if positions is None or len(positions) != 1:
            raise UsageError(f"positions={self.positions!r} is not an integer of at least 1")
        object.__setattr__(self, "positions", positions[0])

    @property
    def activation(self) -> Activation:
        """The activation of the layer."""
        return self.layer.activation

    @property
    def inputs(self) -> int:
        """Numbers of a row of Y."""
        return self.positions * self.layer.inputs

    @property
    def outputs(self) -> int:
        """Numbers of a row of Y'."""
        return self.positions * self.layer.outputs

    @property
    def edges(self) -> int:
        """Stored weights, which all positions share."""
        return self.layer.edges

    @property
    def parameters(self) -> int:
        """Stored weights, and biases."""
        return self.layer.parameters

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self.layer.weight_bytes

    @property
    def keeps_zero_rows(self) -> bool:
        """Whether a row of zeros gives a row of zeros."""
        return self.layer.keeps_zero_rows

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) < 2 or prod(input_shape[1:]) != self.inputs:
            raise ShapeError(
                f"the layer takes rows of {self.positions:,} positions of {self.layer.inputs:,} numbers; its input has "
                f"shape {input_shape}"
            )
        return input_shape[0], self.outputs

    @property
    def _uses(self) -> int:
        return self.positions


def connected_layer(layer: Any) -> Any:
    """Return the layer that positions share; a layer of another kind as it is."""
    return layer.layer if isinstance(layer, PerPosition) else layer


def positions_of(layer: Any) -> int:
    """Return for how many positions of a row a layer runs: one, unless it is a `PerPosition`."""
    return layer.positions if isinstance(layer, PerPosition) else 1


def replace_fields(layer: Any, **changes: Any) -> Any:
    """Return a layer with other fields, as `dataclasses.replace` does; those of a `PerPosition` are its layer's."""
    if isinstance(layer, PerPosition):
        return replace(layer, layer=replace_fields(layer.layer, **changes))
    return replace(layer, **changes)
