"""Every trainer on the GPU against gradient descent in float64, row by row; and what the ladder takes for right."""

from itertools import pairwise

import numpy as np
import pytest

from sparsenn.backends.cuda.training import graph
from sparsenn.backends.trainer import TrainingProblem
from sparsenn.errors import InputError, ShapeError
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh
from sparsenn.studies.train.ladder import LADDER

TRAINERS = {rung.name: rung.launch for rung in LADDER.rungs["cuda"]}
ACTIVATIONS = (ReLU(), Sigmoid(), Tanh(), Identity(), ReLU(0.5))

CASES = (  # widths, rows, batch size, loss, momentum
    ((1, 1), 5, 1, "mse", 0.0),
    ((3, 1), 7, 100, "mse", 0.5),
    ((5, 40), 9, 4, "cross_entropy", 0.9),
    ((10, 33, 1), 20, 8, "mse", 0.0),
    ((7, 64, 17, 10), 133, 64, "cross_entropy", 0.5),
    ((4, 130, 9, 70, 2), 25, 5, "mse", 0.5),
    ((12, 32, 64, 31), 21, 50, "cross_entropy", 0.0),
    ((130, 129, 128, 45), 300, 150, "mse", 0.9),
    ((90, 100, 32), 70, 70, "cross_entropy", 0.5),
    ((16, 33), 65, 64, "mse", 0.9),
)


def problem_of(widths, rows, batch_size, loss, momentum, seed=0):
    """A problem with random data and parameters; activations differ from layer to layer."""
    rng = np.random.default_rng(seed)
    kinds = [ACTIVATIONS[(number + seed) % len(ACTIVATIONS)] for number in range(len(widths) - 1)]
    if loss == "cross_entropy":
        kinds[-1] = Identity()
    layers = tuple(
        Linear(rng.normal(0, fan_in**-0.5, (fan_in, width)), rng.normal(0, 0.3, width), kind)
        for (fan_in, width), kind in zip(pairwise(widths), kinds, strict=True)
    )
    inputs = rng.normal(size=(rows, widths[0])).astype(np.float32)
    targets = rng.normal(size=(rows, widths[-1])).astype(np.float32)
    if loss == "cross_entropy":
        targets = np.eye(widths[-1], dtype=np.float32)[rng.integers(0, widths[-1], rows)]
    return TrainingProblem(layers, inputs, targets, loss, batch_size, 0.05, momentum)


def orders(problem, count):
    rng = np.random.default_rng(1)
    return [rng.permutation(len(problem.inputs)) for _ in range(count)]


def act(kind, z):
    """An activation and its derivative, in float64."""
    if isinstance(kind, Sigmoid):
        y = 1 / (1 + np.exp(-z))
        return y, y * (1 - y)
    if isinstance(kind, Tanh):
        return np.tanh(z), 1 - np.tanh(z) ** 2
    if isinstance(kind, ReLU):
        top = np.inf if kind.clip is None else kind.clip
        return np.clip(z, 0, top), np.where((z <= 0) | (z >= top), 0.0, 1.0)
    return z, np.ones_like(z)


def train_float64(problem, epochs):
    """Gradient descent with momentum, one row at a time through the network: (losses, weights, biases, velocities)."""
    weights = [layer.weights.astype(float) for layer in problem.layers]
    biases = [layer.bias_vector().astype(float) for layer in problem.layers]
    speeds = [(np.zeros_like(w), np.zeros_like(b)) for w, b in zip(weights, biases, strict=True)]
    losses = []
    for order in epochs:
        total = 0.0
        for start in range(0, len(order), problem.batch_size):
            chosen = order[start : start + problem.batch_size]
            slopes = [(np.zeros_like(w), np.zeros_like(b)) for w, b in zip(weights, biases, strict=True)]
            for x, t in zip(problem.inputs[chosen].astype(float), problem.targets[chosen].astype(float), strict=True):
                values, derivatives = [x], []
                for w, b, layer in zip(weights, biases, problem.layers, strict=True):
                    y, derivative = act(layer.activation, values[-1] @ w + b)
                    values.append(y)
                    derivatives.append(derivative)
                y = values[-1]
                if problem.loss == "mse":
                    total += ((y - t) ** 2).mean()
                    back = 2 * (y - t) / t.size
                else:
                    powers = np.exp(y - y.max())
                    total -= np.log(powers[t.argmax()] / powers.sum())
                    back = powers / powers.sum() - t
                for number in reversed(range(len(weights))):
                    back = back * derivatives[number]
                    slopes[number][0][...] += np.outer(values[number], back) / chosen.size
                    slopes[number][1][...] += back / chosen.size
                    back = weights[number] @ back
            for number, speed in enumerate(speeds):
                for v, g, p in zip(speed, slopes[number], (weights[number], biases[number]), strict=True):
                    v[...] = problem.momentum * v - problem.learning_rate * g
                    p[...] += v
        losses.append(total / len(order))
    return losses, weights, biases, speeds


def assert_near(found, expected, scale):
    """Float32 training strays by a small part of what is learnt; NaN never passes."""
    difference = np.abs(np.asarray(found, float) - expected)
    assert (difference <= 1e-3 * scale + 1e-5 * np.abs(expected)).all(), f"{difference.max()} of {scale}"


def assert_trained(trainer, problem, losses, epochs):
    expected_losses, weights, biases, speeds = train_float64(problem, epochs)
    assert np.allclose(losses, expected_losses, rtol=1e-4, atol=1e-6)
    for number, (before, layer, velocity) in enumerate(
        zip(problem.layers, trainer.layers(), trainer.velocities(), strict=True)
    ):
        moved = max(np.abs(weights[number] - before.weights).max(), np.abs(biases[number] - before.bias_vector()).max())
        assert moved > 1e-4, "a layer that learns nothing tests nothing"
        assert layer.activation == before.activation
        assert_near(layer.weights, weights[number], moved)
        assert_near(layer.bias_vector(), biases[number], moved)
        assert_near(velocity[0], speeds[number][0], moved)
        assert_near(velocity[1], speeds[number][1], moved)


def same_bits(one, other):
    parameters = zip(one.layers(), other.layers(), strict=True)
    velocities = zip(one.velocities(), other.velocities(), strict=True)
    return all(
        np.array_equal(a.weights, b.weights) and np.array_equal(a.bias_vector(), b.bias_vector()) for a, b in parameters
    ) and all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in velocities)


# ---- On a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_epochs_equal_float64(name, number):
    problem = problem_of(*CASES[number], seed=number)
    trainer = TRAINERS[name](problem, 0)
    epochs = orders(problem, 3)
    losses = [trainer.epoch(epochs[0])]
    assert_trained(trainer, problem, losses, epochs[:1])
    losses += [trainer.epoch(order) for order in epochs[1:]]
    assert_trained(trainer, problem, losses, epochs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("kind", ACTIVATIONS, ids=str)
def test_every_activation_in_every_place(name, kind):
    problem = problem_of((6, 40, 37, 3), 50, 16, "mse", 0.9, seed=3)
    layers = tuple(Linear(layer.weights, layer.bias, kind) for layer in problem.layers)
    problem = TrainingProblem(layers, problem.inputs, problem.targets, "mse", 16, 0.1, 0.9)
    trainer, epochs = TRAINERS[name](problem, 0), orders(problem, 2)
    assert_trained(trainer, problem, [trainer.epoch(order) for order in epochs], epochs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRAINERS)
def test_same_bits_from_run_to_run(name):
    problem = problem_of((10, 200, 150, 1), 500, 64, "mse", 0.9)
    first, second = TRAINERS[name](problem, 0), TRAINERS[name](problem, 0)
    for order in orders(problem, 3):
        assert first.epoch(order) == second.epoch(order)
    assert same_bits(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRAINERS)
def test_restored_run_goes_on_exactly(name):
    problem = problem_of((9, 50, 40, 12), 100, 32, "cross_entropy", 0.9)
    whole, half, rest = (TRAINERS[name](problem, 0) for _ in range(3))
    first, second = orders(problem, 2)
    whole.epoch(first)
    expected = whole.epoch(second)
    half.epoch(first)
    rest.epoch(second)  # overwritten by what is restored
    rest.restore(half.layers(), half.velocities())
    assert rest.epoch(second) == expected
    assert same_bits(whole, rest)
    with pytest.raises(ShapeError, match="do not belong"):
        rest.restore(half.layers()[:-1], half.velocities()[:-1])


@pytest.mark.gpu
def test_long_epoch_takes_several_graphs(monkeypatch):
    problem = problem_of((5, 20, 3), 103, 4, "mse", 0.5)
    whole = TRAINERS["graph"](problem, 0)
    monkeypatch.setattr(graph, "MOST_LAUNCHES", 30)
    pieces = TRAINERS["graph"](problem, 0)
    for order in orders(problem, 2):
        assert pieces.epoch(order) == pytest.approx(whole.epoch(order), rel=1e-12)
    assert same_bits(whole, pieces)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRAINERS)
def test_divergence_is_told(name):
    problem = problem_of((6, 20, 2), 64, 8, "mse", 0.0, seed=3)
    layers = tuple(Linear(layer.weights, layer.bias, Identity()) for layer in problem.layers)
    wild = TrainingProblem(layers, problem.inputs, problem.targets, "mse", 8, 1e30)
    trainer = TRAINERS[name](wild, 0)
    losses = [trainer.epoch(order) for order in orders(problem, 3)]
    assert not np.isfinite(losses[-1])
    with pytest.raises(InputError, match="NaN"):
        trainer.layers()
