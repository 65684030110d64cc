"""The ladder of mlp: its random problem, and what it takes for right."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn import backends
from sparsenn.layers import Identity, ReLU
from sparsenn.studies.measure import Roofs
from sparsenn.studies.mlp import ladder as mlp_ladder
from sparsenn.studies.mlp.ladder import NetworkStage, allowed_error, random_problem
from sparsenn.studies.run import run_ladder

WIDTHS = (72, 64, 64, 4)
ROOFS = Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})


def exact(layers, features):
    values = features.astype(np.float64)
    for layer in layers:
        values = np.einsum("ri,io->ro", values, layer.weights.astype(np.float64)) + layer.bias
        values = np.where(values > 0, values, 0) if isinstance(layer.activation, ReLU) else values
    return values


def stage_and_answer(rows=50, widths=WIDTHS):
    layers, features = random_problem(rows, widths, 1)
    return NetworkStage(backends.backend_for("cpu"), layers, features), exact(layers, features)


def test_a_random_problem_is_what_its_numbers_say():
    layers, features = random_problem(2000, WIDTHS, 5)
    assert features.shape == (2000, 72)
    assert features.dtype == np.float32
    assert [layer.weights.shape for layer in layers] == [(72, 64), (64, 64), (64, 4)]
    assert [layer.activation for layer in layers] == [ReLU(), ReLU(), Identity()]
    for layer in layers[:2]:
        assert layer.weights.std() == pytest.approx(np.sqrt(2 / layer.inputs), rel=0.05)
        assert 0.05 < layer.bias.std() < 0.15
    assert 0.3 < np.abs(exact(layers, features)).mean() < 3  # neither dies out nor grows
    again, same = random_problem(2000, WIDTHS, 5)
    assert np.array_equal(features, same)
    assert all(np.array_equal(one.weights, two.weights) for one, two in zip(layers, again, strict=True))
    other, rows = random_problem(2000, WIDTHS, 6)
    assert not np.array_equal(features, rows)
    assert not np.array_equal(layers[0].weights, other[0].weights)


@pytest.mark.parametrize(
    ("change", "right_in"),
    [
        (0.0, {"float32", "tf32", "float16"}),
        (3e-5, {"tf32", "float16"}),
        (4e-3, {"tf32", "float16"}),
        (7e-3, {"float16"}),
        (2e-2, set()),
        (np.nan, set()),
        (np.inf, set()),
        (-np.inf, set()),
    ],
)
def test_one_output_off_is_found_and_measured(change, right_in, monkeypatch):
    monkeypatch.setattr(mlp_ladder, "BATCH", 16)
    stage, answer = stage_and_answer()
    largest = np.abs(answer).max()
    answer[37, 2] += change * largest
    settled = stage.settle(answer)
    assert {precision for precision in ("float32", "tf32", "float16") if settled.correct_in(precision)} == right_in
    assert settled.error == pytest.approx(abs(change) if np.isfinite(change) else np.inf, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("widths", [(1, 1), (3, 1, 2), (200, 300, 10), (1024, 1024, 1024, 1024)])
def test_float32_products_are_within_what_is_allowed(widths):
    layers, features = random_problem(300, widths, 2)
    stage = NetworkStage(backends.backend_for("cpu"), layers, features)
    settled = stage.settle(backends.kernel_named("mlp", "blas", "cpu").launch(*stage.arguments(None)))
    assert settled.correct
    assert settled.error < allowed_error(layers) / 2


def test_a_rung_is_held_to_its_own_precision(monkeypatch):
    good = backends.kernel_named("mlp", "blas", "cpu")

    def halved(layers, features):
        return good.launch(layers, features.astype(np.float16))

    rungs = [replace(good, name=name, launch=halved, precision=name) for name in ("float32", "float16")]
    monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_: (good, *rungs))
    result = run_ladder("mlp", *random_problem(100, WIDTHS, 0), device="cpu", runs=1, roofs=ROOFS)
    assert [rung.correct for rung in result.rungs] == [True, False, True]
    assert [rung.precision for rung in result.rungs] == ["float32", "float32", "float16"]
    assert 1e-5 < result.rungs[2].error < 1e-2


def test_rungs_that_do_not_fit_are_named_with_the_reason(monkeypatch):
    good = backends.kernel_named("mlp", "blas", "cpu")
    picky = replace(good, name="picky", why_not=lambda machine, layers: f"{len(layers)} layers are too few")
    monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_: (good, picky))
    result = run_ladder("mlp", *random_problem(10, (3, 2), 0), device="cpu", runs=1, roofs=ROOFS)
    assert [rung.name for rung in result.rungs] == ["blas"]
    assert result.left_out == (("picky", "1 layers are too few"),)
