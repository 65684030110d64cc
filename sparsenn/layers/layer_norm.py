"""Layer normalisation: the numbers of each position get mean 0 and variance 1, then a scale and a shift."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_number
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.elementwise import FLOAT32_MAX
from sparsenn.layers.images import ImageLayer, integers
from sparsenn.layers.linear import float32_parameters
from sparsenn.printable import one_line


@dataclass(frozen=True, eq=False)
class LayerNorm(Rebuilt, ImageLayer):
    """Y' = (Y - mean) / sqrt(variance + epsilon) · scale + shift, with mean and variance of the numbers of a position.

    A row of Y is (positions, numbers of a position), flattened; it has one position unless there are more, such as the
    tokens of a sentence. Numbers of an image may be one position.

    Parameters
    ----------
    scale, shift : array_like of shape (numbers of a position,)
        Brought to float32.
    epsilon : float, default 1e-5
        What is added to the variance, which divides by the number of numbers.
    positions : int, default 1
        Positions of a row.

    Raises
    ------
    ShapeError
        Scale and shift are not vectors of one length, at least 1.
    InputError
        A number of these is not a finite float32 number, or epsilon is below 0.
    UsageError
        `positions` is not an integer of at least 1.
    """

    name: ClassVar[str] = "layer_norm"
    scale: Array
    shift: Array
    epsilon: float = 1e-5
    positions: int = 1

    __repr__ = one_line

    def __post_init__(self) -> None:
        for name in ("scale", "shift"):
            object.__setattr__(self, name, float32_parameters(getattr(self, name), f"{name} holds"))
        if self.scale.ndim != 1 or not self.scale.size or self.shift.shape != self.scale.shape:
            raise ShapeError(
                f"the scale has shape {self.scale.shape}, and the shift {self.shift.shape}; a layer takes two vectors "
                "of as many numbers as a position has"
            )
        epsilon = real_number(self.epsilon, "the epsilon", InputError)
        if not 0 <= epsilon <= FLOAT32_MAX:
            raise InputError(f"an epsilon of {epsilon} is not in 0 to {FLOAT32_MAX:.4g}")
        object.__setattr__(self, "epsilon", epsilon)
        positions = integers(self.positions, 1)
        if positions is None or len(positions) != 1:
            raise UsageError(f"positions={self.positions!r} is not an integer of at least 1")
        object.__setattr__(self, "positions", positions[0])

    @property
    def width(self) -> int:
        """Numbers of a position."""
        return int(self.scale.size)

    @property
    def inputs(self) -> int:
        """Numbers of a row of Y."""
        return self.positions * self.width

    @property
    def outputs(self) -> int:
        """Numbers of a row of Y'."""
        return self.inputs

    @property
    def parameters(self) -> int:
        """Scales and shifts, which all positions share."""
        return 2 * self.width

    @property
    def weight_bytes(self) -> int:
        """Memory that scales and shifts take."""
        return int(self.scale.nbytes + self.shift.nbytes)

    @property
    def keeps_zero_rows(self) -> bool:
        """Whether a row of zeros gives a row of zeros."""
        return self.epsilon > 0 and not self.shift.any()

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) < 2 or prod(input_shape[1:]) != self.inputs:
            raise ShapeError(
                f"the layer takes rows of {self.positions:,} positions of {self.width:,} numbers; its input has shape "
                f"{input_shape}"
            )
        return input_shape
