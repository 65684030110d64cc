"""Convolutions as products of filters and pixels on tensor cores: emulated on the host; plans; and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
from convolutions import CASES, drawn_numbers, geometries, launched, options_of, reference_conv2d
from emulation import emulated
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, implicit, sparse_direct
from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, smallest
from sparsenn.backends.cuda.conv.implicit import (
    SOURCE,
    _cut,
    _plans,
    arranged,
    band_of,
    fits,
    kernel_defines,
    launch_implicit_float32,
    plan,
)
from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, Tile
from sparsenn.backends.machine import A100, H200, MACHINES
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Identity

SMALL = Tile(64, 64, 2, 2)

SAME = {"stride": (1, 1), "padding": (1, 1)}
NAMES = ("square", "ragged", "strips", "odd", "strided", "spread", "pointwise", "even", "single", "far")

FEW_CONFLICTS, CONFLICTS = 0.07, {CASES[name]: 0.21 for name in ("even", "far")}
"""Reads that may have to wait for others, in parts of all: where one image ends and the next begins, more often where
images are small."""

cases = pytest.mark.parametrize("case", [CASES[name] for name in NAMES], ids=NAMES)


# ---- The kernel, emulated ------------------------------------------------------------------------------------------


def by_emulation(count, geometry, given):
    """The outputs as the kernel computes them, and reads that wait; places that it does not write stay NaN."""
    images, weights, bias = given
    chunks = parts_of(geometry.channels, FLOAT32.terms)
    band = band_of(geometry, geometry.output_width, SMALL.columns, count)
    made = _cut(geometry, count, SMALL, band, geometry.output_width, chunks, chunks)
    kernel = emulated(SOURCE, kernel_defines(SMALL, IDENTITY))
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, np.float32)
    partial, counters = np.full(1, np.nan, np.float32), np.zeros(made.tiles, np.uint32)
    arrays = images, arranged(weights), weights, bias, outputs, partial, counters, np.float32(np.inf)
    kernel.launch(made.tiles, SMALL.threads, *arrays, *made.numbers(geometry, count))
    assert not counters.any()
    return outputs, kernel.conflicts


@cases
def test_pixels_meet_their_filters(case, rng):
    count, geometry = case
    given = drawn_numbers(rng, *case)
    outputs, conflicts = by_emulation(count, geometry, given)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))
    assert conflicts < CONFLICTS.get(case, FEW_CONFLICTS)


# ---- Plans and filters ---------------------------------------------------------------------------------------------


def test_every_weight_is_held_once(rng):
    weights = rng.permutation(20 * 70 * 6).reshape(20, 70, 2, 3).astype(np.float32) / 2**14
    held = arranged(weights)
    chunks, taps = parts_of(70, 32), 6
    assert held.shape == (chunks, taps, 4, 2, 32, 16)
    found = held.view(np.float32)
    assert np.array_equal(np.sort(found[found != 0]), np.sort(weights[weights != 0]))
    lane = 4 * 5 + 3  # g = 5, t = 3; step 1, filters 16 to 31
    for tap in range(taps):
        own = found[0, tap, 1, 1, lane].reshape(2, 2)
        assert not own[:, 0].any()  # filter 16 + 5 is past the last one; filter 16 + 3 is not
        other = found[0, tap, 1, 1, lane - 8].reshape(2, 2)
        assert np.array_equal(other[:, 0], weights[19, [8 + 3, 8 + 7], tap // 3, tap % 3])


@given(geometries(stride=3), st.integers(1, 40), st.booleans())
def test_a_plan_fits_the_device(geometry, count, ampere):
    limits = A100 if ampere else H200
    for _, made in _plans(geometry, count, limits):
        assert made.shared_bytes <= limits.block_bytes
        assert made.strips * made.strip >= geometry.output_width > (made.strips - 1) * made.strip
        assert made.pixels == count * geometry.output_height * made.strip
        assert made.parts * made.part_chunks >= made.chunks > (made.parts - 1) * made.part_chunks
        assert made.chunks * FLOAT32.terms >= geometry.channels
        assert made.tiles == made.tiles_down * made.strips * parts_of(made.pixels, made.tile.columns)


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
    assert plan(Geometry(64, 224, 224, 64, (3, 3), **SAME), 16, H200).tile.rows == 64
    assert plan(Geometry(512, 7, 7, 64, (3, 3), **SAME), 1, H200).parts > 4


@pytest.mark.parametrize(("fits", "memory"), [(fits, "shared memory"), (sparse_direct.fits, "99 KiB")])
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_what_does_not_fit(fits, memory, machine):
    plain = Geometry(64, 30, 30, 64, (3, 3))
    assert fits(machine, plain) is None
    assert "2 groups" in fits(machine, replace(plain, groups=2))
    assert memory in fits(machine, Geometry(64, 400, 400, 64, (3, 3), dilation=(99, 99)))
    assert f"{MOST_NUMBERS:,}" in fits(machine, Geometry(1024, 2048, 2048, 1, (3, 3)))


def test_the_same_convolutions_fit_every_machine():
    """More shared memory than the smallest machine has is for plans, and not for what is refused."""
    large = Geometry(64, 400, 400, 64, (3, 3), dilation=(12, 12))
    assert plan(large, 1024, H200) is not None
    assert plan(large, 1024, smallest(H200)) is None
    for machine in MACHINES.values():
        assert "99 KiB" in fits(machine, large)
    assert smallest(H200).block_bytes == 99 << 10
    assert smallest(replace(H200, block_bytes=1 << 16)).block_bytes == 1 << 16


def test_a_machine_with_less_shared_memory_than_all_known_takes_less():
    geometry = Geometry(64, 56, 56, 64, (3, 3), dilation=(8, 8))
    assert fits(H200, geometry) is None
    tiny = replace(H200, block_bytes=20 << 10, multiprocessor_bytes=21 << 10)
    assert "20 KiB of shared memory" in fits(tiny, geometry)


# ---- On a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ragged", "pointwise", "wide"])
def test_every_tile(name, rng, monkeypatch):
    count, geometry = CASES[name]
    given = drawn_numbers(rng, count, geometry)
    expected = reference_conv2d(*given, **options_of(geometry))
    best = {}
    for _, made in _plans(geometry, count, current_machine()):
        best.setdefault((made.tile, made.parts > 1), made)
    for made in best.values():
        implicit._prepared.cache_clear()
        monkeypatch.setattr(implicit, "plan", lambda *_, made=made: made)
        assert np.array_equal(launched(launch_implicit_float32, geometry, given, Identity()), expected), made
    implicit._prepared.cache_clear()
