"""Convolutions by the weights that are left: emulated on the host; tilings and weights in order; and on a GPU."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from convolutions import drawn_numbers, geometries, launched, options_of, reference_conv2d, uploaded
from emulation import emulated
from hypothesis import given
from hypothesis import strategies as st

from sparsenn import Network, Session
from sparsenn.backends import automatic, kernel_named
from sparsenn.backends.cuda.conv import Geometry, sparse_direct, unrolled
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, with_sum
from sparsenn.backends.cuda.conv.sparse_direct import (
    SOURCE,
    blocks_of,
    kernel_defines,
    laid_out,
    launch_sparse_direct,
    numbers_of,
    stage_bytes,
)
from sparsenn.backends.cuda.conv.sparse_plan import PAIR_BYTES, Tiling, places_of, tilings
from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.machine import H200, MACHINES
from sparsenn.layers import Add, Conv2d, Identity, ReLU, Tanh

SMALL = Tiling(pixels=2, filters=2, warps=8, shares=2, chunk=4, stages=2)

SAME = {"padding": (1, 1)}
CASES = {
    "square": (2, Geometry(10, 7, 7, 9, (3, 3), **SAME)),
    "odd": (1, Geometry(5, 11, 37, 20, (3, 5), (1, 1), (1, 2))),
    "strided": (2, Geometry(3, 23, 31, 10, (5, 3), (2, 2), (2, 1))),
    "spread": (2, Geometry(3, 23, 31, 10, (3, 4), (3, 2), (2, 3), (2, 3))),
    "pointwise": (5, Geometry(13, 7, 7, 33, (1, 1))),
    "fours": (3, Geometry(13, 6, 8, 33, (1, 1))),
    "apart": (3, Geometry(13, 9, 8, 6, (1, 1), (2, 2))),
    "framed": (2, Geometry(5, 4, 4, 6, (1, 1), (1, 1), (2, 1))),
    "even": (5, Geometry(13, 5, 6, 33, (2, 2))),
    "single": (40, Geometry(14, 1, 1, 20, (1, 1))),
    "far": (3, Geometry(6, 6, 6, 18, (2, 2), (3, 3), (3, 3), (3, 3))),
    "skipping": (2, Geometry(4, 17, 17, 5, (2, 2), (5, 5), (1, 1))),
    "outside": (2, Geometry(4, 5, 5, 5, (1, 2), (2, 2), (4, 4))),
    "first": (1, Geometry(3, 30, 30, 8, (7, 7), (2, 2), (3, 3))),
}
"""Images, and their geometry."""

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def pruned(rng, count, geometry, left=0.3, integers=True):
    """Images, weights of which a share is left, unevenly, and biases."""
    images, weights, bias = drawn_numbers(rng, count, geometry, integers=integers)
    shares = left * rng.choice([0, 1, 2], geometry.filters)[:, None, None, None]
    return images, np.where(rng.random(weights.shape) < shares, weights, np.float32(0)), bias


# ---- The kernel, emulated ------------------------------------------------------------------------------------------


def by_emulation(count, geometry, given):
    """The outputs as the kernel computes them; places that it does not write stay NaN."""
    images, weights, bias = given
    places = places_of(geometry)
    tiling = replace(SMALL, chunk=min(SMALL.chunk, geometry.channels))
    made = laid_out(places, tiling, weights)
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, np.float32)
    kernel = emulated(SOURCE, kernel_defines(places, tiling, IDENTITY, False))
    arrays = images, made.stream, made.segments, made.order, bias, np.float32(np.inf), outputs, outputs
    sizes = numbers_of(places, tiling, made.stage_bytes, count)
    assert tiling.shared_bytes(places, made.stage_bytes) <= H200.block_bytes
    kernel.launch(blocks_of(places, tiling, count, 6), 32 * tiling.warps, *arrays, *sizes)
    return outputs


@cases
def test_weights_meet_their_pixels(case, rng):
    given = pruned(rng, *case)
    assert np.array_equal(by_emulation(*case, given), reference_conv2d(*given, **options_of(case[1])))


# ---- Tilings and weights in order ----------------------------------------------------------------------------------


@given(geometries(channels=40, padding=4, stride=4), st.integers(1, 100), st.sampled_from(sorted(MACHINES)), st.data())
def test_tilings_fit_the_device(geometry, count, name, data):
    machine, places = MACHINES[name], places_of(geometry)
    most = geometry.filters * geometry.depth
    nonzeros = data.draw(st.integers(0, most))
    found = list(tilings(geometry, nonzeros, count, machine))
    assert len(set(found)) == len(found)
    for tiling in found:
        assert tiling.blocks * tiling.warps * 32 <= 1024 or tiling.blocks == 1
        assert tiling.chunk <= geometry.channels
        assert tiling.shared_bytes(places, 0) <= machine.block_bytes
    dense = np.full((geometry.filters, geometry.channels), geometry.kernel[0] * geometry.kernel[1])
    last = found[-1]
    assert last.shared_bytes(places, stage_bytes(last, dense)) <= 99 << 10


def test_more_weights_take_longer_lists_and_few_images_fewer_sums():
    geometry = Geometry(256, 14, 14, 1024, (1, 1))
    many, one = (next(tilings(geometry, 26_000, count, H200)) for count in (64, 1))
    assert many.pixels * many.filters > 4 * one.pixels * one.filters


@given(geometries(channels=30, extent=20), st.data())
def test_every_weight_is_held_once(geometry, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    _, weights, _ = pruned(rng, 1, geometry, left=0.2, integers=False)
    tiling = data.draw(st.sampled_from(list(itertools.islice(tilings(geometry, weights.size // 5, 3, H200), 40))))
    made = laid_out(places_of(geometry), tiling, weights)
    found = made.stream[:, 1::2]
    assert np.isin(weights[weights != 0].view(np.uint32), found).all()
    assert sorted(made.order[made.order >= 0]) == list(range(geometry.filters))
    assert made.segments[:, 1].sum() == made.stream.shape[0]
    assert made.stage_bytes >= PAIR_BYTES * (made.segments[:, 1].max() + 1)


def test_sets_and_warps_have_about_as_many_weights_each(rng):
    geometry, tiling = Geometry(64, 8, 8, 256, (3, 3)), Tiling(4, 4, 8, 1, 64, 1)
    weights = np.zeros((256, 64, 3, 3), np.float32)
    left = np.repeat(np.arange(256) * 2, 1)
    for filter_, count in enumerate(left):
        weights[filter_].reshape(-1)[:count] = 1
    order = laid_out(places_of(geometry), tiling, weights).order
    sums = left[order].reshape(-1, tiling.filters).sum(axis=1)
    assert sums.max() < 1.1 * sums.min()


def test_the_prior_counts_the_weights_that_are_left():
    weights = np.ones((256, 256, 3, 3), np.float32)
    few = np.where(np.arange(256 * 9).reshape(256, 3, 3) % 20, 0, weights)
    kernel, image = kernel_named("conv2d", "conv_sparse_direct", "cuda"), (256, 14, 14)
    full, tenth = (kernel.seconds(H200, Conv2d(given, padding=1), image) for given in (weights, few))
    assert 12 < full / tenth < 20
    others = [each for each in automatic("conv2d", "cuda") if each.precision == "float32" and each is not kernel]
    best = min(each.seconds(H200, Conv2d(few, padding=1), image) for each in others)
    assert tenth < best < full


@pytest.mark.parametrize("reproducible", [True, False])
def test_pruned_convolutions_are_planned_for_it(reproducible, rng):
    weights = np.where(rng.random((256, 256, 3, 3)) < 0.1, np.float32(0.1), np.float32(0))
    layers = Conv2d(weights, padding=1), Conv2d(np.ones((256, 1, 3, 3)), groups=256, padding=1), Conv2d(weights)
    session = Session(Network(layers, image=(256, 14, 14)), machine="h200", reproducible=reproducible)
    names = [step.kernel.name for step in session.plan(np.zeros((64, 256, 14, 14), np.float32)).steps]
    assert names[::2] == ["conv_sparse_direct"] * 2
    assert names[1] != "conv_sparse_direct"


# ---- On a GPU ------------------------------------------------------------------------------------------------------

GPU_CASES = CASES | {
    "wide": (2, Geometry(64, 50, 224, 64, (3, 3), **SAME)),
    "deep": (64, Geometry(256, 14, 14, 256, (3, 3), **SAME)),
    "many": (300, Geometry(128, 28, 28, 512, (1, 1))),
    "last": (9, Geometry(512, 7, 7, 2048, (1, 1))),
    "halved": (9, Geometry(512, 14, 14, 256, (1, 1), (2, 2))),
    "none": (0, Geometry(64, 14, 14, 64, (3, 3), **SAME)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("left", [0.05, 0.5])
@pytest.mark.parametrize("case", GPU_CASES.values(), ids=GPU_CASES)
def test_bits_on_a_gpu_are_those_of_unrolled(case, left, rng):
    given = pruned(rng, *case, left=left, integers=False)
    for activation in (ReLU(), ReLU(0.5), Tanh(), Identity()):
        expected = launched(unrolled.launch_unrolled, case[1], given, activation)
        assert np.array_equal(launched(launch_sparse_direct, case[1], given, activation), expected)


@pytest.mark.gpu
def test_images_that_begin_anywhere(rng):
    cp, geometry = cupy(), CASES["fours"][1]
    images, weights, bias = pruned(rng, 5, geometry)
    layer = uploaded(geometry, weights, bias, Identity())
    late = cp.asarray(np.concatenate([[np.float32(0)], images.ravel()]))[1:].reshape(images.shape)
    assert np.array_equal(
        cp.asnumpy(launch_sparse_direct(layer, late)), cp.asnumpy(unrolled.launch_unrolled(layer, late))
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["wide", "deep", "many", "last"])
def test_the_best_tilings_on_a_gpu(name, rng, monkeypatch):
    count, geometry = GPU_CASES[name]
    given = pruned(rng, count, geometry, left=0.1, integers=False)
    expected = launched(unrolled.launch_unrolled, geometry, given, ReLU())
    found = itertools.islice(tilings(geometry, np.count_nonzero(given[1]), count, current_machine()), 24)
    for tiling in found:
        monkeypatch.setattr(sparse_direct, "tilings", lambda *_, tiling=tiling: iter([tiling]))
        assert np.array_equal(launched(launch_sparse_direct, geometry, given, ReLU()), expected), tiling


@pytest.mark.gpu
@pytest.mark.parametrize("most", [MOST_NUMBERS, 3000])
@pytest.mark.parametrize("name", ["fours", "strided"])
def test_launches_with_another_value_added(name, most, rng, monkeypatch):
    """A second launch finds what the first has laid out. With few numbers at most, images go apart."""
    cp, (count, geometry) = cupy(), CASES[name]
    images, weights, bias = pruned(rng, count, geometry)
    monkeypatch.setattr(sparse_direct, "MOST_NUMBERS", most)
    layer = uploaded(geometry, weights, bias, ReLU())
    for _ in range(2):
        found = cp.asnumpy(launch_sparse_direct(layer, cp.asarray(images)))
        assert np.array_equal(found, reference_conv2d(images, weights, bias, ReLU(), **options_of(geometry)))
    expected = reference_conv2d(images, weights, bias, **options_of(geometry))
    others = rng.integers(-9, 9, expected.shape).astype(np.float32)
    total = with_sum(uploaded(geometry, weights, bias, Identity()), Add(ReLU(7.0)))
    found = cp.asnumpy(launch_sparse_direct(total, cp.asarray(images), cp.asarray(others)))
    assert np.array_equal(found, np.clip(expected + others, 0, 7))
