"""The ladder of conv2d: its random problem, which images it compares, and what it takes for right."""

import numpy as np
import pytest
from convolutions import absolute_sums, reference_conv2d

from sparsenn import backends
from sparsenn.layers import Conv2d, ReLU
from sparsenn.studies.conv2d import ladder as conv_ladder
from sparsenn.studies.conv2d.ladder import ConvolutionStage, random_problem

SIZES = (3, 12, 10, 5, 3, 1)


def exact(layer, images):
    _, stride, padding, dilation = layer.sliding_window
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": layer.groups}
    return reference_conv2d(images, layer.weights, layer.bias, layer.activation, **options)


def stage_and_answer(rows=7, sizes=SIZES):
    layer, images = random_problem(rows, sizes, 1)
    return ConvolutionStage(backends.backend_for("cpu"), layer, images), exact(layer, images)


def test_a_random_problem_is_what_its_numbers_say():
    layer, images = random_problem(200, (8, 12, 10, 64, 3, 2), 5)
    assert images.shape == (200, 8, 12, 10)
    assert images.dtype == np.float32
    assert layer.weights.shape == (64, 8, 3, 3)
    assert (layer.padding, layer.stride, layer.dilation, layer.groups) == ((2, 2), (1, 1), (1, 1), 1)
    assert layer.activation == ReLU()
    assert layer.weights.std() == pytest.approx(np.sqrt(2 / 72), rel=0.05)
    assert 0.05 < layer.bias_vector().std() < 0.15
    assert 0.3 < exact(layer, images[:5]).std() < 3
    again, same = random_problem(200, (8, 12, 10, 64, 3, 2), 5)
    assert np.array_equal(images, same)
    assert np.array_equal(layer.weights, again.weights)
    assert not np.array_equal(images, random_problem(200, (8, 12, 10, 64, 3, 2), 6)[1])


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
    ],
)
@pytest.mark.parametrize("image", [0, 3, 6])
def test_one_output_off_is_found_and_measured(change, right_in, image):
    stage, answer = stage_and_answer()
    largest = np.abs(answer).max()
    answer[image, 2, 5, 9] += change * largest
    settled = stage.settle(answer)
    assert {precision for precision in ("float32", "tf32", "float16") if settled.correct_in(precision)} == right_in
    assert settled.error == pytest.approx(change if np.isfinite(change) else np.inf, rel=1e-6, abs=1e-12)


def test_of_many_images_some_are_compared(monkeypatch):
    monkeypatch.setattr(conv_ladder, "LEAST_IMAGES", 6)
    monkeypatch.setattr(conv_ladder, "MULTIPLY_ADDS", 1)
    stage, answer = stage_and_answer(40)
    found = []
    for image in range(40):
        spoilt = answer.copy()
        spoilt[image, 0, 0, 0] += 1
        found.append(not stage.settle(spoilt).correct)
    assert sum(found) == 6
    assert found[0]
    assert found[-1]
    assert [not stage_and_answer(40)[0].settle(answer).correct for _ in range(2)] == [False, False]


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
    stage = ConvolutionStage(backends.backend_for("cpu"), layer, images)
    for name in ("conv_sequential", "conv_direct"):
        settled = stage.settle(backends.kernel_named("conv2d", name, "cpu").launch(layer, images))
        assert settled.correct
    scale = np.abs(exact(layer, images)).max()
    depth = np.prod(shape[1:])
    worst = absolute_sums(images, layer.weights, layer.bias, **options).max() / scale * 2.0**-24 * (depth + 2)
    allowed = stage._allowed
    assert settled.error < allowed < 8 * worst
    assert allowed < 2e-4
