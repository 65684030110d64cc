"""Small problems of training, and their loss written down once more, for finite differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from oracle import activated
from scipy.special import log_softmax

from sparsenn.backends import TrainingProblem
from sparsenn.formats import Array
from sparsenn.layers import Activation, Identity, Linear, Sigmoid

__all__ = ["gradients", "loss_at", "problem"]


def problem(
    widths: Sequence[int] = (5, 4, 3, 2),
    activation: Activation | None = None,
    last: Activation | None = None,
    loss: str = "mse",
    rows: int = 7,
    batch_size: int = 64,
    learning_rate: float = 0.5,
    momentum: float = 0.0,
    seed: int = 1,
) -> TrainingProblem:
    rng = np.random.default_rng(seed)
    kinds = [activation or Sigmoid()] * (len(widths) - 2) + [last or Identity()]
    layers = tuple(
        Linear(rng.normal(0, 1 / np.sqrt(inputs), (inputs, outputs)), rng.normal(0, 0.3, outputs), kind)
        for inputs, outputs, kind in zip(widths, widths[1:], kinds, strict=False)
    )
    inputs = rng.normal(size=(rows, widths[0])).astype(np.float32)
    targets = rng.normal(size=(rows, widths[-1]))
    if loss == "cross_entropy":
        targets = np.eye(widths[-1])[rng.integers(0, widths[-1], rows)]
    return TrainingProblem(layers, inputs, targets.astype(np.float32), loss, batch_size, learning_rate, momentum)


def loss_at(given: TrainingProblem, parameters: Sequence[tuple[Array, Array]], rows: Array | slice) -> float:
    """The loss of some rows under these float64 parameters."""
    values = given.inputs[rows].astype(np.float64)
    for (weights, bias), layer in zip(parameters, given.layers, strict=True):
        values = activated(layer.activation, values @ weights + bias)
    targets = given.targets[rows].astype(np.float64)
    if given.loss == "mse":
        return float(((values - targets) ** 2).sum() / targets.size)
    return float(-log_softmax(values, axis=1)[targets == 1].mean())


def gradients(given: TrainingProblem, rows: Array | slice = slice(None)) -> list[tuple[Array, Array]]:
    """The gradient by every parameter, by central differences in float64."""
    parameters = [(layer.weights.astype(np.float64), layer.bias_vector().astype(np.float64)) for layer in given.layers]
    step = 1e-6

    def slope(array: Array, place: tuple[int, ...]) -> float:
        kept = array[place]
        array[place] = kept + step
        above = loss_at(given, parameters, rows)
        array[place] = kept - step
        below = loss_at(given, parameters, rows)
        array[place] = kept
        return (above - below) / (2 * step)

    return [
        tuple(
            np.array([slope(array, place) for place in np.ndindex(array.shape)]).reshape(array.shape) for array in pair
        )
        for pair in parameters
    ]
