"""The ladder of conv2d: its random problem, which images it compares, and what it takes for right."""

from dataclasses import replace

import numpy as np
import pytest
from convolutions import absolute_sums, reference_conv2d

from sparsenn import backends
from sparsenn.errors import ResourceError, ShapeError, UsageError
from sparsenn.layers import Conv2d, ReLU
from sparsenn.studies.conv2d import ladder as conv_ladder
from sparsenn.studies.conv2d.ladder import ConvolutionStage, random_problem
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.measure import Roofs
from sparsenn.studies.run import run_ladder

SIZES = (3, 12, 10, 5, 3, 1)
ROOFS = Roofs(1e10, 1e11, "L3", 1 << 25, {"float32": 1e9})


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
    ("rows", "sizes", "seed"),
    [
        (0, SIZES, 0),
        (1, SIZES[:5], 0),
        (1, (0, 12, 10, 5, 3, 1), 0),
        (1, (3, 12, 10, 5, 0, 1), 0),
        (1, (3, 12, 10, 5, 3, -1), 0),
        (1, SIZES, -1),
    ],
)
def test_numbers_that_make_no_problem_are_refused(rows, sizes, seed):
    with pytest.raises(UsageError, match="make no convolution"):
        random_problem(rows, sizes, seed)


def test_filters_larger_than_images_are_refused():
    with pytest.raises(ShapeError, match="larger than an image"):
        random_problem(1, (1, 5, 5, 1, 8, 1), 0)


@pytest.mark.parametrize(("rows", "sizes"), [(2**61, SIZES), (2**40, SIZES)])
def test_what_memory_does_not_hold_is_refused(rows, sizes):
    with pytest.raises(ResourceError, match="take fewer --rows, or smaller --sizes"):
        random_problem(rows, sizes, 0)


def test_the_right_answer_is_right():
    stage, answer = stage_and_answer()
    settled = stage.settle(answer.astype(np.float32))
    assert settled.correct
    assert 0 < settled.error < 1e-7
    assert settled.carried is None


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


def test_outputs_of_another_shape_are_wrong():
    stage, answer = stage_and_answer()
    for wrong in (answer[:-1], answer[:, :, :, 1:], answer.reshape(len(answer), -1), None):
        settled = stage.settle(wrong)
        assert settled.error == np.inf
        assert not settled.correct
        assert not settled.correct_in("float16")


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


def test_work_is_each_number_once():
    stage, answer = stage_and_answer(7)
    assert stage.work.multiply_adds == 7 * 5 * 12 * 10 * 27
    assert stage.work.bytes == 4 * (7 * 3 * 12 * 10 + 5 * 27 + 5 + answer.size)


def test_the_ladder_runs_on_hosts():
    ladder = ladder_for("conv2d")
    assert (ladder.rows, ladder.sizes) == (1000, (1, 86, 86, 4, 7, 0))
    assert ladder.form == "channels,height,width,filters,side[,padding]"
    for device in ("cpu", "reference"):
        result = run_ladder("conv2d", *ladder.problem(10, SIZES, 0), device=device, runs=2, roofs=ROOFS)
        assert result.correct
        assert result.scaled
        assert (result.stage, result.stages, result.rows, result.row) == ("convolution", 1, 10, "image")
        assert [rung.name for rung in result.rungs] == [entry.name for entry in ladder.rungs[device]]
        assert result.rungs[0].seconds > 0


def test_the_plainest_comes_first():
    ladder = ladder_for("conv2d")
    assert [ladder.rungs[device][0].name for device in ("cpu", "cuda")] == ["conv_sequential", "conv_baseline"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "reference"])
def test_every_kernel_has_its_place_in_the_story(device):
    rungs = ladder_for("conv2d").rungs[device]
    assert len(set(rungs)) == len(rungs)
    beside = {kernel for kernel in backends.kernels("conv2d", device) if kernel.name == "conv_depthwise"}
    assert set(rungs) | beside == set(backends.kernels("conv2d", device))
    assert not beside & set(rungs)


def test_the_story_of_the_gpu_is_told_in_its_order():
    told = [rung.name for rung in ladder_for("conv2d").rungs["cuda"]]
    assert told == [
        *(
            "conv_baseline",
            "conv_constant_filters",
            "conv_unrolled",
            "conv_tiled_shared",
            "conv_half",
            "conv_per_shape",
            "conv_implicit_gemm",
            "conv_swept",
        ),
        *(
            "conv_streamed",
            "conv_register_tiled",
            "conv_naive",
            "conv_coalesced",
            "conv_block_tiled",
            "conv_shared_tiled",
            "conv_vectorized",
        ),
        *(
            "conv_tensor_float32",
            "conv_tensor_tf32",
            "conv_tensor_half",
            "conv_implicit_float32",
        ),
        *("conv_warpgroup_float32", "conv_warpgroup_tf32", "conv_warpgroup_half"),
        "conv_sparse_direct",
        *("conv_cudnn_float32", "conv_cudnn_tf32", "conv_cudnn_float16", "conv_library"),
    ]


def test_rungs_are_asked_by_layer_and_image(monkeypatch):
    good = backends.kernel_named("conv2d", "conv_direct", "cpu")
    picky = replace(good, name="picky", why_not=lambda machine, layer, image: f"{layer.filters} filters on {image}")
    monkeypatch.setattr("sparsenn.studies.run.rungs_of", lambda *_: (good, picky))
    result = run_ladder("conv2d", *random_problem(4, SIZES, 0), device="cpu", runs=1, roofs=ROOFS)
    assert result.left_out == (("picky", "5 filters on (3, 12, 10)"),)
