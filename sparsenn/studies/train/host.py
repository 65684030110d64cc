"""Training on the CPU, in float32, by this package's own matrix products.

The same order of rows gives the same bits, however many threads there are: every number is the sum of its terms in one
fixed order.
"""

from __future__ import annotations

import numpy as np

from sparsenn.backends.cpu.training import NumPyTrainer, loss_and_slopes, times_derivative
from sparsenn.backends.kernel_records import TrainingKernel
from sparsenn.backends.trainer import TrainingProblem
from sparsenn.formats import Array
from sparsenn.studies.train import host_products as products


class NumbaTrainer(NumPyTrainer):
    """Own matrix products that apply bias, activation, derivative and update to what they have just computed."""

    def __init__(self, problem: TrainingProblem, device_index: int = 0) -> None:
        super().__init__(problem, device_index)
        self._codes = [products.code(activation) for activation in self._activations]
        self._gradients = [np.empty_like(layer.weights) for layer in problem.layers]

    def _update(self, inputs: Array, targets: Array) -> float:
        rate, momentum = np.float32(self._problem.learning_rate), np.float32(self._problem.momentum)
        values = [inputs]
        for (weights, bias), code in zip(self._parameters, self._codes, strict=True):
            outputs = np.empty((len(inputs), weights.shape[1]), np.float32)
            products.forward(values[-1], weights, bias, *code, outputs)
            values.append(outputs)
        loss, slopes = loss_and_slopes(self._problem.loss, values[-1], targets)
        times_derivative(slopes, self._activations[-1], values[-1])
        columns = np.ascontiguousarray(slopes.T)
        for number in reversed(range(len(self._parameters))):
            below, below_columns = slopes, columns
            if number:
                below, below_columns = np.empty_like(values[number]), np.empty(values[number].shape[::-1], np.float32)
                code = self._codes[number - 1]
                products.backward(self._parameters[number][0], columns, values[number], *code, below, below_columns)
            parameters = *self._parameters[number], *self._velocities[number]
            products.update(values[number], slopes, *parameters, self._gradients[number], rate, momentum)
            slopes, columns = below, below_columns
        return loss


NUMBA = TrainingKernel(
    name="numba",
    device="cpu",
    summary="own matrix products, with activation, derivative and update applied on the spot",
    launch=NumbaTrainer,
)
