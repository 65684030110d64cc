"""The sparse fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sparsenn.errors import InputError, MatrixError
from sparsenn.formats import CSC, Array
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers.activation import ReLU
from sparsenn.layers.activation_names import check_activation
from sparsenn.layers.elementwise import FLOAT32_MAX, Activation
from sparsenn.layers.fully_connected import FullyConnected
from sparsenn.layers.linear import float32_bias
from sparsenn.printable import kind_of, one_line


@dataclass(frozen=True, eq=False)
class SparseLinear(Rebuilt, FullyConnected):
    """Y' = activation(Y · W + b) with sparse W.

    Every weight is checked, once for a matrix. Arrays are the layer's own and read-only: copies, unless those given
    are read-only with all memory that they are part of.

    Parameters
    ----------
    weights : CSC, shape (inputs, outputs)
        The weights; `from_scipy` takes SciPy's matrices.
    bias : float or array_like of shape (outputs,), optional
        One number for all outputs, or one for each; brought to float32. It is added to every element of the product,
        zero or not; with act(b) = 0 that equals adding it to the non-zeros alone.
    activation : Activation, default ReLU()
        Applied to each element.

    Raises
    ------
    ShapeError
        A bias vector whose length is not the number of outputs.
    InputError
        The weights are not a CSC matrix, a bias is not a finite float32 number, or the activation is none.
    MatrixError
        The weights are not sound (`CSC.validate`), or one is beyond float32.
    """

    weights: CSC
    bias: float | Array | None = None
    activation: Activation = field(default_factory=ReLU)

    __repr__ = one_line

    def __post_init__(self) -> None:
        check_activation(self.activation)
        if not isinstance(self.weights, CSC):
            raise InputError(
                f"the weights are {kind_of(self.weights)}; a layer takes a CSC matrix; "
                "SparseLinear.from_scipy takes SciPy's"
            )
        object.__setattr__(self, "weights", self.weights.checked())
        values = self.weights.values
        if values.dtype != np.float32 and values.size and max(-values.min(), values.max()) > FLOAT32_MAX:
            raise MatrixError(f"the weights exceed {FLOAT32_MAX:.4g}, the largest number of float32")
        bias = float32_bias(self.bias, self.outputs, "outputs")
        object.__setattr__(self, "bias", float(self.bias) if isinstance(bias, float) else bias)  # type: ignore[arg-type]

    @property
    def family(self) -> type[SparseLinear]:
        """The kind of layers that consecutive ones have to share to be run together."""
        return SparseLinear

    @cached_property
    def inputs(self) -> int:
        """Width of Y."""
        return self.weights.shape[0]

    @cached_property
    def outputs(self) -> int:
        """Width of Y'."""
        return self.weights.shape[1]

    @cached_property
    def edges(self) -> int:
        """Stored weights."""
        return self.weights.nnz

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self.weights.nbytes

    @classmethod
    def from_scipy(
        cls, weights: Any, bias: float | Array | None = None, activation: Activation | None = None
    ) -> SparseLinear:
        """Build from a SciPy sparse matrix.

        Parameters
        ----------
        weights : scipy.sparse matrix or array, shape (inputs, outputs)
            Any format; duplicates are summed. CuPy's are copied to the host.
        bias : float or array_like of shape (outputs,), optional
            As of the class.
        activation : Activation, optional
            `ReLU()` unless given.

        Returns
        -------
        SparseLinear
            The layer.
        """
        return cls(CSC.from_scipy(weights), bias, ReLU() if activation is None else activation)
