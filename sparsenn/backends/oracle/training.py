"""Training in float64, by the book: the oracle of every trainer."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.kernel_records import TrainingKernel
from sparsenn.backends.registry import register
from sparsenn.backends.trainer import TrainingProblem, Velocities
from sparsenn.formats import Array
from sparsenn.layers import Linear
from sparsenn.layers.activation_names import row_of


def loss_and_gradient(loss: str, outputs: Array, targets: Array) -> tuple[float, Array]:
    """Return the loss of some rows and its gradient by the outputs, in float64; both are (rows, outputs)."""
    rows = len(outputs)
    if loss == "mse":
        difference = outputs - targets
        return float(np.mean(difference**2)), 2 * difference / difference.size
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-np.sum(targets * logarithms) / rows), (np.exp(logarithms) - targets) / rows


class ReferenceTrainer:
    """Backpropagation over whole matrices in float64; `layers` and `velocities` round to float32."""

    number: Any = np.float64  # of parameters and velocities

    def __init__(self, problem: TrainingProblem, device_index: int = 0) -> None:
        self._problem = problem
        self._activations = [layer.activation for layer in problem.layers]
        self.restore(
            problem.layers,
            tuple((np.zeros_like(layer.weights), np.zeros(layer.outputs, np.float32)) for layer in problem.layers),
        )

    def epoch(self, order: Array) -> float:
        """Pass once over the rows; see `Trainer`."""
        problem, total = self._problem, 0.0
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, order.size, problem.batch_size):
                rows = order[start : start + problem.batch_size]
                total += rows.size * self._update(problem.inputs[rows], problem.targets[rows])
        return total / order.size

    def _update(self, inputs: Array, targets: Array) -> float:
        values = [inputs.astype(np.float64)]
        for (weights, bias), activation in zip(self._parameters, self._activations, strict=True):
            values.append(activation(values[-1] @ weights + bias))
        loss, gradient = loss_and_gradient(self._problem.loss, values[-1], targets.astype(np.float64))
        gradients: list[tuple[Array, Array]] = []
        for number in reversed(range(len(self._activations))):
            gradient = gradient * row_of(self._activations[number]).slope_at(values[number + 1])
            gradients.insert(0, (values[number].T @ gradient, gradient.sum(axis=0)))
            gradient = gradient @ self._parameters[number][0].T
        for parameters, velocities, slopes in zip(self._parameters, self._velocities, gradients, strict=True):
            for parameter, velocity, slope in zip(parameters, velocities, slopes, strict=True):
                velocity *= self._problem.momentum
                velocity -= self._problem.learning_rate * slope
                parameter += velocity
        return loss

    def layers(self) -> tuple[Linear, ...]:
        """Return the parameters, rounded to float32."""
        return tuple(
            Linear(weights.copy(), bias.copy(), activation)
            for (weights, bias), activation in zip(self._parameters, self._activations, strict=True)
        )

    def velocities(self) -> Velocities:
        """Return the velocities, rounded to float32."""
        return tuple((weights.astype(np.float32), bias.astype(np.float32)) for weights, bias in self._velocities)

    def restore(self, layers: tuple[Linear, ...], velocities: Velocities) -> None:
        """Replace parameters and velocities."""
        pairs = [(layer.weights, layer.bias_vector()) for layer in layers]
        self._parameters, self._velocities = (
            [(weights.astype(self.number), bias.astype(self.number)) for weights, bias in arrays]
            for arrays in (pairs, velocities)
        )


REFERENCE = register(
    TrainingKernel(
        name="reference",
        device="reference",
        summary="backpropagation in float64: the oracle",
        launch=ReferenceTrainer,
        auto=True,
    )
)
