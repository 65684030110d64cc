"""Convolutions as products of filters and pixels on tensor cores: emulated on the host; plans; and on a GPU."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from convolutions import (
    absolute_sums,
    assert_near_conv2d,
    drawn_numbers,
    geometries,
    launched,
    options_of,
    reference_conv2d,
)
from emulation import EmulationError, emulated
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow

from sparsenn.backends.cuda.conv import Geometry, channels_last, implicit
from sparsenn.backends.cuda.conv.channels_last import launch_channels_last_half
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS
from sparsenn.backends.cuda.conv.implicit import SOURCES, fits, kernel_defines, run_implicit
from sparsenn.backends.cuda.conv.implicit_plan import TILES, _cut, _plans, arranged, band_of, plan
from sparsenn.backends.cuda.conv.shared_memory import smallest
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS, IDENTITY, RELU
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Tile
from sparsenn.backends.machine import A100, H200, MACHINES
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Identity, ReLU, Tanh

KINDS = (FLOAT32, TF32, HALF)
SMALL = Tile(64, 64, 2, 2)

SAME = {"stride": (1, 1), "padding": (1, 1)}
CASES = {
    "square": (2, Geometry(64, 14, 14, 64, (3, 3), **SAME)),
    "ragged": (3, Geometry(70, 9, 10, 70, (3, 3), **SAME)),
    "strips": (1, Geometry(5, 12, 70, 20, (3, 3), **SAME)),
    "odd": (1, Geometry(5, 11, 37, 20, (3, 5), (1, 1), (1, 2))),
    "strided": (2, Geometry(3, 23, 31, 20, (5, 3), (2, 2), (2, 1))),
    "spread": (2, Geometry(3, 23, 31, 20, (3, 4), (3, 2), (2, 3), (2, 3))),
    "pointwise": (5, Geometry(130, 7, 7, 33, (1, 1))),
    "even": (5, Geometry(130, 5, 6, 33, (2, 2))),
    "single": (70, Geometry(64, 1, 1, 40, (1, 1))),
    "far": (3, Geometry(20, 6, 6, 18, (2, 2), (3, 3), (3, 3), (3, 3))),
}
"""Images, and their geometry."""

FEW_CONFLICTS, CONFLICTS = 0.07, {CASES[name]: 0.21 for name in ("even", "far")}
"""Reads that may have to wait for others, in parts of all: where one image ends and the next begins, more often where
images are small."""

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# ---- The kernels, emulated -----------------------------------------------------------------------------------------


def by_emulation(
    kind,
    count,
    geometry,
    given,
    tile=SMALL,
    strip=None,
    parts=1,
    paired=False,
    activation=IDENTITY,
    seed=1,
    last=False,
    **planted,
):
    """The outputs as a kernel computes them, with channels `last` if so; places that it does not write stay NaN."""
    images, weights, bias = given
    strip = geometry.output_width if strip is None else strip
    chunks = parts_of(geometry.channels, kind.terms)
    band = band_of(geometry, strip, tile.columns, count)
    made = _cut(geometry, count, paired, tile, band, strip, chunks, parts_of(chunks, parts))
    half_rows = images.dtype == np.float16
    defines = kernel_defines(kind, tile, paired, half_rows, activation)
    if last:
        defines = channels_last.kernel_defines(tile, half_rows, activation)
    kernel = emulated(channels_last.SOURCE if last else SOURCES[kind], defines, **planted)
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, images.dtype)
    partial = np.full(made.tiles * made.parts * tile.sums if made.parts > 1 else 1, np.nan, np.float32)
    counters = np.zeros(made.tiles, np.uint32)
    shown = laid_out(geometry, images) if last else images
    arrays = shown, arranged(kind, weights), weights, bias, outputs, partial, counters, np.float32(np.inf)
    kernel.launch(made.tiles * made.parts, tile.threads, *arrays, *made.numbers(geometry, count), seed=seed)
    assert not counters.any()
    return outputs, kernel.conflicts


def laid_out(geometry, images):
    """Images as the kernel that lays them out leaves them."""
    count, channels = images.shape[:2]
    chunks, pixels = parts_of(channels, 64), geometry.height * geometry.width
    laid = np.full((count, chunks, geometry.height, geometry.width, 64), np.nan, np.float16)
    defines = channels_last.layout_defines(images.dtype == np.float16, pixels % 2 == 0)
    tiles = parts_of(pixels, channels_last.PIXELS)
    sizes = map(np.int32, (channels, chunks, pixels, tiles))
    kernel = emulated(channels_last.LAYING_OUT, defines)
    kernel.launch(count * chunks * tiles, channels_last.THREADS, images, laid, *sizes)
    assert kernel.conflicts == 0
    return laid


@cases
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_channels_come_last(case, dtype, rng):
    count, geometry = case
    images = drawn_numbers(rng, count, geometry, dtype)[0]
    chunks = parts_of(geometry.channels, 64)
    wanted = np.zeros((count, chunks * 64, geometry.height, geometry.width), np.float16)
    wanted[:, : geometry.channels] = images
    wanted = wanted.reshape(count, chunks, 64, geometry.height, geometry.width).transpose(0, 1, 3, 4, 2)
    assert np.array_equal(laid_out(geometry, images), wanted)


@cases
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("stages", rest_slow([2, 4]))
def test_pixels_that_channels_last_meet_their_filters(case, dtype, stages, rng):
    count, geometry = case
    given = drawn_numbers(rng, count, geometry, dtype)
    tile = replace(SMALL, stages=stages)
    outputs, conflicts = by_emulation(HALF, count, geometry, given, tile, last=True, seed=stages)
    assert outputs.dtype == dtype
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))
    assert conflicts < CONFLICTS.get(case, FEW_CONFLICTS)


@pytest.mark.parametrize("name", rest_slow(["strips", "odd", "strided", "pointwise", "even"], fast=2))
def test_channels_last_in_strips_and_parts(name, rng):
    count, geometry = CASES[name]
    given = drawn_numbers(rng, count, geometry, np.float16)
    for strip, parts in ((8, 1), (5, 2), (None, 3)):
        outputs, _ = by_emulation(HALF, count, geometry, given, strip=strip, parts=parts, seed=parts, last=True)
        assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@pytest.mark.parametrize("tile", rest_slow(channels_last.TILES), ids=str)
def test_tiles_of_channels_last(tile, rng):
    geometry = Geometry(120, 14, 14, 130, (3, 3), **SAME)
    given = drawn_numbers(rng, 1, geometry, np.float16)
    outputs, conflicts = by_emulation(HALF, 1, geometry, given, tile, last=True)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))
    assert conflicts < FEW_CONFLICTS


@pytest.mark.parametrize(
    ("right", "wrong"),
    rest_slow(
        [
            (" && early_taps() < 1) bring_all<1>();", " && false) bring_all<1>();"),
            ("return shape.taps() - STAGES + 1;", "return shape.taps();"),
            ("(shape.chunks) * shape.plane()", "(shape.channels) * shape.plane()"),
            ("entries[i].x < 0 ? 0 : 16", "16"),
            ("chunk + (tap >= 0)", "chunk + 1"),
            ("which) * shape.plane()", "which)"),
        ],
        fast=2,
    ),
)
def test_a_fault_planted_in_channels_last_is_noticed(right, wrong, rng):
    ways = ((kernel, seed) for kernel in ((1, 1), (2, 2)) for seed in range(3))
    assert any(is_noticed_in_channels_last(*way, (right, wrong), rng) for way in ways)


def is_noticed_in_channels_last(kernel, seed, planted, rng):
    geometry = Geometry(200, 9, 7, 16, kernel, padding=(1, 1))
    given = drawn_numbers(rng, 12, geometry, np.float16)
    try:
        outputs, _ = by_emulation(HALF, 12, geometry, given, seed=seed, planted=planted, last=True)
    except EmulationError:
        return True
    return not np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@kinds
@cases
def test_pixels_meet_their_filters(kind, case, rng):
    count, geometry = case
    given = drawn_numbers(rng, *case)
    outputs, conflicts = by_emulation(kind, count, geometry, given)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))
    assert conflicts < CONFLICTS.get(case, FEW_CONFLICTS)


@cases
@pytest.mark.parametrize("paired", [False, True])
def test_halves_as_they_come(case, paired, rng):
    count, geometry = case
    if paired and (geometry.width % 2 or geometry.stride[1] > 1):
        geometry = replace(geometry, width=geometry.width + geometry.width % 2, stride=(geometry.stride[0], 1))
    given = drawn_numbers(rng, count, geometry, np.float16)
    outputs, _ = by_emulation(HALF, count, geometry, given, paired=paired)
    assert outputs.dtype == np.float16
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@kinds
@pytest.mark.parametrize("strip", rest_slow([8, 16, 21]))
@pytest.mark.parametrize("name", ["strips", "odd", "strided"])
def test_outputs_in_strips(kind, strip, name, rng):
    count, geometry = CASES[name]
    given = drawn_numbers(rng, count, geometry)
    outputs, _ = by_emulation(kind, count, geometry, given, strip=strip, seed=strip)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@kinds
@pytest.mark.parametrize("name", rest_slow(["pointwise", "even"]))
def test_channels_in_parts(kind, name, rng):
    count, geometry = CASES[name]
    given = drawn_numbers(rng, count, geometry)
    for parts in (2, 3):
        outputs, _ = by_emulation(kind, count, geometry, given, parts=parts, seed=parts)
        assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("number", [0, 2])
def test_large_tiles(kind, number, rng):
    geometry = Geometry(2 * kind.terms - 8, 14, 14, 130, (3, 3), **SAME)
    given = drawn_numbers(rng, 1, geometry, np.float16 if kind is HALF else np.float32)
    outputs, conflicts = by_emulation(kind, 1, geometry, given, TILES[kind][number], paired=kind is HALF)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))
    assert conflicts < FEW_CONFLICTS


def test_bias_and_activation(rng):
    geometry = Geometry(4, 6, 9, 18, (3, 3), **SAME)
    given = drawn_numbers(rng, 2, geometry, integers=False)
    for code, activation in ((RELU, ReLU()), (ACTIVATIONS.index("TANH"), Tanh())):
        outputs, _ = by_emulation(FLOAT32, 2, geometry, given, activation=code)
        assert_near_conv2d(outputs, *given, activation, **options_of(geometry))


def test_split_numbers_multiply_as_precisely_as_float32(rng):
    geometry = Geometry(64, 8, 8, 64, (3, 3), **SAME)
    for sign in (np.positive, np.abs):
        images, weights, bias = map(sign, drawn_numbers(rng, 1, geometry, integers=False))
        outputs, _ = by_emulation(FLOAT32, 1, geometry, (images, weights, np.zeros_like(bias)))
        error = np.abs(outputs - reference_conv2d(images, weights, **options_of(geometry)))
        sizes = absolute_sums(images, weights, **options_of(geometry))
        assert (error <= 24 * 2.0**-24 * sizes).all()  # the root of 576, a sum's terms, times half a unit
        assert np.sqrt((error**2).mean()) <= 4 * 2.0**-24 * sizes.mean()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinities_come_out_as_in_float32(rng):
    geometry = Geometry(3, 9, 10, 20, (3, 3), **SAME)
    images, weights, bias = drawn_numbers(rng, 2, geometry, integers=False)
    images[0, 1, 4, 4], images[1, 2, 0, 9], images[1, 0, 8, 0] = np.inf, np.nan, np.finfo(np.float32).max
    outputs, _ = by_emulation(FLOAT32, 2, geometry, (images, weights, bias))
    right = reference_conv2d(images, weights, bias, **options_of(geometry)).astype(np.float32)
    ordinary = np.isfinite(right)
    assert np.array_equal(outputs[~ordinary], right[~ordinary], equal_nan=True)
    np.testing.assert_allclose(outputs[ordinary], right[ordinary], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("right", "wrong"),
    rest_slow(
        [
            ("source.leave();", ""),
            ("self().template bring_all<4>();", ""),
            ("unit ^ key", "unit"),
            ("with_number(place, down / shape.stride_down", "with_number(place, down * shape.stride_down"),
            ("bands > 1 && number % 2", "bands > 2"),
            ("pixel.x + 4 <= row_end", "true"),
        ],
        fast=2,
    ),
)
def test_a_planted_fault_is_noticed(right, wrong, rng):
    geometry = Geometry(100, 9, 7, 16, (2, 2), (2, 2), (1, 1))
    given = drawn_numbers(rng, 3, geometry)
    expected = reference_conv2d(*given, **options_of(geometry))
    assert any(is_noticed(seed, geometry, given, expected, (right, wrong)) for seed in range(5))


def is_noticed(seed, geometry, given, expected, planted):
    try:
        outputs, conflicts = by_emulation(TF32, 3, geometry, given, strip=3, seed=seed, planted=planted)
    except EmulationError:
        return True
    return not np.array_equal(outputs, expected) or conflicts > 0.3


# ---- Plans and filters ---------------------------------------------------------------------------------------------


@kinds
def test_every_weight_is_held_once(kind, rng):
    weights = rng.permutation(20 * 70 * 6).reshape(20, 70, 2, 3).astype(np.float32) / 2**14
    held = arranged(kind, weights)
    chunks, taps = parts_of(70, kind.terms), 6
    assert held.shape == (chunks, taps, 4, 2, 32, 16)
    found = held.view(np.float16 if kind is HALF else np.float32).astype(np.float64)
    rounded = weights.astype(np.float16) if kind is HALF else split_tf32(weights)[0] if kind is TF32 else weights
    assert np.array_equal(np.sort(found[found != 0]), np.sort(rounded[rounded != 0].astype(np.float64)))
    lane, pairs = 4 * 5 + 3, kind.factor_bytes == 2  # g = 5, t = 3; step 1, filters 16 to 31
    terms = [6, 7, 14, 15] if pairs else [3, 7]
    for tap in range(taps):
        own = found[0, tap, 1, 1, lane]
        below = own.reshape(2, 2, -1)[:, 0].ravel()  # filter 16 + 5 is past the last one; filter 16 + 3 is not
        assert not below.any()
        other = found[0, tap, 1, 1, lane - 8].reshape(2, 2, -1)[:, 0].ravel()
        wanted = rounded[19, [kind.terms // 4 + term for term in terms], tap // 3, tap % 3].astype(np.float64)
        assert np.array_equal(other, wanted)


@given(geometries(stride=3), st.integers(1, 40), st.booleans())
def test_a_plan_fits_the_device(geometry, count, ampere):
    limits = A100 if ampere else H200
    for kind in KINDS:
        for _, made in _plans(kind, geometry, count, False, limits):
            assert made.shared_bytes <= limits.block_bytes
            assert made.strips * made.strip >= geometry.output_width > (made.strips - 1) * made.strip
            assert made.pixels == count * geometry.output_height * made.strip
            assert made.parts * made.part_chunks >= made.chunks > (made.parts - 1) * made.part_chunks
            assert made.chunks * kind.terms >= geometry.channels
            blocks_along = parts_of(made.pixels, made.tile.columns)
            assert made.tiles == made.tiles_down * made.strips * blocks_along


@given(geometries(stride=3), st.sampled_from([8, 13, 16, 60]), st.sampled_from([64, 96, 256]), st.integers(1, 30))
def test_a_band_holds_what_a_block_sees(geometry, strip, pixels, count):
    band = band_of(geometry, strip, pixels, count)
    (down, _), height = geometry.stride, geometry.output_height
    deepest = 0
    for block in range(parts_of(count * height * strip, pixels)):
        first, last = block * pixels // strip, (block * pixels + pixels - 1) // strip
        last = min(last, count * height - 1)
        start = first // height * band.tall + first % height * down
        end = last // height * band.tall + last % height * down + (geometry.kernel[0] - 1) * geometry.dilation[0]
        deepest = max(deepest, end - start + 1)
        assert last // height - first // height < band.images
    assert deepest <= band.rows
    assert band.pitch >= (strip - 1) * geometry.stride[1] + (geometry.kernel[1] - 1) * geometry.dilation[1] + 1
    assert band.tall % down == 0


def test_plans_suit_the_shape():
    wide = Geometry(64, 224, 224, 64, (3, 3), **SAME)
    assert plan(HALF, wide, 16, True, H200).tile.rows == 64
    small = plan(HALF, Geometry(512, 14, 14, 512, (3, 3), **SAME), 16, True, H200)
    assert (small.tile.columns, small.tiles, small.parts) == (96, 132, 1)
    assert plan(FLOAT32, Geometry(512, 7, 7, 64, (3, 3), **SAME), 1, False, H200).parts > 4


def test_what_does_not_fit():
    plain = Geometry(64, 30, 30, 64, (3, 3))
    for machine in MACHINES.values():
        assert fits(machine, plain) is None
        assert "2 groups" in fits(machine, replace(plain, groups=2))
        assert "shared memory" in fits(machine, Geometry(64, 400, 400, 64, (3, 3), dilation=(99, 99)))
        assert f"{MOST_NUMBERS:,}" in fits(machine, Geometry(1024, 2048, 2048, 1, (3, 3)))


def test_the_same_convolutions_fit_every_machine():
    """More shared memory than the smallest machine has is for plans, and not for what is refused."""
    large = Geometry(64, 400, 400, 64, (3, 3), dilation=(12, 12))
    assert plan(HALF, large, 1024, False, H200) is not None
    assert plan(HALF, large, 1024, False, smallest(H200)) is None
    for machine in MACHINES.values():
        assert "99 KiB" in fits(machine, large)
    assert smallest(H200).block_bytes == 99 << 10
    assert smallest(replace(H200, block_bytes=1 << 16)).block_bytes == 1 << 16


def test_a_machine_with_less_shared_memory_than_all_known_takes_less():
    geometry = Geometry(64, 56, 56, 64, (3, 3), dilation=(8, 8))
    assert fits(H200, geometry) is None
    tiny = replace(H200, block_bytes=20 << 10, multiprocessor_bytes=21 << 10)
    assert "20 KiB of shared memory" in fits(tiny, geometry)


def test_kernels_say_what_they_multiply():
    kernels = (
        implicit.IMPLICIT_FLOAT32,
        implicit.IMPLICIT_TF32,
        implicit.IMPLICIT_HALF,
        channels_last.CHANNELS_LAST_HALF,
    )
    assert [kernel.precision for kernel in kernels] == ["float32", "tf32", "float16", "float16"]
    assert [kernel.half_rows for kernel in kernels] == [False, False, True, True]
    assert [kernel.tf32_products for kernel in kernels] == [3, 0, 0, 0]
    assert all(kernel.auto and kernel.seconds and kernel.summary for kernel in kernels)


@pytest.mark.parametrize("count", [1, 16, 10_000])
def test_images_are_laid_out_in_even_pieces(count):
    for geometry in (Geometry(64, 224, 224, 64, (3, 3), **SAME), Geometry(3, 5, 7, 8, (3, 3))):
        most = channels_last.pieces(geometry, count)
        rounds = parts_of(count, most)
        image = parts_of(geometry.channels, 64) * geometry.height * geometry.width * 128
        assert most == 1 or most * image <= channels_last.HELD_BYTES
        assert 0 < most <= count
        assert most * rounds - count < rounds


def test_channels_last_refuses_what_others_refuse():
    assert channels_last.fits(H200, Geometry(64, 30, 30, 64, (3, 3))) is None
    assert "2 groups" in channels_last.fits(H200, Geometry(64, 30, 30, 64, (3, 3), groups=2))
    assert "shared memory" in channels_last.fits(H200, Geometry(64, 400, 400, 64, (3, 3), dilation=(99, 99)))


# ---- On a GPU ------------------------------------------------------------------------------------------------------

GPU_CASES = CASES | {"wide": (2, Geometry(64, 50, 224, 64, (3, 3), **SAME))}


@pytest.mark.gpu
@kinds
@pytest.mark.parametrize("name", ["ragged", "pointwise", "wide"])
def test_every_tile(kind, name, rng, monkeypatch):
    count, geometry = GPU_CASES[name]
    given = drawn_numbers(rng, count, geometry)
    expected = reference_conv2d(*given, **options_of(geometry))
    best = {}
    for _, made in _plans(kind, geometry, count, False, current_machine()):
        best.setdefault((made.tile, made.parts > 1), made)
    for made in best.values():
        implicit._prepared.cache_clear()
        monkeypatch.setattr(implicit, "plan", lambda *_, made=made: made)
        assert np.array_equal(launched(partial(run_implicit, kind), geometry, given, Identity()), expected), made
    implicit._prepared.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ragged", "pointwise", "wide"])
def test_every_tile_of_channels_last(name, rng, monkeypatch):
    count, geometry = GPU_CASES[name]
    given = drawn_numbers(rng, count, geometry, np.float16)
    expected = reference_conv2d(*given, **options_of(geometry)).astype(np.float16)
    best = {}
    for _, made in _plans(HALF, geometry, count, False, current_machine(), channels_last.TILES, True):
        best.setdefault((made.tile, made.parts > 1), made)
    monkeypatch.setattr(channels_last, "HELD_BYTES", 1 << 40)
    for made in best.values():
        channels_last._prepared.cache_clear()
        monkeypatch.setattr(channels_last, "_plan", lambda *_, made=made: made)
        assert np.array_equal(launched(launch_channels_last_half, geometry, given, Identity()), expected), made
    channels_last._prepared.cache_clear()


@pytest.mark.gpu
def test_images_laid_out_some_at_a_time(rng, monkeypatch):
    geometry = Geometry(70, 9, 11, 70, (3, 3), **SAME)
    given = drawn_numbers(rng, 7, geometry, np.float16)
    monkeypatch.setattr(channels_last, "HELD_BYTES", 3 * 2 * 99 * 128)
    expected = reference_conv2d(*given, **options_of(geometry)).astype(np.float16)
    assert np.array_equal(launched(launch_channels_last_half, geometry, given, Identity()), expected)
