"""The dense fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array
from sparsenn.formats.arrays import frozen, is_own, real_numbers
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.activation import ReLU
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.fully_connected import FullyConnected
from sparsenn.printable import one_line


@dataclass(frozen=True, eq=False)
class Linear(Rebuilt, FullyConnected):
    """Y' = activation(Y · W + b) with dense W.

    Arrays are the layer's own and read-only: copies, unless the arguments are read-only with all memory that they are
    part of.

    Parameters
    ----------
    weights : array_like, shape (inputs, outputs)
        Brought to float32, row by row in memory.
    bias : float or array_like of shape (outputs,), optional
        One number for all outputs, or one for each; brought to float32.
    activation : Activation, default ReLU()
        Applied to each element.

    Raises
    ------
    ShapeError
        The weights are not a matrix with at least one row and one column, or the bias does not fit them.
    InputError
        A weight or a bias is not a finite float32 number, or the activation is none.
    """

    weights: Array
    bias: float | Array | None = None
    activation: Activation = field(default_factory=ReLU)

    __repr__ = one_line

    def __post_init__(self) -> None:
        check_activation(self.activation)
        object.__setattr__(self, "weights", float32_parameters(self.weights, "weights hold"))
        if self.weights.ndim != 2 or 0 in self.weights.shape:
            raise ShapeError(f"the weights have shape {self.weights.shape}; a layer takes (inputs, outputs)")
        object.__setattr__(self, "bias", float32_bias(self.bias, self.outputs, "outputs"))

    @property
    def family(self) -> type[Linear]:
        """The kind of layers that consecutive ones have to share to be run together."""
        return Linear

    @property
    def inputs(self) -> int:
        """Width of Y."""
        return int(self.weights.shape[0])

    @property
    def outputs(self) -> int:
        """Width of Y'."""
        return int(self.weights.shape[1])

    @property
    def edges(self) -> int:
        """Weights, zero or not."""
        return int(self.weights.size)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return int(self.weights.nbytes)


def float32_parameters(values: float | Array, what: str) -> Array:
    """Return parameters as a row-major float32 array, or an array of no dimension for one number; read-only.

    It is a copy, unless the values are such an array that nobody else writes to.
    """
    if type(values) is np.ndarray and values.dtype == np.float32 and values.flags.c_contiguous and is_own(values):
        array: Array = values
    else:
        array = _converted(values, what)
    if not np.isfinite(array).all():
        raise InputError(f"the {what} NaN, infinity, or a number beyond float32")
    return frozen(array)


def _converted(values: Any, what: str) -> Array:
    numbers = real_numbers(values, what)
    with np.errstate(all="ignore"):
        return np.array(numbers, np.float32, order="C")


def float32_bias(bias: float | Array | None, outputs: int, name: str) -> float | Array | None:
    """Return a bias as a layer keeps it: None, a number, or a read-only float32 vector of shape (outputs,)."""
    if bias is None:
        return None
    array = float32_parameters(bias, "bias holds")
    if array.ndim and array.shape != (outputs,):
        raise ShapeError(f"the bias has shape {array.shape}; {outputs} {name} take ({outputs},)")
    return array if array.ndim else float(array)
