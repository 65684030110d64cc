"""What fully connected layers share, whether their weights are sparse or dense."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.layers.elementwise import Activation
from sparsenn.layers.layer import BaseLayer


class FullyConnected(BaseLayer):
    """Y' = activation(Y · W + b), with weights of shape (inputs, outputs).

    Attributes
    ----------
    bias : None, one number for all outputs, or a float32 vector of shape (outputs,).
    activation : applied to each element.
    """

    bias: float | Array | None
    activation: Activation

    @property
    @abstractmethod
    def inputs(self) -> int:
        """Width of Y."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of Y'."""

    @property
    def parameters(self) -> int:
        """Stored weights, and biases."""
        return self.edges + (0 if self.bias is None else self.outputs)

    @property
    def keeps_zero_rows(self) -> bool:
        """Whether an input row of zeros gives an output row of zeros: act(b) = 0 for every output."""
        bias = np.asarray(0.0 if self.bias is None else self.bias, dtype=np.float32)
        return not bool(self.activation(bias).any())

    def bias_vector(self) -> Array:
        """Return the bias as float32 of shape (outputs,); zeros where there is none."""
        return np.broadcast_to(np.float32(0.0 if self.bias is None else self.bias), (self.outputs,)).astype(np.float32)

    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) != 2 or input_shape[1] != self.inputs:
            raise ShapeError(f"the layer takes (rows, {self.inputs}); its input has shape {input_shape}")
        return input_shape[0], self.outputs
