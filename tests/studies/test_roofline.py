"""Predictions from roofs, beside what a ladder measured."""

from dataclasses import replace

import numpy as np
import pytest

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.layers import Conv2d
from sparsenn.studies.measure import Roofs
from sparsenn.studies.roofline import Prediction, predict, roofline
from sparsenn.studies.run import LadderResult, RungResult
from sparsenn.studies.traffic import Traffic, coalesced, naive

ROOFS = Roofs(
    copy_bandwidth=100.0,
    cache_bandwidth=1000.0,
    cache="L2",
    cache_bytes=50,
    multiply_adds={"float32": 10.0, "float16": 1000.0},
    shared_bandwidth=2000.0,
    processors=4,
)


# ---- Predictions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traffic", "precision", "seconds", "bound"),
    [
        (Traffic("m", 400, 10), "float32", 4.0, "memory"),
        (Traffic("m", 400, 50), "float32", 5.0, "float32"),
        (Traffic("m", 400, 5000), "float16", 5.0, "float16"),
        (Traffic("m", 400, 50), "tf32", 5.0, "float32"),  # the device has no such roof
        (Traffic("m", 400, 10, loaded=5000, between=50), "float32", 5.0, "L2"),
        (Traffic("m", 400, 10, loaded=3000, between=50), "float32", 4.0, "memory"),
        (Traffic("m", 400, 10, loaded=5000, between=51), "float32", 50.0, "memory"),
        (Traffic("m", 400, 10, loaded=100, between=51), "float32", 4.0, "memory"),
        (Traffic("m", 400, 10, loaded=400, between=1, shared=16_000), "float32", 8.0, "shared memory"),
        (Traffic("m", 400, 50, blocks=4), "float32", 5.0, "float32"),
        (Traffic("m", 400, 50, blocks=400), "float32", 5.0, "float32"),
        (Traffic("m", 400, 50, blocks=1), "float32", 20.0, "float32"),
    ],
)
def test_the_longest_time_is_the_prediction(traffic, precision, seconds, bound):
    found = predict(traffic, ROOFS, precision)
    assert (found.seconds, found.bound) == (seconds, bound)
    assert found.operations == 2 * traffic.multiply_adds


def test_a_prediction_says_which_bytes_it_means():
    least = predict(Traffic("compulsory", 400, 50), ROOFS)
    assert (least.model, least.bytes, least.source, least.intensity) == ("compulsory", 400, "memory", 0.25)
    cached = predict(Traffic("m", 400, 50, loaded=1000, between=50), ROOFS)
    assert (cached.bytes, cached.source, cached.intensity) == (1000, "L2", 0.1)
    assert predict(Traffic("m", 400, 50, loaded=1000, between=51), ROOFS).source == "memory"
    assert predict(Traffic("m", 0, 50), ROOFS).intensity == 0.0


# ---- Beside a ladder --------------------------------------------------------------------------------------------


def measured(operation, names, **changes):
    rungs = tuple(RungResult(name, "", True, 0.0, (2.0,), 2.0, 0.1, None, None, None) for name in names)
    given = LadderResult(operation, "test", "stage", 1, 3, 5, ROOFS, 1.0, 700, 80, rungs)
    return replace(given, **changes)


def test_rungs_of_convolutions_have_their_models():
    layer = Conv2d(np.ones((3, 2, 3, 3), np.float32), padding=1)
    images = np.ones((5, 2, 4, 6), np.float32)
    result = roofline(measured("conv2d", ["conv_naive", "conv_coalesced", "novel"]), (layer, images), "cuda", ROOFS)
    geometry = Geometry(2, 4, 6, 3, (3, 3), padding=(1, 1))
    assert result.predictions[0] == predict(naive(geometry, 5), ROOFS)
    assert result.predictions[1] == predict(coalesced(geometry, 5), ROOFS)
    assert result.predictions[2] == predict(Traffic("compulsory", 700, 80), ROOFS)
    halved = roofline(measured("conv2d", ["conv_naive"]), (layer, images.astype(np.float16)), "cuda", ROOFS)
    assert 2 * halved.predictions[0].bytes == result.predictions[0].bytes


def test_all_others_are_held_against_what_any_way_must_move():
    half = replace(measured("spmspm", ["naive"]).rungs[0], precision="float16")
    result = roofline(measured("spmspm", [], rungs=(half,)), (None, None), "cuda", ROOFS)
    assert result.predictions == (Prediction("compulsory", 700, "memory", 160, 7.0, "memory"),)
    split = replace(half, precision="float32", tf32_products=3)
    roofs = replace(ROOFS, multiply_adds={"float32": 1.0, "tf32": 30.0})
    (found,) = roofline(measured("mlp", [], rungs=(split,)), (None, None), "cuda", roofs).predictions
    assert (found.seconds, found.bound, found.operations) == (8.0, "tf32", 160)
    assert result.rate(half) == 80.0
    assert result.rate(replace(half, seconds=None)) is None
