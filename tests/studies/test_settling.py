"""Ladders of random problems: what their numbers are, which outputs they compare, and what they take for right."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from convolutions import absolute_sums, reference_conv2d

from sparsenn import backends
from sparsenn.layers import Conv2d, Identity, ReLU
from sparsenn.studies.conv2d import ladder as conv_ladder
from sparsenn.studies.conv2d.ladder import ConvolutionStage
from sparsenn.studies.gemm import ladder as gemm_ladder
from sparsenn.studies.gemm.host import launch_blas
from sparsenn.studies.gemm.ladder import ProductStage
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.measure import Roofs
from sparsenn.studies.mlp import ladder as mlp_ladder
from sparsenn.studies.mlp.ladder import NetworkStage, allowed_error
from sparsenn.studies.run import run_ladder

ROOFS = Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})
STAGES = {"gemm": ProductStage, "conv2d": ConvolutionStage, "mlp": NetworkStage}
SMALL = {"gemm": (0, (40, 30, 20)), "conv2d": (40, (3, 12, 10, 5, 3, 1)), "mlp": (50, (72, 64, 64, 4))}
"""Rows and sizes."""

operations = pytest.mark.parametrize("operation", SMALL)


def random_problem(operation, rows, sizes, seed):
    return ladder_for(operation).problem(rows, sizes, seed)


def stage_of(operation, *problem):
    return STAGES[operation](backends.backend_for("cpu"), *problem)


def exact(operation, first, second):
    if operation == "gemm":
        return np.einsum("ik,kj->ij", first.astype(np.float64), second.astype(np.float64))
    if operation == "conv2d":
        _, stride, padding, dilation = first.sliding_window
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": first.groups}
        return reference_conv2d(second, first.weights, first.bias, first.activation, **options)
    values = second.astype(np.float64)
    for layer in first:
        values = np.einsum("ri,io->ro", values, layer.weights.astype(np.float64)) + layer.bias
        values = np.where(values > 0, values, 0) if isinstance(layer.activation, ReLU) else values
    return values


def arrays_of(problem):
    for part in problem:
        for array in part if isinstance(part, tuple) else (part,):
            yield getattr(array, "weights", array)


@operations
def test_a_seed_makes_the_same_problem_again(operation):
    one, again, other = (list(arrays_of(random_problem(operation, *SMALL[operation], seed))) for seed in (5, 5, 6))
    assert all(np.array_equal(first, second) for first, second in zip(one, again, strict=True))
    assert not any(np.array_equal(first, second) for first, second in zip(one, other, strict=True))
    assert {array.dtype for array in one} == {np.dtype(np.float32)}


def test_numbers_of_random_matrices():
    a, b = random_problem("gemm", 0, (300, 200, 100), 5)
    assert (a.shape, b.shape) == ((300, 200), (200, 100))
    assert (a.std(), b.std()) == pytest.approx((1, 1), rel=0.05)


def test_numbers_of_random_images():
    layer, images = random_problem("conv2d", 200, (8, 12, 10, 64, 3, 2), 5)
    assert images.shape == (200, 8, 12, 10)
    assert layer.weights.shape == (64, 8, 3, 3)
    assert (layer.padding, layer.stride, layer.dilation, layer.groups) == ((2, 2), (1, 1), (1, 1), 1)
    assert layer.activation == ReLU()
    assert layer.weights.std() == pytest.approx(np.sqrt(2 / 72), rel=0.05)
    assert 0.05 < layer.bias_vector().std() < 0.15
    assert 0.3 < exact("conv2d", layer, images[:5]).std() < 3


def test_numbers_of_random_networks():
    widths = SMALL["mlp"][1]
    layers, features = random_problem("mlp", 2000, widths, 5)
    assert features.shape == (2000, 72)
    assert [layer.weights.shape for layer in layers] == list(pairwise(widths))
    assert [layer.activation for layer in layers] == [ReLU(), ReLU(), Identity()]
    for layer in layers[:2]:
        assert layer.weights.std() == pytest.approx(np.sqrt(2 / layer.inputs), rel=0.05)
        assert 0.05 < layer.bias.std() < 0.15
    assert 0.3 < np.abs(exact("mlp", layers, features)).mean() < 3  # neither dies out nor grows


@operations
@pytest.mark.parametrize(
    ("change", "right_in"),
    [
        (0.0, {"float32", "tf32", "float16"}),
        (5e-5, {"tf32", "float16"}),
        (4e-3, {"tf32", "float16"}),
        (7e-3, {"float16"}),
        (2e-2, set()),
        (np.nan, set()),
        (np.inf, set()),
        (-np.inf, set()),
    ],
)
@pytest.mark.parametrize("place", [0, 17, -1])
def test_one_output_off_is_found_and_measured(operation, change, right_in, place, monkeypatch):
    monkeypatch.setattr(mlp_ladder, "BATCH", 16)
    problem = random_problem(operation, *SMALL[operation], 1)
    answer = exact(operation, *problem)
    answer[place].flat[-1] += change * np.abs(answer).max()
    settled = stage_of(operation, *problem).settle(answer)
    assert {precision for precision in ("float32", "tf32", "float16") if settled.correct_in(precision)} == right_in
    assert settled.error == pytest.approx(abs(change) if np.isfinite(change) else np.inf, rel=1e-6, abs=1e-12)
    assert settled.carried is None


@pytest.mark.parametrize("operation", ["gemm", "conv2d"])
def test_of_many_rows_some_are_compared(operation, monkeypatch):
    ladder = {"gemm": gemm_ladder, "conv2d": conv_ladder}[operation]
    least = {"gemm": {"ALL_ROWS": 10, "LEAST_ROWS": 5, "PIECE": 100}, "conv2d": {"LEAST_IMAGES": 5}}[operation]
    for name, value in ({"MULTIPLY_ADDS": 1} | least).items():
        monkeypatch.setattr(ladder, name, value)
    problem = random_problem(operation, *SMALL[operation], 1)
    stage, answer = stage_of(operation, *problem), exact(operation, *problem)
    assert stage.settle(answer).error < 1e-12
    found = []
    for row in range(40):
        spoilt = answer.copy()
        spoilt[row] += 1
        found.append(not stage.settle(spoilt).correct)
    assert sum(found) == 5
    assert found[0]
    assert found[-1]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 1, 3), (17, 200, 9), (0, 3, 4), (3, 0, 4)])
def test_host_products_are_near_the_exact_one(sizes, rng):
    a, b = rng.normal(size=sizes[:2]).astype(np.float32), rng.normal(size=sizes[1:]).astype(np.float32)
    for entry in (*backends.kernels("gemm", "cpu"), *backends.kernels("gemm", "reference")):
        found = entry.launch(a, b)
        assert found.shape == (sizes[0], sizes[2])
        assert found.dtype == (np.float64 if entry.device == "reference" else np.float32)
        assert np.abs(found - exact("gemm", a, b)).max(initial=0.0) <= 2.0**-24 * (sizes[1] + 2) * 10 * sizes[1]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1000, 1), (200, 30, 10), (64, 10_000, 16), (300, 300, 300)])
def test_float32_products_are_right_and_tf32s_are_not(sizes):
    a, b = random_problem("gemm", 0, sizes, 2)
    stage = stage_of("gemm", a, b)
    assert stage.settle(launch_blas(a, b)).correct
    rounded = [np.frombuffer((array.view(np.uint32) & 0xFFFFE000).tobytes(), np.float32) for array in (a, b)]
    in_tf32 = stage.settle(exact("gemm", rounded[0].reshape(a.shape), rounded[1].reshape(b.shape)))
    assert not in_tf32.correct
    assert in_tf32.correct_in("tf32") or min(sizes) == 1


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 1, 1, 1), {}),
        ((4, 2, 3, 3), {"padding": 1, "stride": 2}),
        ((6, 2, 3, 2), {"groups": 3, "dilation": (2, 1)}),
        ((64, 64, 3, 3), {}),
    ],
)
def test_what_float32_may_be_off_is_more_than_it_is_and_less_than_it_could_be(shape, options, rng):
    channels = shape[1] * options.get("groups", 1)
    layer = Conv2d(rng.normal(size=shape), rng.normal(size=shape[0]), ReLU(), **options)
    images = rng.normal(size=(9, channels, 11, 12)).astype(np.float32)
    stage = stage_of("conv2d", layer, images)
    for name in ("conv_sequential", "conv_direct"):
        settled = stage.settle(backends.kernel_named("conv2d", name, "cpu").launch(layer, images))
        assert settled.correct
    scale = np.abs(exact("conv2d", layer, images)).max()
    depth = np.prod(shape[1:])
    worst = absolute_sums(images, layer.weights, layer.bias, **options).max() / scale * 2.0**-24 * (depth + 2)
    assert settled.error < stage._allowed < min(8 * worst, 2e-4)


@pytest.mark.parametrize("widths", [(1, 1), (3, 1, 2), (200, 300, 10), (1024, 1024, 1024, 1024)])
def test_float32_networks_are_within_what_is_allowed(widths):
    layers, features = random_problem("mlp", 300, widths, 2)
    stage = stage_of("mlp", layers, features)
    settled = stage.settle(backends.kernel_named("mlp", "blas", "cpu").launch(*stage.arguments(None)))
    assert settled.correct
    assert settled.error < allowed_error(layers) / 2


def test_a_rung_is_held_to_its_own_precision(monkeypatch):
    good = backends.kernel_named("mlp", "blas", "cpu")

    def halved(layers, features):
        return good.launch(layers, features.astype(np.float16))

    rungs = [replace(good, name=name, launch=halved, precision=name) for name in ("float32", "float16")]
    monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_: (good, *rungs))
    result = run_ladder("mlp", *random_problem("mlp", *SMALL["mlp"], 0), device="cpu", runs=1, roofs=ROOFS)
    assert [rung.correct for rung in result.rungs] == [True, False, True]
    assert [rung.precision for rung in result.rungs] == ["float32", "float32", "float16"]
    assert 1e-5 < result.rungs[2].error < 1e-2
