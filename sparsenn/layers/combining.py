"""Layers that combine what several nodes of a network give: sums, products and concatenations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from sparsenn.errors import ShapeError
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.activation import Identity
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.images import ImageLayer


class CombiningLayer(ImageLayer):
    """A layer that reads several nodes of a network, which give images, or rows of features."""

    least_sources: ClassVar[int] = 2

    @property
    def keeps_zero_rows(self) -> bool:
        """One of the rows that are combined may be zero where another is not."""
        return False

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        raise ShapeError(f"what {self.name} gives depends on all that it reads; Network.shapes has it")

    def multiply_adds(self, input_shape: tuple[int, ...]) -> int:
        """Return 0: the layer has no weights."""
        return 0

    def combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of what the layer gives for one input.

        Parameters
        ----------
        shapes : sequence of tuple of int
            Of what it reads: (channels, height, width) or (width,) each.

        Returns
        -------
        tuple of int
            The same of what it gives.
        """
        return self._combined_shape(shapes)

    @abstractmethod
    def _combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return what `combined_shape` does."""


@dataclass(frozen=True)
class Add(Rebuilt, CombiningLayer):
    """Y' = activation(Y₁ + Y₂ + …), from left to right, all of one shape.

    Parameters
    ----------
    activation : Activation, default Identity()
        What is applied to the sum.

    Raises
    ------
    InputError
        The activation is none.
    """

    name: ClassVar[str] = "add"
    activation: Activation = field(default_factory=Identity)

    def __post_init__(self) -> None:
        check_activation(self.activation)

    def _combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len(set(shapes)) > 1:
            raise ShapeError(f"it adds {_listed(shapes)}, which are not of one shape")
        return shapes[0]


@dataclass(frozen=True)
class Multiply(Rebuilt, CombiningLayer):
    """Y' = activation(Y₁ · Y₂ · …), number by number, from left to right.

    All are of one shape. Of images, some may be (channels, 1, 1): a factor for each channel of the others.

    Parameters
    ----------
    activation : Activation, default Identity()
        What is applied to the product.

    Raises
    ------
    InputError
        The activation is none.
    """

    name: ClassVar[str] = "multiply"
    activation: Activation = field(default_factory=Identity)

    def __post_init__(self) -> None:
        check_activation(self.activation)

    def _combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        largest = max(shapes, key=prod)
        factors = (*largest[:1], *[1] * (len(largest) - 1))
        if not set(shapes) <= {largest, factors}:
            raise ShapeError(
                f"it multiplies {_listed(shapes)}, which are not of one shape; of images, some may have one pixel: a "
                "factor for each channel"
            )
        return largest


@dataclass(frozen=True)
class Concatenate(Rebuilt, CombiningLayer):
    """Y' has the features, or the channels of the images, of all that it reads, one after the other."""

    name: ClassVar[str] = "concatenate"

    def _combined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len({shape[1:] for shape in shapes}) > 1:
            raise ShapeError(f"it concatenates {_listed(shapes)}, which differ in more than features or channels")
        return sum(shape[0] for shape in shapes), *shapes[0][1:]


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(map(str, shape)) for shape in shapes)
