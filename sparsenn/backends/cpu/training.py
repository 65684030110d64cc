"""Training on the CPU, in float32, by NumPy's matrix products; equal orders of rows and threads give the same bits."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.kernel_records import TrainingKernel
from sparsenn.backends.oracle.training import ReferenceTrainer
from sparsenn.backends.registry import register
from sparsenn.formats import Array
from sparsenn.layers import Activation, Identity, ReLU
from sparsenn.layers.activation_names import row_of


class NumPyTrainer(ReferenceTrainer):
    """Matrix products by NumPy's BLAS, everything else in place, in float32."""

    number = np.float32

    def _update(self, inputs: Array, targets: Array) -> float:
        values = [inputs]
        for (weights, bias), activation in zip(self._parameters, self._activations, strict=True):
            sums = values[-1] @ weights
            sums += bias
            values.append(_activate(activation, sums))
        loss, slopes = loss_and_slopes(self._problem.loss, values[-1], targets)
        for number in reversed(range(len(self._parameters))):
            times_derivative(slopes, self._activations[number], values[number + 1])
            (weights, bias), (weights_velocity, bias_velocity) = self._parameters[number], self._velocities[number]
            below = slopes @ weights.T if number else slopes
            self._move(weights, weights_velocity, values[number].T @ slopes)
            self._move(bias, bias_velocity, slopes.sum(axis=0))
            slopes = below
        return loss

    def _move(self, parameters: Array, velocities: Array, gradient: Array) -> None:
        gradient *= np.float32(self._problem.learning_rate)
        velocities *= np.float32(self._problem.momentum)
        velocities -= gradient
        parameters += velocities


def _activate(activation: Activation, z: Array) -> Array:
    if isinstance(activation, ReLU):
        return np.clip(z, np.float32(0), np.float32(activation.parameter), out=z)
    return activation(z)


def times_derivative(slopes: Array, activation: Activation, outputs: Array) -> None:
    """Multiply slopes, in place, by the activation's derivative at these outputs."""
    if isinstance(activation, ReLU):  # without the formula's arrays of ones and zeros
        slopes *= outputs > 0
        if activation.parameter != np.inf:
            slopes *= outputs < np.float32(activation.parameter)
    elif not isinstance(activation, Identity):
        slopes *= row_of(activation).slope_at(outputs)


def loss_and_slopes(loss: str, outputs: Array, targets: Array) -> tuple[float, Array]:
    """Return the loss of a mini-batch, summed in float64, and its float32 gradient by the outputs."""
    if loss == "mse":
        slopes = outputs - targets
        error = float(np.square(slopes, dtype=np.float64).mean())
        slopes *= np.float32(2 / slopes.size)
        return error, slopes
    slopes = outputs - outputs.max(axis=1, keepdims=True)
    of_class = np.einsum("ij,ij->i", slopes, targets)
    np.exp(slopes, out=slopes)
    sums = slopes.sum(axis=1, keepdims=True)
    error = float((np.log(sums[:, 0], dtype=np.float64) - of_class).mean())
    slopes /= sums
    slopes -= targets
    slopes *= np.float32(1 / len(slopes))
    return error, slopes


NUMPY = register(
    TrainingKernel(
        name="numpy",
        device="cpu",
        summary="matrix products by NumPy's BLAS, everything else in place",
        launch=NumPyTrainer,
        auto=True,
    )
)
