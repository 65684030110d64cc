"""Branches of a chain: layers that keep what they are given, and layers that join it with what came of it since.

A network is a chain, and what is kept a stack. A residual block is `Keep, A…, Add`; two branches of what a layer gives,
A and B, are `Keep, A…, Keep, Recall(2), B…, Add`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats.arrays import size
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.activation import Identity
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.images import ImageLayer

__all__ = ["Add", "Concatenate", "Join", "Keep", "Recall", "StackLayer"]

Flow = TypeVar("Flow")
"""What goes through a network: the numbers of rows, or the shape of one of them."""


class StackLayer(ImageLayer):
    """A layer that changes what is kept; it takes images as well as rows of features."""

    def move(self, current: Flow, kept: tuple[Flow, ...]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """Return what the layer gives, and what is kept after it.

        Parameters
        ----------
        current : object
            What the layer is given: the numbers of rows, or the shape of one of them.
        kept : tuple
            What is kept before it, the latest last.

        Returns
        -------
        given : tuple
            What the layer gives; of a `Join` that which it joins.
        kept : tuple
            What is kept after it, the latest last.

        Raises
        ------
        ShapeError
            Too little is kept.
        """
        return self._moved(current, kept)

    @abstractmethod
    def _moved(self, current: Flow, kept: tuple[Flow, ...]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """Return what `move` does."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse: what a layer gives depends on what is kept."""
        raise ShapeError(f"what {self.name} gives depends on what is kept; Network.shapes has it")

    def multiply_adds(self, input_shape: tuple[int, ...]) -> int:
        """Return 0: nothing is multiplied."""
        return 0


@dataclass(frozen=True)
class Keep(StackLayer):
    """Y' = Y, which is also put on the stack of what is kept."""

    name = "keep"

    @property
    def keeps_zero_rows(self) -> bool:
        """Numbers stay what they are."""
        return True

    def _moved(self, current: Flow, kept: tuple[Flow, ...]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """Put on the stack what the layer is given."""
        return (current,), (*kept, current)


@dataclass(frozen=True)
class Recall(Rebuilt, StackLayer):
    """Y' is what was kept; Y is dropped.

    Parameters
    ----------
    depth : int, default 1
        Which of what is kept: 1 for what was kept last.
    again : bool, default False
        Whether it stays kept.

    Raises
    ------
    UsageError
        The depth is no integer of at least 1.
    """

    name: ClassVar[str] = "recall"
    depth: int = 1
    again: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", size(self.depth, "depth"))
        object.__setattr__(self, "again", bool(self.again))

    @property
    def keeps_zero_rows(self) -> bool:
        """What was kept need not be zero."""
        return False

    def _moved(self, current: Flow, kept: tuple[Flow, ...]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """Take what is kept in the place of what the layer is given."""
        place = len(_needed(self, kept, self.depth)) - self.depth
        return (kept[place],), kept if self.again else (*kept[:place], *kept[place + 1 :])


@dataclass(frozen=True)
class Join(Rebuilt, StackLayer):
    """What `Add` and `Concatenate` share: they take from the stack, and join it with what they are given.

    Parameters
    ----------
    count : int, default 2
        How many are joined, at least 2: those kept last, the oldest first, and Y.

    Raises
    ------
    UsageError
        The count is no integer of at least 2.
    """

    count: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", size(self.count, "count"))
        if self.count < 2:
            raise UsageError(f"a count of {self.count}; it must join two or more")

    @property
    def keeps_zero_rows(self) -> bool:
        """What was kept need not be zero."""
        return False

    def _moved(self, current: Flow, kept: tuple[Flow, ...]) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """Take the top of the stack, to be joined with what the layer is given."""
        others = self.count - 1
        kept = _needed(self, kept, others)
        return (*kept[-others:], current), kept[:-others]

    def joined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of what is joined.

        Parameters
        ----------
        shapes : sequence of tuple of int
            Of one input of each.

        Returns
        -------
        tuple of int
            That of what is joined.

        Raises
        ------
        ShapeError
            They do not go together.
        """
        return self._joined_shape(shapes)

    @abstractmethod
    def _joined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return what `joined_shape` does."""


@dataclass(frozen=True)
class Add(Join):
    """Y' = activation(Y₁ + Y₂ + …), from left to right, of what was kept and Y, all of one shape.

    Parameters
    ----------
    count : int, default 2
        How many are added.
    activation : Activation, default Identity()
        What is applied to the sum.

    Raises
    ------
    UsageError
        The count is no integer of at least 2.
    InputError
        The activation is none.
    """

    name = "add"
    activation: Activation = field(default_factory=Identity)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_activation(self.activation)

    def _joined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape that all have."""
        if len(set(shapes)) > 1:
            raise ShapeError(f"it adds {_listed(shapes)}, which are not of one shape")
        return shapes[0]


@dataclass(frozen=True)
class Concatenate(Join):
    """Y' has the features, or the channels of the images, of what was kept and of Y, one after the other.

    Parameters
    ----------
    count : int, default 2
        How many are put together.

    Raises
    ------
    UsageError
        The count is no integer of at least 2.
    """

    name: ClassVar[str] = "concatenate"

    def _joined_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of all features, or of all channels."""
        if len({shape[1:] for shape in shapes}) > 1:
            raise ShapeError(f"it concatenates {_listed(shapes)}, which differ in more than features or channels")
        return sum(shape[0] for shape in shapes), *shapes[0][1:]


def _needed(layer: StackLayer, kept: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return what is kept, which must be so many at least."""
    if len(kept) < count:
        raise ShapeError(f"{layer.name} takes {count} of what is kept, and {len(kept)} is; Keep comes before it")
    return kept


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(map(str, shape)) for shape in shapes)
