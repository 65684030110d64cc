"""The dense fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array
from sparsenn.layers.activation import Activation, ReLU, check_activation
from sparsenn.layers.fully_connected import FullyConnected

__all__ = ["Linear", "float32_parameters"]


@dataclass(frozen=True, eq=False)
class Linear(FullyConnected):
    """Y' = activation(Y · W + b) with dense W.

    Parameters
    ----------
    weights : float32 of shape (inputs, outputs), row-major; anything that becomes that without loss of shape is taken.
    bias : None, one number for all outputs, or a float32 vector of shape (outputs,).
    activation : applied to each element; `ReLU()` unless given.

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

    def __post_init__(self) -> None:
        check_activation(self.activation)
        object.__setattr__(self, "weights", float32_parameters(self.weights, "weights hold"))
        if self.weights.ndim != 2 or 0 in self.weights.shape:
            raise ShapeError(f"the weights have shape {self.weights.shape}; a layer takes (inputs, outputs)")
        if self.bias is None:
            return
        bias = float32_parameters(self.bias, "bias holds")
        if bias.ndim and bias.shape != (self.outputs,):
            raise ShapeError(f"the bias has shape {bias.shape}; {self.outputs} outputs take ({self.outputs},)")
        object.__setattr__(self, "bias", bias if bias.ndim else float(bias))

    @property
    def family(self) -> type[Linear]:
        """What consecutive layers share that are run together."""
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
    """Return parameters as a row-major float32 array, or an array of no dimension for one number.

    Raises
    ------
    InputError
        One is not a finite float32 number; the message begins with `what`.
    """
    try:
        with np.errstate(over="ignore"):
            dense = np.ascontiguousarray if np.ndim(values) else np.asarray
            array: Array = dense(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        found = type(values).__name__
        raise InputError(f"the {what} no array of numbers: a dense one is needed, not a {found}") from error
    if not np.isfinite(array).all():
        raise InputError(f"the {what} NaN, infinity, or a number beyond float32")
    return array
