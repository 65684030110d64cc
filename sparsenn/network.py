"""Network: an ordered, shape-checked tuple of layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Activation, Linear, SparseLinear

__all__ = ["Layer", "Network"]

Layer: TypeAlias = SparseLinear | Linear
Kind = TypeVar("Kind", SparseLinear, Linear)
"""Any layer that a network can hold."""


@dataclass(frozen=True, eq=False)
class Network:
    """Layers applied one after the other, each one's outputs the next one's inputs.

    Raises
    ------
    ShapeError
        There is no layer, or two neighbours' widths differ; the message names the layer (1-based).
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ShapeError("a network needs at least one layer")
        for number, (before, after) in enumerate(zip(self.layers, self.layers[1:], strict=False), start=2):
            if before.outputs != after.inputs:
                raise ShapeError(
                    f"layer {number} takes {after.inputs} inputs, but layer {number - 1} gives {before.outputs}"
                )

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    @property
    def inputs(self) -> int:
        """Width of the network's input."""
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        """Width of the network's output."""
        return self.layers[-1].outputs

    @property
    def edges(self) -> int:
        """Stored weights of all layers."""
        return sum(layer.edges for layer in self.layers)

    @property
    def widest(self) -> int:
        """The largest width of any input or output."""
        return max(self.inputs, *(layer.outputs for layer in self.layers))

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return the (first, last) ranges of consecutive layers of one kind, counted from 0, `last` excluded."""
        kinds = [isinstance(layer, Linear) for layer in self.layers]
        starts = [0, *(number for number in range(1, len(kinds)) if kinds[number] != kinds[number - 1])]
        return tuple(pairwise((*starts, len(kinds))))

    def sparse_layers(self, first: int = 0, last: int | None = None) -> tuple[SparseLinear, ...]:
        """Return the layers `first` to `last`, counted from 0, `last` excluded; all of them must be sparse.

        Raises
        ------
        UsageError
            A layer is dense; the message names it (1-based).
        """
        return self._all_of(SparseLinear, "sparse", first, last)

    def dense_layers(self, first: int = 0, last: int | None = None) -> tuple[Linear, ...]:
        """Return the layers `first` to `last`, counted from 0, `last` excluded; all of them must be dense.

        Raises
        ------
        UsageError
            A layer is sparse; the message names it (1-based).
        """
        return self._all_of(Linear, "dense", first, last)

    def _all_of(self, kind: type[Kind], name: str, first: int, last: int | None) -> tuple[Kind, ...]:
        """Return layers that must all be of one kind."""
        found = []
        for number, layer in enumerate(self.layers[first:last], start=first + 1):
            if not isinstance(layer, kind):
                other = "dense" if isinstance(layer, Linear) else "sparse"
                raise UsageError(f"layer {number} is {other}; this takes {name} layers only")
            found.append(layer)
        return tuple(found)

    def prefix(self, layers: int) -> Network:
        """Return the network of the first `layers` layers.

        Raises
        ------
        UsageError
            The network has fewer layers, or `layers` is not positive.
        """
        if not 1 <= layers <= len(self):
            raise UsageError(f"cannot take {layers} layers of a network that has {len(self)}")
        return Network(self.layers[:layers])

    def with_bias(self, bias: float) -> Network:
        """Return the same network with one bias for all layers and outputs."""
        return Network(tuple(replace(layer, bias=bias) for layer in self.layers))

    @classmethod
    def from_scipy(
        cls, weights: Iterable[Any], bias: float | Array | None = None, activation: Activation | None = None
    ) -> Network:
        """Build from SciPy sparse matrices of shape (inputs, outputs), one a layer, sharing bias and activation.

        Messages name the layer (1-based).

        Raises
        ------
        ShapeError
            Neighbouring widths differ, or a bias vector does not fit every layer.
        MatrixError
            A matrix is not one of SciPy's, or holds a value that is not a finite real number.
        InputError
            A bias is not finite.
        """
        layers: list[Layer] = []
        for number, matrix in enumerate(weights, start=1):
            try:
                layers.append(SparseLinear.from_scipy(matrix, bias, activation))
            except InputError as error:
                raise type(error)(f"layer {number}: {error}") from error
        return cls(tuple(layers))
