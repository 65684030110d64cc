"""Convolutions multiplied by whole warpgroups: emulated on the host; plans; and on a GPU."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from convolutions import CASES, drawn_numbers, geometries, launched, options_of, reference_conv2d
from emulation import emulated
from hypothesis import example
from hypothesis import given as drawn
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, warpgroup
from sparsenn.backends.cuda.conv.warpgroup import LAYING_OUT, SOURCE, fits, run_warpgroup, why_no_warpgroups
from sparsenn.backends.cuda.conv.warpgroup_plan import (
    SHAPES,
    STAGES,
    STEPS,
    Tile,
    arranged,
    cut,
    divisor,
    fitting,
    plan,
    row_of,
)
from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32
from sparsenn.backends.machine import A100, H200, RTX_4090
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Identity

KINDS = (FLOAT32, TF32, HALF)
SMALL = Tile(1, 1, 32, 2, 2)

SAME = {"padding": (1, 1)}
NAMES = (
    *("square", "ragged", "odd", "dilated", "pairs", "fours"),
    *("bare", "pointwise", "even", "grown", "single"),
)

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
cases = pytest.mark.parametrize("case", [CASES[name] for name in NAMES], ids=NAMES)


# ---- The kernels, emulated -----------------------------------------------------------------------------------------


def laid_out(kind, geometry, images, made):
    """Images as the kernel that lays them out leaves them: (pieces, units, places, numbers of a unit)."""
    number = np.float16 if kind is HALF else np.float32
    laid = np.full((2 if kind is FLOAT32 else 1, made.units, made.places, 16 // kind.factor_bytes), np.nan, number)
    kernel = emulated(LAYING_OUT, warpgroup.layout_defines(kind, images.dtype == np.float16))
    blocks = parts_of(made.places, warpgroup.PLACES) * parts_of(made.units, warpgroup.UNITS)
    kernel.launch(blocks, warpgroup.PLACES, images, laid, *made.layout_numbers(geometry, images.shape[0]))
    return laid


def by_emulation(kind, count, geometry, given, tile, seed):
    """The outputs as a kernel computes them; places that it does not write stay NaN."""
    images, weights, bias = given
    made = cut(kind, geometry, count, tile)
    defines = warpgroup.kernel_defines(kind, tile, made.row.run(geometry), False, IDENTITY)
    kernel = emulated(SOURCE, defines)
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, images.dtype)
    laid, filters = laid_out(kind, geometry, images, made), arranged(kind, tile.steps, weights)
    arrays = laid, filters, images, weights, bias, outputs, np.float32(np.inf)
    kernel.launch(min(3, made.tiles), tile.threads, *arrays, *made.numbers(geometry, count), seed=seed)
    return outputs


@kinds
@cases
def test_pixels_are_laid_out_in_one_row(kind, case, rng):
    count, geometry = case
    images = rng.normal(size=(count, geometry.channels, geometry.height, geometry.width)).astype(np.float32)
    made = cut(kind, geometry, count, SMALL)
    row, unit = made.row, 16 // kind.factor_bytes
    whole = np.zeros((made.units * unit, (count + 2) * row.tall * row.pitch + made.places), np.float32)
    for image in range(count):
        for y in range(geometry.height):
            first = row.front + (image * row.tall + y) * row.pitch
            whole[: geometry.channels, first : first + geometry.width] = images[image, :, y]
    assert not whole[:, made.places :].any()
    planes = whole[:, : made.places].reshape(made.units, unit, made.places).swapaxes(1, 2)
    split = split_tf32(planes)
    expected = [planes.astype(np.float16)] if kind is HALF else split[: 2 if kind is FLOAT32 else 1]
    assert np.array_equal(laid_out(kind, geometry, images, made), np.stack(expected))


WAYS = [(2, True), (4, True), (2, False), (5, False)]
"""Stages, and whether slabs are of a row's taps."""


@kinds
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, WAYS[number % 4]) for number, name in enumerate(NAMES)] + [("ragged", way) for way in WAYS],
)
def test_pixels_meet_their_filters(kind, name, way, rng):
    (count, geometry), (stages, rows) = CASES[name], way
    tile = replace(SMALL, stages=stages, taps=geometry.kernel[1] if rows else 1)
    given = drawn_numbers(rng, count, geometry)
    outputs = by_emulation(kind, count, geometry, given, tile, seed=stages)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


def test_numbers_that_are_none_stay_none(rng):
    geometry = Geometry(1, 2, 2, 1, (1, 1))
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F800000], np.uint32)
    images = bits.view(np.float32).reshape(1, 1, 2, 2)
    laid = laid_out(TF32, geometry, images, cut(TF32, geometry, 1, SMALL))[0, 0, :4, 0]
    assert np.array_equal(np.isnan(laid), [True, True, True, False])
    assert laid[3] == np.inf


# ---- Plans and filters ---------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("number", STEPS)
def test_every_weight_is_where_its_pixels_meet_it(kind, number, rng):
    weights = rng.normal(size=(70, 21, 2, 3)).astype(np.float32)
    unit = 16 // kind.factor_bytes
    units = 2 * number
    chunks = parts_of(21, units * unit)
    held = arranged(kind, number, weights).view(np.float16 if kind is HALF else np.float32)
    pieces = [weights.astype(np.float16)] if kind is HALF else split_tf32(weights)[: 2 if kind is FLOAT32 else 1]
    assert held.shape == (2, chunks, 6, len(pieces), units, 64, unit)
    for piece, whole in enumerate(pieces):
        assert np.count_nonzero(held[:, :, :, piece]) == np.count_nonzero(whole)
        for row, channel, tap in ((0, 0, 0), (69, 20, 5), (63, 8, 3), (64, 13, 2)):
            chunk, within = divmod(channel, units * unit)
            found = held[row // 64, chunk, tap, piece, within // unit, row % 64, within % unit]
            assert found == whole[row, channel, tap // 3, tap % 3]


@drawn(geometries(), st.integers(1, 20))
def test_each_tap_of_each_output_has_its_own_place(geometry, count):
    row = row_of(geometry)
    run = row.run(geometry)
    (down, across), (up, left) = geometry.dilation, geometry.padding
    places = np.full(row.outputs(geometry, count) + row.reach, -1)
    shape = (count, geometry.height, geometry.width)
    image, y, x = np.indices(shape)
    at = row.front + (image * row.tall + y) * row.pitch + x
    within = at < places.size  # pixels that no output sees may lie beyond
    places[at[within]] = np.arange(at.size).reshape(shape)[within]
    image, y, x = np.indices((count, geometry.output_height, geometry.output_width))
    own = (image * row.tall + y) * row.pitch + x
    assert own.max() == row.outputs(geometry, count) - 1
    flat = ((image * geometry.output_height + y) * geometry.output_width + x) % run
    assert np.array_equal(own % run, flat)
    for tap_down in range(geometry.kernel[0]):
        for tap_across in range(geometry.kernel[1]):
            found = places[own + tap_down * down * row.pitch + tap_across * across]
            rows, columns = y - up + tap_down * down, x - left + tap_across * across
            inside = (rows >= 0) & (rows < geometry.height) & (columns >= 0) & (columns < geometry.width)
            expected = (image * geometry.height + rows) * geometry.width + columns
            assert np.array_equal(found, np.where(inside, expected, -1))


@kinds
@drawn(geometries(), st.integers(1, 300))
def test_plans_fit_the_device(kind, geometry, count):
    limits = H200
    made = plan(kind, geometry, count, limits)
    if made is None:
        assert fitting(kind, geometry, count, limits, Tile(1, 1, 32, 1, min(STAGES))) is None
        return
    tile = made.tile
    assert made.shared_bytes + 1024 <= limits.multiprocessor_bytes
    assert made.tiles_down * tile.filters >= geometry.filters
    across = made.tiles // made.tiles_down
    assert across * tile.places >= made.row.outputs(geometry, count)
    assert (across - 1) * tile.places + made.band <= made.places
    assert made.units * 16 // kind.factor_bytes >= geometry.channels
    assert len(made.numbers(geometry, count)) == 24


@drawn(st.integers(1, 1 << 30), st.integers(0, (1 << 31) - 1))
@example(1, (1 << 31) - 1)
@example((1 << 30) - 1, (1 << 31) - 1)
def test_division_by_multiplication(number, given):
    factor, shift = divisor(number)
    for each in (given, given // number * number, max(0, given // number * number - 1)):
        assert 2 * each * int(factor) >> 32 >> int(shift) == each // number


@pytest.mark.parametrize(
    ("geometry", "shapes"),
    [
        (Geometry(64, 224, 224, 64, (3, 3), **SAME), {HALF: (1, 4, 128), TF32: (1, 4, 128), FLOAT32: (1, 2, 128)}),
        (Geometry(512, 14, 14, 512, (3, 3), **SAME), {HALF: (1, 2, 128), TF32: (1, 2, 128), FLOAT32: (2, 2, 64)}),
    ],
)
def test_tiles_of_known_convolutions(geometry, shapes):
    for kind, shape in shapes.items():
        made = plan(kind, geometry, 16, H200)
        assert (made.tile.down, made.tile.across, made.tile.columns) == shape


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(4, 9, 9, 4, (3, 3), stride=(2, 1)), "stride"),
        (Geometry(4, 9, 9, 4, (3, 3), groups=2), "groups"),
        (Geometry(4, 99, 3000, 4, (9, 9)), "rows of 3000"),
        (Geometry(1 << 16, 1 << 9, 1 << 9, 4, (3, 3)), "would have"),
    ],
)
def test_what_does_not_fit_is_refused(geometry, reason):
    for kind in KINDS:
        assert reason in fits(kind, H200, geometry)


@kinds
def test_other_machines_are_refused_first_of_all(kind):
    grouped = Geometry(4, 9, 9, 4, (3, 3), groups=2)
    for machine, told in ((A100, "8.0"), (RTX_4090, "8.9"), (replace(H200, capability=100), "10.0")):
        reason = f"the GPU has compute capability {told}; the kernel is written for 9.0"
        assert why_no_warpgroups(machine) == fits(kind, machine, grouped) == reason
    assert why_no_warpgroups(H200) is None


@kinds
def test_a_machine_with_less_shared_memory_takes_less(kind):
    geometry = Geometry(64, 56, 56, 64, (3, 3), **SAME)
    assert fits(kind, H200, geometry) is None
    assert "6 KiB of shared memory" in fits(kind, replace(H200, block_bytes=6 << 10), geometry)


# ---- On a GPU ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _only_where_there_are_warpgroups(request):
    if request.node.get_closest_marker("gpu") and (reason := why_no_warpgroups(current_machine())):
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "shape"), [(kind, shape) for kind in KINDS for shape in SHAPES[kind]])
def test_every_tile(kind, shape, rng, monkeypatch):
    geometry = Geometry(70, 19, 23, 190, (3, 3), **SAME)
    given = drawn_numbers(rng, 5, geometry)
    expected = reference_conv2d(*given, **options_of(geometry))
    tried = 0
    for numbers in ((4, 2, 1), (2, 4, 1), (2, 2, 3), (1, 6, 3)):
        made = fitting(kind, geometry, 5, current_machine(), Tile(*shape, *numbers))
        if made is not None:
            warpgroup._prepared.cache_clear()
            monkeypatch.setattr(warpgroup, "plan", lambda *_, made=made: made)
            outputs = launched(partial(run_warpgroup, kind), geometry, given, Identity())
            assert np.array_equal(outputs, expected), numbers
            tried += 1
    warpgroup._prepared.cache_clear()
    assert tried


@pytest.mark.gpu
@kinds
def test_images_laid_out_some_at_a_time(kind, rng, monkeypatch):
    geometry = Geometry(70, 9, 11, 70, (3, 3), **SAME)
    given = drawn_numbers(rng, 7, geometry)
    monkeypatch.setattr(warpgroup, "HELD_BYTES", 3 * 2 * 70 * 4 * 144)
    expected = reference_conv2d(*given, **options_of(geometry))
    assert np.array_equal(launched(partial(run_warpgroup, kind), geometry, given, Identity()), expected)
