"""How the program that a network comes from holds one input, where that is not a row as the network takes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats.rebuilt import Rebuilt

_MOST_AXES = 32


@dataclass(frozen=True)
class InputLayout(Rebuilt):
    """The shape of one input, the order of its axes and the names of its numbers, as another program's model has them.

    Parameters
    ----------
    shape : tuple of int, optional
        Of one input, without the axis of rows; None where the model flattens inputs of any shape, or takes rows.
    channels_last : bool, default False
        Whether the last axis counts the channels, which are the first axis of what the network takes.
    names : tuple of str, optional
        What the numbers of a row are called; None where they have no names.
    flattens : bool, default False
        Whether inputs of any shape are flattened, first axis slowest.

    Raises
    ------
    ShapeError
        The shape is not up to 32 sizes of at least 1, or there are more or fewer names than numbers.
    UsageError
        The names are not different texts, or a switch is neither True nor False.
    """

    shape: tuple[int, ...] | None = None
    channels_last: bool = False
    names: tuple[str, ...] | None = None
    flattens: bool = False

    def __post_init__(self) -> None:
        if self.shape is not None:
            sizes = tuple(self.shape)
            if not 1 <= len(sizes) <= _MOST_AXES or any(type(size) is not int or size < 1 for size in sizes):
                raise ShapeError(f"one input has the shape {sizes}; integers of at least 1 are needed")
            object.__setattr__(self, "shape", sizes)
        if not (isinstance(self.channels_last, bool) and isinstance(self.flattens, bool)):
            raise UsageError("channels_last and flattens are True or False")
        if self.names is not None:
            names = tuple(self.names)
            if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise UsageError("the names of a row's numbers are not different texts")
            object.__setattr__(self, "names", names)

    def check_width(self, width: int) -> None:
        """Refuse rows of another width.

        Parameters
        ----------
        width : int
            Numbers of a row.

        Raises
        ------
        ShapeError
            The shape holds more or fewer, or there is not a name for each.
        """
        if self.shape is not None and prod(self.shape) != width:
            raise ShapeError(f"one input of shape {self.shape} does not hold the {width:,} numbers of a row")
        if self.names is not None and len(self.names) != width:
            raise ShapeError(f"there are {len(self.names):,} names for the {width:,} numbers of a row")

    def holds(self, shape: tuple[int, ...], width: int) -> bool:
        """Return whether one input is held in this shape; axes of size 1 do not count.

        Parameters
        ----------
        shape : tuple of int
            Of one input.
        width : int
            Numbers of a row.

        Returns
        -------
        bool
            Whether it is.
        """
        if self.shape is None:
            return self.flattens and prod(shape) == width
        return _long_axes(shape) == _long_axes(self.shape)

    def matrix(self, batch: Any) -> Any:
        """Return a batch of inputs as rows, in the order in which a network takes their numbers.

        Parameters
        ----------
        batch : array, shape (rows, ...)
            Of NumPy, CuPy or a library like these.

        Returns
        -------
        array, shape (rows, numbers)
            A view where that is possible.
        """
        rows = len(batch)
        if self.channels_last and self.shape is not None:
            batch = batch.reshape(rows, prod(self.shape[:-1]), self.shape[-1]).transpose(0, 2, 1)
        return batch.reshape(rows, prod(batch.shape[1:]))


def _long_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
