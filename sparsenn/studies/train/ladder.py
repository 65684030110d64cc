"""The ladder of `train`: one epoch of a problem by every trainer of a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.contract import Backend
from sparsenn.backends.cpu.training import NUMPY
from sparsenn.backends.cuda.training import GRAPH
from sparsenn.backends.kernel_records import Kernel
from sparsenn.backends.oracle.training import REFERENCE, ReferenceTrainer
from sparsenn.backends.trainer import TRAINING_OPERATION, Trainer, TrainingProblem
from sparsenn.errors import InputError
from sparsenn.formats import Array
from sparsenn.layers import Linear
from sparsenn.studies.ladder import Ladder, Settled, Work
from sparsenn.studies.mlp.ladder import random_problem as random_network
from sparsenn.studies.train import host, layered, persistent

# Random targets and weights as large as those of `mlp` make gradients grow with the widths; at a rate of 0.01 the
# ladder's problem diverges.
BATCH_SIZE = 64  # rows
LEARNING_RATE = 0.0005
MOMENTUM = 0.9

# Most difference from the float64 parameters. A sum that rounds to the other side of a ReLU's corner changes the
# gradient of one row for the weights of one neuron in one of many batches.
RELATIVE = 1e-5  # of the parameter itself
SHARE = 0.1  # of the largest change in its layer
SHARE_IN_ALL = 1e-2  # all weights or biases of a layer, in Euclidean length: of their change

LOSS = 1e-3  # how far the loss may be off, of itself


@dataclass(frozen=True, eq=False)
class Epoch:
    """What a launch leaves behind."""

    loss: float  # as `Trainer.epoch` returned it
    trainer: Trainer  # which can be asked for its parameters, until its next epoch


class TrainStage:
    """The first epoch of a problem, its rows in the order of a permutation drawn with `seed`.

    `device_index`: of the GPU, where trainers need one.
    """

    def __init__(self, problem: TrainingProblem, seed: int = 0, device_index: int = 0) -> None:
        self._problem, self._device_index = problem, device_index
        self._order = np.random.default_rng(seed).permutation(len(problem.inputs))
        reference = ReferenceTrainer(problem)
        self._loss = reference.epoch(self._order)
        self._expected = _finite_layers(reference, self._loss)
        edges = [layer.edges for layer in problem.layers]
        parameters = sum(layer.weights.nbytes + 4 * layer.outputs for layer in problem.layers)
        data = problem.inputs.nbytes + problem.targets.nbytes + self._order.nbytes
        self.work = Work(
            bytes=data + 3 * parameters,  # read once, written once with their velocities
            multiply_adds=len(problem.inputs) * (3 * sum(edges) - edges[0]),
        )

    def arguments(self, carried: Any) -> tuple[Any, ...]:
        """Return the problem, the order of its rows, and the device's number."""
        return self._problem, self._order, self._device_index

    def settle(self, output: Epoch) -> Settled:
        """Compare all parameters and the loss; only a rung's first epoch can agree, and NaN never does."""
        correct = abs(output.loss - self._loss) <= LOSS * abs(self._loss)
        error = 0.0
        try:
            layers = output.trainer.layers()
        except InputError:
            return Settled(None, math.inf, correct=False)
        for before, found, expected in zip(self._problem.layers, layers, self._expected, strict=True):
            changes = [new - old for new, old in _pairs(expected, before)]
            moved = max(float(np.abs(change).max()) for change in changes)
            for (one, other), change in zip(_pairs(found, expected), changes, strict=True):
                difference = np.abs(one - other)
                error = max(error, float(difference.max()))
                correct &= bool((difference <= RELATIVE * np.abs(other) + SHARE * moved).all())
                correct &= _length(difference) <= RELATIVE * _length(other) + SHARE_IN_ALL * _length(change)
        return Settled(None, error, bool(correct))


def _finite_layers(reference: ReferenceTrainer, loss: float) -> tuple[Linear, ...]:
    """Return the reference's parameters after an epoch of that loss."""
    with suppress(InputError):
        if math.isfinite(loss):
            return reference.layers()
    raise InputError("the float64 reference diverges, so there is nothing to compare with; take smaller --widths")


def _length(numbers: Array) -> float:
    return float(np.sqrt(np.sum(numbers**2)))


def _pairs(one: Linear, other: Linear) -> Iterator[tuple[Array, Array]]:
    for left, right in ((one.weights, other.weights), (one.bias_vector(), other.bias_vector())):
        yield left.astype(np.float64), right.astype(np.float64)


def random_problem(rows: int, widths: Sequence[int], seed: int) -> tuple[tuple[Linear, ...], Array]:
    """Return layers with random weights, and random data: features and, behind them, targets.

    Weights are as those of the ladder of `mlp`; ReLU follows every layer but the last. Targets are normal.

    Returns the layers, and data of shape (rows, widths[0] + widths[-1]), float32.
    """
    layers, features = random_network(rows, widths, seed)
    targets = np.random.default_rng((seed, 1)).standard_normal((rows, widths[-1]), np.float32)
    return layers, np.concatenate([features, targets], axis=1)


def _training_problem(layers: Sequence[Linear], data: Array) -> TrainingProblem:
    width = layers[0].inputs
    inputs, targets = np.ascontiguousarray(data[:, :width]), np.ascontiguousarray(data[:, width:])
    return TrainingProblem(tuple(layers), inputs, targets, "mse", BATCH_SIZE, LEARNING_RATE, MOMENTUM)


def _stages(backend: Backend, layers: Sequence[Linear], data: Array) -> Iterator[TrainStage]:
    """Yield the one stage: an epoch on random data, by mean squared error in mini-batches with momentum."""
    yield TrainStage(_training_problem(layers, data), device_index=getattr(backend, "index", 0))


def epoch_rung(rung: Kernel) -> Kernel:
    """Return a kernel of `train` whose launch is an epoch: (problem, order, device's number) to `Epoch`.

    A launch makes a trainer when it first meets a problem, and goes on with that one afterwards.
    """
    kept: WeakKeyDictionary[TrainingProblem, Trainer] = WeakKeyDictionary()
    return replace(rung, launch=partial(_epoch, rung, kept))


def _epoch(
    rung: Kernel,
    kept: WeakKeyDictionary[TrainingProblem, Trainer],
    problem: TrainingProblem,
    order: Array,
    device_index: int,
) -> Epoch:
    if problem not in kept:
        kept[problem] = rung.launch(problem, device_index)
    trainer = kept[problem]
    return Epoch(trainer.epoch(order), trainer)


LADDER = Ladder(
    TRAINING_OPERATION,
    "epoch",
    _stages,
    rungs={
        "cuda": (*layered.KERNELS, persistent.PERSISTENT, GRAPH),
        "reference": (REFERENCE,),
        "cpu": (host.NUMBA, NUMPY),
    },
    problem=random_problem,
    rows=2000,
    sizes=(10, 500, 500, 500, 1),
    asked=lambda layers, data: (_training_problem(layers, data),),
    launched=epoch_rung,
    note="Errors are absolute, of weights and biases after the first epoch.",
)
