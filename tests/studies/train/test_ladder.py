"""The ladder of `train`: a problem that does not diverge, and what counts as its solution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends import backend_for
from sparsenn.backends.oracle.training import ReferenceTrainer
from sparsenn.backends.trainer import TrainingProblem
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import run_ladder
from sparsenn.studies.train.ladder import Epoch, TrainStage, epoch_rung

ROWS, ROOFS = 640, Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})
"""Ten batches of the ladder's own network."""


def stage_of(problem: TrainingProblem) -> tuple[TrainStage, np.ndarray]:
    stage = TrainStage(problem)
    return stage, stage.arguments(None)[1]


@pytest.fixture
def problem() -> TrainingProblem:
    ladder = ladder_for("train")
    layers, data = ladder.problem(1280, (6, 30, 20, 2), 0)
    return TrainingProblem(layers, data[:, :6].copy(), data[:, 6:].copy(), "mse", 64, 0.01, 0.9)


def test_every_rung_of_the_host_solves_the_ladders_own_problem() -> None:
    ladder = ladder_for("train")
    result = run_ladder("train", *ladder.problem(ROWS, ladder.sizes, 0), device="cpu", runs=1, roofs=ROOFS)
    assert [rung.name for rung in result.rungs] == ["numba", "numpy"]
    assert [(rung.name, rung.error) for rung in result.rungs if not rung.correct] == []
    assert all(np.isfinite(rung.error) for rung in result.rungs)


class Elsewhere:
    """A backend of the third GPU."""

    index = 2


def test_trainers_are_made_on_the_backends_own_device_once_a_problem() -> None:
    ladder, made = ladder_for("train"), []

    def launch(problem: TrainingProblem, device_index: int) -> ReferenceTrainer:
        made.append(device_index)
        return ReferenceTrainer(problem)

    rung = epoch_rung(replace(ladder.rungs["reference"][0], launch=launch))
    problem = ladder.problem(64, (3, 4, 2), 0)
    (stage,) = ladder.stages(Elsewhere(), *problem)
    for _ in range(2):
        rung.launch(*stage.arguments(None))
    assert made == [2]
    (stage,) = ladder.stages(backend_for("cpu"), *problem)
    assert stage.settle(rung.launch(*stage.arguments(None))).correct
    assert made == [2, 0]


def test_an_epoch_that_leaves_out_a_batch_is_wrong(problem: TrainingProblem) -> None:
    stage, order = stage_of(problem)
    whole, short = ReferenceTrainer(problem), ReferenceTrainer(problem)
    loss = whole.epoch(order)
    assert stage.settle(Epoch(loss, whole)).correct
    short.epoch(order[:-64])
    assert not stage.settle(Epoch(loss, short)).correct


def test_one_wrong_weight_is_found(problem: TrainingProblem) -> None:
    stage, order = stage_of(problem)
    trainer = ReferenceTrainer(problem)
    loss = trainer.epoch(order)
    layers = trainer.layers()
    weights = layers[1].weights.copy()
    weights[3, 5] += 0.2 * np.abs(weights - problem.layers[1].weights).max()
    trainer.restore((layers[0], replace(layers[1], weights=weights), *layers[2:]), trainer.velocities())
    assert not stage.settle(Epoch(loss, trainer)).correct
