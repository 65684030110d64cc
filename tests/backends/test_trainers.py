"""Every registered trainer: gradients against finite differences, curves against the float64 reference, bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from formulas import Unknown
from scipy.special import log_softmax
from training_problems import gradients, loss_at, problem

from sparsenn.backends import Kernel, Trainer, TrainingProblem, kernel_named, kernels
from sparsenn.backends.cuda.training import graph
from sparsenn.backends.machine import H200
from sparsenn.backends.oracle.training import loss_and_gradient
from sparsenn.backends.trainer import PRECISIONS
from sparsenn.errors import InputError, ShapeError, SparseNNError, UsageError
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, Tanh

MARKS = {"cuda": (pytest.mark.gpu,)}
KERNELS = [
    pytest.param(entry, marks=MARKS.get(entry.device, ()), id=f"{entry.device}-{entry.name}")
    for entry in kernels("train")
]
TRAINERS = [entry for entry in KERNELS if entry.values[0].device != "reference"]
HOST = [pytest.param(entry, id=entry.name) for entry in kernels("train", "cpu")]
ACTIVATIONS = [Sigmoid(), Tanh(), ReLU(), ReLU(0.5), Identity()]
TOLERANCE = {"float32": 1e-5, "tf32": 5e-3, "float16": 1e-2}


def started(entry: Kernel, problem: TrainingProblem) -> Trainer:
    """The trainer; those that need a GPU may refuse a problem, the others may not."""
    try:
        return entry.launch(problem, 0)
    except UsageError as error:
        if entry.device != "cuda":
            raise
        pytest.skip(str(error))


def close(found: Any, expected: Any, entry: Kernel, scale: float = 1.0) -> None:
    tolerance = TOLERANCE[entry.precision] * scale
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(size, 1e-3))


@pytest.mark.parametrize("entry", KERNELS)
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("sizes", [{}, {"widths": (9, 37, 3), "rows": 21}], ids=["narrow", "wide"])
def test_gradient_is_the_finite_difference(entry: Kernel, loss: str, activation: Any, sizes: dict[str, Any]) -> None:
    last = Identity() if loss == "cross_entropy" else activation
    given = problem(activation=activation, last=last, loss=loss, **sizes)
    trainer = started(entry, given)
    found = trainer.epoch(np.random.default_rng(0).permutation(len(given.inputs)))
    start = [(layer.weights.astype(np.float64), layer.bias_vector().astype(np.float64)) for layer in given.layers]
    close(found, loss_at(given, start, slice(None)), entry)
    moved = zip(given.layers, trainer.layers(), trainer.velocities(), gradients(given), strict=True)
    for before, after, velocities, expected in moved:
        for velocity, gradient in zip(velocities, expected, strict=True):
            close(velocity, -given.learning_rate * gradient, entry)
        np.testing.assert_allclose(after.weights, before.weights + velocities[0], atol=1e-6)
        np.testing.assert_allclose(after.bias_vector(), before.bias_vector() + velocities[1], atol=1e-6)


@pytest.mark.parametrize("entry", KERNELS)
def test_two_batches_with_momentum(entry: Kernel) -> None:
    given = problem(batch_size=4, momentum=0.75, learning_rate=0.25)
    order = np.array([6, 2, 0, 5, 1, 4, 3])
    trainer = started(entry, given)
    found = trainer.epoch(order)
    first = [tuple(-0.25 * array for array in pair) for pair in gradients(given, order[:4])]
    middle = tuple(
        Linear(layer.weights + step[0], layer.bias_vector() + step[1], layer.activation)
        for layer, step in zip(given.layers, first, strict=True)
    )
    between = TrainingProblem(middle, given.inputs, given.targets, "mse", 4, 0.25, 0.75)
    for velocities, before, slopes in zip(trainer.velocities(), first, gradients(between, order[4:]), strict=True):
        for velocity, old, slope in zip(velocities, before, slopes, strict=True):
            close(velocity, 0.75 * old - 0.25 * slope, entry)
    parameters = [
        [(layer.weights.astype(np.float64), layer.bias_vector().astype(np.float64)) for layer in layers]
        for layers in (given.layers, middle)
    ]
    losses = loss_at(given, parameters[0], order[:4]), loss_at(given, parameters[1], order[4:])
    close(found, (4 * losses[0] + 3 * losses[1]) / 7, entry)


@pytest.mark.parametrize("entry", TRAINERS)
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("activation", ACTIVATIONS[:3], ids=str)
def test_first_epochs_are_the_references(entry: Kernel, loss: str, activation: Any) -> None:
    given = problem((10, 50, 33, 4), activation, loss=loss, rows=300, batch_size=32, learning_rate=0.05, momentum=0.9)
    trainer, reference = started(entry, given), kernel_named("train", "reference", "reference").launch(given, 0)
    rng = np.random.default_rng(3)
    for _ in range(4):
        order = rng.permutation(300)
        close(trainer.epoch(order), reference.epoch(order), entry, 10)
    for found, expected in zip(trainer.layers(), reference.layers(), strict=True):
        close(found.weights, expected.weights, entry, 100)


CASES = (  # widths, rows, batch size, loss, momentum
    ((1, 1), 1, 1, "mse", 0.5),
    ((1, 1), 5, 1, "mse", 0.0),
    ((3, 1), 7, 100, "mse", 0.5),
    ((3, 2), 5, 1, "mse", 0.5),
    ((5, 40), 9, 4, "cross_entropy", 0.9),
    ((2, 1, 1), 4, 3, "mse", 0.5),
    ((10, 33, 1), 20, 8, "mse", 0.0),
    ((17, 300, 1), 40, 16, "mse", 0.5),
    ((4, 20, 20, 20, 3), 19, 100, "mse", 0.5),
    ((7, 64, 17, 10), 133, 64, "cross_entropy", 0.5),
    ((4, 130, 9, 70, 2), 25, 5, "mse", 0.5),
    ((12, 32, 64, 31), 21, 50, "cross_entropy", 0.0),
    ((130, 129, 128, 45), 300, 150, "mse", 0.9),
    ((90, 100, 32), 70, 70, "cross_entropy", 0.5),
    ((16, 33), 65, 64, "mse", 0.9),
    *(((6, 40, 37, 3), 50, 16, "mse", 0.9),) * 5,
)


@pytest.mark.parametrize("entry", TRAINERS)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_awkward_shapes(entry: Kernel, number: int) -> None:
    """Each layer with another activation; and, at last, with each activation in every place."""
    widths, rows, batch_size, loss, momentum = CASES[number]
    alike = number >= len(CASES) - 5
    kinds = [ACTIVATIONS[(number + (0 if alike else place)) % 5] for place in range(len(widths) - 1)]
    if loss == "cross_entropy":
        kinds[-1] = Identity()
    given = problem(widths, None, None, loss, rows, batch_size, 0.05, momentum, seed=number)
    layers = tuple(replace(layer, activation=kind) for layer, kind in zip(given.layers, kinds, strict=True))
    given = replace(given, layers=layers)
    trainer, reference = started(entry, given), kernel_named("train", "reference", "reference").launch(given, 0)
    rng = np.random.default_rng(1)
    for _ in range(3):
        order = rng.permutation(rows)
        close(trainer.epoch(order), reference.epoch(order), entry, 10)
    states = [zip(one.layers(), one.velocities(), strict=True) for one in (trainer, reference)]
    for before, (found, speeds), (expected, steps) in zip(layers, *states, strict=True):
        start, here, there = ((layer.weights, layer.bias_vector()) for layer in (before, found, expected))
        moved = max(np.abs(new - old).max() for new, old in zip(there, start, strict=True))
        for one, other in zip((*here, *speeds), (*there, *steps), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3 * moved)


def state(trainer: Trainer) -> list[bytes]:
    parameters = [array.tobytes() for layer in trainer.layers() for array in (layer.weights, layer.bias_vector())]
    return parameters + [array.tobytes() for pair in trainer.velocities() for array in pair]


@pytest.mark.parametrize("entry", TRAINERS)
def test_the_same_bits_again_and_after_a_restoration(entry: Kernel) -> None:
    given = problem((10, 130, 70, 3), ReLU(), rows=200, batch_size=32, learning_rate=0.02, momentum=0.9)
    orders = [np.random.default_rng(epoch).permutation(200) for epoch in range(4)]
    whole, again, resumed = (started(entry, given) for _ in range(3))
    losses = [whole.epoch(order) for order in orders]
    assert [again.epoch(order) for order in orders[:2]] == losses[:2]
    resumed.restore(again.layers(), again.velocities())
    assert [resumed.epoch(order) for order in orders[2:]] == losses[2:]
    assert state(resumed) == state(whole)
    if entry.device == "cuda":
        with pytest.raises(ShapeError, match="do not belong"):
            resumed.restore(again.layers()[:-1], again.velocities()[:-1])


@pytest.mark.gpu
def test_a_long_epoch_takes_several_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem((5, 20, 3), Tanh(), rows=103, batch_size=4, learning_rate=0.05, momentum=0.5)
    whole = graph.GRAPH.launch(given, 0)
    monkeypatch.setattr(graph, "MOST_LAUNCHES", 30)
    pieces = graph.GRAPH.launch(given, 0)
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(103)
        assert pieces.epoch(order) == pytest.approx(whole.epoch(order), rel=1e-12)
    assert state(pieces) == state(whole)


@pytest.mark.parametrize("entry", KERNELS)
def test_what_is_handed_out_and_in_is_a_copy(entry: Kernel) -> None:
    given = problem(batch_size=2)
    kept = [layer.weights.copy() for layer in given.layers]
    trainer = started(entry, given)
    trainer.epoch(np.arange(7))
    layers, velocities = trainer.layers(), trainer.velocities()
    copies = [layer.weights.copy() for layer in layers], [pair[0].copy() for pair in velocities]
    trainer.restore(layers, velocities)
    trainer.epoch(np.arange(7))
    for layer, weights, pair, velocity, initial, first in zip(
        layers, copies[0], velocities, copies[1], given.layers, kept, strict=True
    ):
        np.testing.assert_array_equal(layer.weights, weights)
        np.testing.assert_array_equal(pair[0], velocity)
        np.testing.assert_array_equal(initial.weights, first)


@pytest.mark.parametrize("entry", KERNELS)
def test_divergence_is_told_by_the_loss(entry: Kernel) -> None:
    given = problem(activation=Identity(), batch_size=2, learning_rate=1e30)
    trainer = started(entry, given)
    losses = [trainer.epoch(np.arange(7)) for _ in range(4)]
    assert not np.isfinite(losses[-1])
    with pytest.raises(InputError, match="NaN"):
        trainer.layers()


@pytest.mark.parametrize("entry", HOST)
def test_cross_entropy_of_large_outputs(entry: Kernel) -> None:
    layer = Linear(np.array([[400.0, -400.0, 0.0]]), np.zeros(3), Identity())
    targets = np.eye(3, dtype=np.float32)[[0, 1]]
    given = TrainingProblem((layer,), np.ones((2, 1), np.float32), targets, "cross_entropy", 2, 0.5)
    trainer = entry.launch(given, 0)
    assert trainer.epoch(np.arange(2)) == pytest.approx(400)
    np.testing.assert_allclose(trainer.velocities()[0][1], [-0.25, 0.25, 0], atol=1e-6)


def test_losses_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    outputs, classes = rng.normal(size=(5, 3)), rng.integers(0, 3, 5)
    value, _ = loss_and_gradient("cross_entropy", outputs, np.eye(3)[classes])
    assert value == pytest.approx(-log_softmax(outputs, axis=1)[np.arange(5), classes].mean())
    value, gradient = loss_and_gradient("mse", np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]))
    assert value == 2.5
    np.testing.assert_array_equal(gradient, [[1.0, 2.0]])


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"loss": "hinge"}, UsageError, "unknown loss 'hinge'"),
        ({"batch_size": 0}, UsageError, "batch size is 0"),
        ({"learning_rate": 0.0}, UsageError, "learning rate of 0"),
        ({"learning_rate": float("nan")}, UsageError, "learning rate is nan"),
        ({"learning_rate": float("inf")}, UsageError, "learning rate is inf"),
        ({"momentum": 1.0}, UsageError, "momentum of 1"),
        ({"momentum": -0.1}, UsageError, "momentum of -0.1"),
        ({"momentum": float("nan")}, UsageError, "momentum is nan"),
        ({"layers": ()}, ShapeError, "at least one layer"),
        ({"inputs": np.ones((0, 5), np.float32)}, ShapeError, "at least one row"),
        ({"inputs": np.ones((7, 6), np.float32)}, ShapeError, r"inputs have shape \(7, 6\)"),
        ({"targets": np.ones((6, 2), np.float32)}, ShapeError, r"targets have shape \(6, 2\)"),
        ({"layers": (Linear(np.ones((5, 2)), None, Unknown()),)}, UsageError, "no known derivative"),
        ({"layers": (Linear(np.ones((5, 3))), Linear(np.ones((2, 2))))}, ShapeError, "layer 2 takes 2 inputs"),
    ],
)
def test_problems_that_are_none(changes: dict[str, Any], kind: type[SparseNNError], message: str) -> None:
    with pytest.raises(kind, match=message):
        TrainingProblem(**vars(problem()) | changes)


def test_cross_entropy_needs_raw_outputs() -> None:
    with pytest.raises(UsageError, match=r"cross_entropy .* sigmoid"):
        problem(loss="cross_entropy", last=Sigmoid())


def test_trainers_tell_their_precision_and_refuse_no_small_problem() -> None:
    assert {entry.precision for entry in kernels("train")} <= set(PRECISIONS)
    assert [entry.name for entry in kernels("train") if entry.why_not(H200, problem()) is not None] == []
