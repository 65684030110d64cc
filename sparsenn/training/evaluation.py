"""How well a network does on some rows."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.oracle.training import loss_and_gradient
from sparsenn.backends.trainer import Evaluation
from sparsenn.engine import Session
from sparsenn.engine.inputs import check_network
from sparsenn.errors import ShapeError, unknown_name
from sparsenn.formats import Array
from sparsenn.formats.arrays import real_numbers
from sparsenn.layers import Softmax
from sparsenn.model import LOSSES
from sparsenn.network import Network
from sparsenn.training.data import TrainingData

_ROWS = 8192  # rows computed at a time

MOST_MULTIPLY_ADDS = 1 << 37
"""Multiply-adds of `evaluate_sampled`: a few seconds on a processor of few cores."""


@np.errstate(all="ignore")
def evaluate(
    network: Network,
    inputs: Array,
    targets: Array,
    loss: str,
    device: str = "auto",
    classes: bool | None = None,
    kernel: str = "auto",
    precision: str = "auto",
) -> Evaluation:
    """Run a network and compare its outputs with the targets.

    Parameters
    ----------
    network : Network
        The layers. The loss is of its raw outputs, or of probabilities after a Softmax.
    inputs : array_like, shape (samples, inputs)
        Brought to float32.
    targets : array_like, shape (samples, outputs)
        Brought to float32; one-hot for classes.
    loss : str
        The loss: "mse" or "cross_entropy".
    device : str, default "auto"
        Where to compute: auto, cpu, cuda, cuda:i or reference.
    classes : bool, optional
        Whether the targets are classes; by the loss unless given.
    kernel : str, default "auto"
        As `sparsenn.Session` takes it.
    precision : str, default "auto"
        As `sparsenn.Session` takes it.

    Returns
    -------
    Evaluation
        Loss, and accuracy where the targets are classes.

    Raises
    ------
    UsageError
        The network is none; the loss, the kernel or the precision is unknown; or the kernel does not take the network.
    InputError
        Inputs or targets are no real numbers, or one is masked.
    ShapeError
        Inputs or targets do not fit the network.
    DeviceError
        The device is not there.
    """
    check_network(network)
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    inputs, targets = real_numbers(inputs, "inputs hold"), real_numbers(targets, "targets hold")
    for what, array, width in (("inputs", inputs, network.inputs), ("targets", targets, network.outputs)):
        if array.ndim != 2 or array.shape[1] != width or len(array) != len(inputs) or not len(array):
            rows = len(inputs) if inputs.ndim else 1
            raise ShapeError(f"the {what} have shape {array.shape}; the network takes ({rows}, {width})")
    total, right, predict = 0.0, 0, Session(network, device=device, kernel=kernel, precision=precision)
    for start in range(0, len(inputs), _ROWS):
        expected = targets[start : start + _ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = predict(inputs[start : start + _ROWS], form="dense")
            total += len(outputs) * loss_of(network, loss, outputs, expected)
        right += int((outputs.argmax(axis=1) == expected.argmax(axis=1)).sum())
    counted = loss == "cross_entropy" if classes is None else classes
    return Evaluation(len(inputs), loss, total / len(inputs), right / len(inputs) if counted else None)


def loss_of(network: Network, loss: str, outputs: Array, targets: Array) -> float:
    """Return the mean loss of some rows, computed in float64.

    A probability that float32 rounds to zero counts as its smallest number, so that the logarithm is finite.

    network : what gave the outputs: if it ends in a Softmax, they are probabilities.
    loss : "mse" or "cross_entropy".
    outputs, targets : (rows, outputs); classes are one-hot.
    """
    exact, expected = outputs.astype(np.float64), targets.astype(np.float64)
    if loss == "cross_entropy" and isinstance(network[-1], Softmax):
        return float(-np.log(np.maximum((exact * expected).sum(axis=1), np.finfo(np.float32).tiny)).mean())
    return loss_and_gradient(loss, exact, expected)[0]


def evaluate_sampled(network: Network, data: TrainingData, loss: str) -> Evaluation:
    """Evaluate on the rows of some data; on every n-th only, where all would take long."""
    step = slice(None, None, 1 + data.rows * network.multiply_adds // MOST_MULTIPLY_ADDS)
    return evaluate(network, data.inputs[step], data.targets[step], loss, "cpu", data.classes)


def baseline_of(data: TrainingData, evaluated: TrainingData, loss: str) -> Evaluation:
    """Evaluate, on the rows of some data, predictions that are all the mean of the training data's targets."""
    mean = data.targets.mean(axis=0, dtype=np.float64)
    targets = evaluated.targets
    if loss == "cross_entropy":
        shares = np.maximum(mean, np.finfo(np.float32).tiny)
        value = float(-(targets.mean(axis=0, dtype=np.float64) * np.log(shares)).sum())
    else:
        value = float(np.mean([np.square(targets[:, column] - mean[column]).mean() for column in range(len(mean))]))
    right = float(targets[:, int(mean.argmax())].mean(dtype=np.float64)) if data.classes else None
    return Evaluation(evaluated.rows, loss, value, right)
