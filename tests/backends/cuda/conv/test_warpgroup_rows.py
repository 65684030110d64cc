"""Convolutions of rows that go straight to warpgroups: emulated on the host; plans; and on a GPU."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from convolutions import assert_near_conv2d, drawn_numbers, geometries, launched, options_of, reference_conv2d
from emulation import EmulationError, emulated
from hypothesis import given as drawn
from hypothesis import strategies as st
from tiers import rest_slow

from sparsenn.backends.cuda.conv import Geometry, warpgroup_rows
from sparsenn.backends.cuda.conv.warpgroup import why_no_warpgroups
from sparsenn.backends.cuda.conv.warpgroup_plan import arranged
from sparsenn.backends.cuda.conv.warpgroup_rows import SOURCE
from sparsenn.backends.cuda.conv.warpgroup_rows_plan import COLUMNS, MOST_LINES, Tile, cut, fitting, plan
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS, IDENTITY, RELU
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.tensor_tiles import HALF
from sparsenn.backends.machine import A100, H200
from sparsenn.layers import Identity, ReLU, Tanh

SAME = {"padding": (1, 1)}
CASES = {
    "square": (2, Geometry(64, 14, 16, 64, (3, 3), **SAME)),
    "ragged": (3, Geometry(70, 9, 10, 70, (3, 3), **SAME)),
    "odd": (1, Geometry(5, 11, 37, 20, (3, 5), (1, 1), (1, 2))),
    "spread": (2, Geometry(3, 23, 31, 20, (3, 4), (1, 1), (2, 3), (2, 3))),
    "segments": (2, Geometry(9, 5, 152, 10, (3, 3), **SAME)),
    "shifted": (1, Geometry(9, 5, 96, 10, (3, 3), (1, 1), (0, 4))),
    "bare": (2, Geometry(9, 8, 12, 6, (3, 4))),
    "pointwise": (5, Geometry(130, 7, 7, 33, (1, 1))),
    "even": (5, Geometry(30, 5, 6, 133, (2, 2))),
    "grown": (2, Geometry(6, 4, 5, 7, (2, 2), (1, 1), (3, 4))),
    "single": (70, Geometry(64, 1, 1, 40, (1, 1))),
}
"""Images, and their geometry."""

types = pytest.mark.parametrize("dtype", [np.float32, np.float16])


# ---- The kernel, emulated ------------------------------------------------------------------------------------------


def by_emulation(count, geometry, given, tile=None, blocks=3, activation=IDENTITY, seed=1, aligned=True, **planted):
    """The outputs as the kernel computes them; places that it does not write stay NaN."""
    images, weights, bias = given
    made = cut(geometry, count, tile or smallest(geometry))
    defines = warpgroup_rows.kernel_defines(made, geometry, aligned, images.dtype == np.float16, activation)
    kernel = emulated(SOURCE, defines, **planted)
    outputs = np.full((count, geometry.filters, geometry.output_height, geometry.output_width), np.nan, images.dtype)
    arrays = images, arranged(HALF, made.steps, weights), bias, outputs, np.float32(np.inf)
    blocks = made.tiles_down * min(blocks, made.all_lines)
    kernel.launch(blocks, made.tile.threads, *arrays, *made.numbers(geometry, count), seed=seed)
    return outputs


def smallest(geometry, groups=2, more=0):
    """A tile of as few lines in shared memory as there can be, and some more."""
    down, across = ((size - 1) * apart for size, apart in zip(geometry.kernel, geometry.dilation, strict=True))
    return Tile(64 if across <= 8 else 96, groups, down + groups + more)


WAYS = [(1, 0), (2, 1), (2, 0)]
"""Warpgroups that multiply, and lines in shared memory besides those that they see."""


@types
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, WAYS[number % 3]) for number, name in enumerate(CASES)] + [("segments", way) for way in WAYS],
)
def test_pixels_meet_their_filters(name, way, dtype, rng):
    count, geometry = CASES[name]
    given = drawn_numbers(rng, count, geometry, dtype)
    outputs = by_emulation(count, geometry, given, smallest(geometry, *way), seed=sum(way))
    assert outputs.dtype == dtype
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@pytest.mark.parametrize("columns", rest_slow(COLUMNS, fast=2))
def test_every_number_of_columns(columns, rng):
    geometry = Geometry(20, 3, columns + 40, 10, (2, 3), **SAME)
    given = drawn_numbers(rng, 2, geometry, np.float16)
    outputs = by_emulation(2, geometry, given, Tile(columns, 1, 3), blocks=2, seed=columns)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@types
@pytest.mark.parametrize("blocks", [1, 2, 7, 1000])
def test_any_share_of_the_lines(blocks, dtype, rng):
    count, geometry = CASES["segments"]
    given = drawn_numbers(rng, count, geometry, dtype)
    outputs = by_emulation(count, geometry, given, blocks=blocks, seed=blocks)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


@types
def test_images_that_begin_anywhere(dtype, rng):
    count, geometry = CASES["segments"]
    given = drawn_numbers(rng, count, geometry, dtype)
    outputs = by_emulation(count, geometry, given, aligned=False)
    assert np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


def test_bias_and_activation(rng):
    geometry = Geometry(4, 6, 9, 18, (3, 3), **SAME)
    given = drawn_numbers(rng, 2, geometry, integers=False)
    for code, activation in ((RELU, ReLU()), (ACTIVATIONS.index("TANH"), Tanh())):
        outputs = by_emulation(2, geometry, given, activation=code)
        assert_near_conv2d(outputs, *given, activation, precision="float16", **options_of(geometry))


@pytest.mark.parametrize(
    ("right", "wrong"),
    rest_slow(
        [
            ("barrier_wait(memory.full + coming.stage * BARRIER_BYTES, coming.parity);", ";"),
            ("barrier_wait(memory.empty + turn.stage * BARRIER_BYTES, turn.parity);", ""),
            ("barrier_wait(memory.filters_full, 0);", ""),
            (
                "ring.await(memory, number + shape.reach_down() + 1);",
                "ring.await(memory, number + shape.reach_down());",
            ),
            ("ring.give_back(memory, number);", "ring.give_back(memory, min(number + 1, ring.come));"),
            ("ring.give_back(memory, next);", ""),
            ("slot < SLOTS ? slot : slot - SLOTS;\n    }\n    await_sums", "slot;\n    }\n    await_sums"),
            ("slot += shape.apart_down;", "slot += 1;"),
            ("tap * APART * MATRIX_BYTES", "tap * MATRIX_BYTES"),
            ("left += TAPS * (TAP_BYTES / 16);", ""),
            ("step * 2 * UNIT_BYTES", "step * UNIT_BYTES"),
            ("y < shape.out_height && image < shape.count", "image < shape.count"),
            ("y < shape.out_height && image < shape.count", "y < shape.out_height"),
            ("y >= 0 && y < shape.height && line.image < shape.count", "y >= 0 && y < shape.height"),
            ("y >= 0 && y < shape.height && line.image < shape.count", "y < shape.height && line.image < shape.count"),
            ("if (channel < channels) load_row", "load_row"),
            ("x < 0 || x >= columns", "x >= columns"),
            ("x < 0 || x >= columns", "x < 0"),
            ("x + 2 * i + j < columns", "true"),
            ("place.wanted ? at - eighth * EIGHTH : MATRICES", "at - eighth * EIGHTH"),
            ("static_cast<unsigned>(matrix) < MATRICES", "matrix < MATRICES"),
            ("static_cast<unsigned>(matrix) < MATRICES", "matrix >= 0"),
            ("matrix >= EIGHTH && eighth < 7", "false"),
            ("matrix >= EIGHTH && eighth < 7", "matrix >= EIGHTH"),
            ("matrix < REACH && eighth > 0", "false"),
            ("matrix < REACH && eighth > 0", "matrix < REACH"),
            ("wanted(number < ALL)", "wanted(true)"),
            ("column + 4 * i * RUN < shape.out_width", "true"),
            ("i < EVEN ? own[2 * i]", "i <= EVEN ? own[2 * i]"),
            ("own[2 * i + PIECES % 2]", "own[2 * i]"),
            ("quarter.share(2, lane / 2);", "quarter.share(2, lane % 2);"),
            (
                "upper_halves(left, right) : lower_halves(left, right)",
                "upper_halves(right, left) : lower_halves(left, right)",
            ),
            ("end = last + shape.reach_down();", "end = last;"),
            ("min(number, more)", "0"),
        ],
        fast=4,
    ),
)
def test_a_planted_fault_is_noticed(right, wrong, rng):
    assert any(is_noticed(loaded, seed, (right, wrong), rng) for seed in range(5) for loaded in (True, False))


def is_noticed(aligned, seed, planted, rng):
    geometry = Geometry(40, 5, 72 if aligned else 70, 16, (3, 3), (1, 1), (2, 2), (2, 2))
    given = drawn_numbers(rng, 2, geometry, np.float16)
    tile = replace(smallest(geometry, 1 + seed // 2 % 2, seed % 2), columns=(64, 96)[seed % 2])
    try:
        outputs = by_emulation(
            2, geometry, given, tile, seed=seed, aligned=aligned, blocks=2 + 9 * seed, planted=planted
        )
    except EmulationError:
        return True
    return not np.array_equal(outputs, reference_conv2d(*given, **options_of(geometry)))


# ---- Plans ---------------------------------------------------------------------------------------------------------


@drawn(geometries(channels=90, extent=300, padding=9), st.integers(1, 20), st.sampled_from(COLUMNS))
def test_each_line_of_outputs_sees_its_own_lines(geometry, count, columns):
    made = cut(geometry, count, Tile(columns, 1, 8))
    down, reach = geometry.dilation[0], made.lines - count * made.tall
    segments = -(-geometry.output_width // columns)
    pixels = np.full(segments * made.lines, -1)  # the row of all images' rows that a line has; -1: zeros
    image, y = np.indices((count, geometry.height))
    for segment in range(segments):
        pixels[segment * made.lines + image * made.tall + geometry.padding[0] + y] = image * geometry.height + y
    image, y = np.indices((count, geometry.output_height))
    for segment in range(segments):
        own = segment * made.lines + image * made.tall + y
        assert own.max() < made.all_lines
        assert own.max() + reach < pixels.size
        for tap in range(geometry.kernel[0]):
            row = y - geometry.padding[0] + tap * down
            expected = np.where((row >= 0) & (row < geometry.height), image * geometry.height + row, -1)
            assert np.array_equal(pixels[own + tap * down], expected)
    assert made.all_lines == own.max() + 1


@drawn(geometries(channels=90, extent=300, padding=9), st.integers(1, 300))
def test_plans_fit_the_device(geometry, count):
    limits = H200
    made = plan(geometry, count, limits)
    if made is None:
        down = (geometry.kernel[0] - 1) * geometry.dilation[0]
        assert fitting(geometry, count, limits, Tile(max(COLUMNS), 1, down + 1)) is None
        return
    seen = made.tile.columns + (geometry.kernel[1] - 1) * geometry.dilation[1]
    assert made.shared_bytes <= limits.block_bytes
    assert made.tiles_down * 64 >= geometry.filters
    assert made.steps * 16 >= geometry.channels
    assert 0 < made.blocks(limits) <= max(limits.multiprocessors, made.tiles_down)
    assert made.blocks(limits) % made.tiles_down == 0
    assert made.tile.slots >= (geometry.kernel[0] - 1) * geometry.dilation[0] + made.tile.groups
    for segment in range(-(-geometry.output_width // made.tile.columns)):
        first = segment * made.tile.columns - geometry.padding[1]
        assert first // 8 + made.octets >= -(-(first + seen) // 8)
    assert len(made.numbers(geometry, count)) == 19


def test_rows_are_read_in_eights_where_they_begin_at_eights():
    geometry = Geometry(16, 9, 24, 16, (3, 3), **SAME)
    made = cut(geometry, 1, smallest(geometry))
    assert made.defines(geometry, True, True)["LOADED"] == 8
    assert made.defines(geometry, False, True)["LOADED"] == 1
    assert made.defines(replace(geometry, width=25), True, True)["LOADED"] == 1


@pytest.mark.parametrize(
    ("columns", "width", "half_rows", "run"),
    [(64, 24, True, 8), (64, 24, False, 4), (112, 112, True, 4), (96, 100, True, 4), (96, 97, True, 1)],
)
def test_as_many_outputs_are_stored_at_once_as_can_be(columns, width, half_rows, run):
    geometry = Geometry(16, 9, width, 16, (3, 3), **SAME)
    assert cut(geometry, 1, Tile(columns, 1, 3)).defines(geometry, True, half_rows)["RUN"] == run


def test_the_tile_of_a_known_convolution():
    made = plan(Geometry(64, 224, 224, 64, (3, 3), **SAME), 16, H200)
    assert (made.tile.columns, made.tile.groups, made.tile.slots) == (224, 2, 5)


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (Geometry(4, 9, 9, 4, (3, 3), stride=(2, 1)), "stride"),
        (Geometry(4, 9, 9, 4, (3, 3), groups=2), "groups"),
        (Geometry(512, 14, 14, 4, (3, 3), **SAME), "64 filters of 512 x 3 x 3 weights"),
        (Geometry(64, 400, 400, 4, (1, 400)), "64 filters of 64 x 1 x 400 weights"),
        (Geometry(1 << 16, 1 << 9, 1 << 9, 4, (3, 3)), "would have"),
    ],
)
def test_what_does_not_fit_is_refused(geometry, reason):
    assert reason in warpgroup_rows.fits(H200, geometry)
    assert "compute capability 8.0" in warpgroup_rows.fits(A100, geometry)


def test_launches_take_as_many_images_as_they_can_count():
    geometry = Geometry(1, 1000, 1000, 1, (3, 3), **SAME)
    for count in (1, 16, 40_000, 1_000_000):
        most = warpgroup_rows._at_a_time(geometry, count)
        assert 1 <= most <= count
        assert cut(geometry, most, Tile(min(COLUMNS), 1, 8)).all_lines <= MOST_LINES
    assert warpgroup_rows._at_a_time(geometry, 16) == 16


# ---- On a GPU ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _only_where_there_are_warpgroups(request):
    if request.node.get_closest_marker("gpu") and (reason := why_no_warpgroups(current_machine())):
        pytest.skip(reason)


@pytest.mark.gpu
@types
@pytest.mark.parametrize("columns", COLUMNS)
def test_every_tile(columns, dtype, rng, monkeypatch):
    geometry = Geometry(40, 19, 300, 70, (3, 3), **SAME)
    given = drawn_numbers(rng, 5, geometry, dtype)
    expected = reference_conv2d(*given, **options_of(geometry))
    tried = 0
    for groups, slots in ((1, 3), (1, 6), (2, 4), (2, 6)):
        tile = Tile(columns, groups, slots)
        if fitting(geometry, 5, current_machine(), tile) is not None:
            planned = partial(cut, tile=tile)
            monkeypatch.setattr(warpgroup_rows, "plan", lambda *problem, planned=planned: planned(*problem[:2]))
            monkeypatch.setattr(warpgroup_rows, "_prepared", cache(warpgroup_rows._prepared.__wrapped__))
            outputs = launched(warpgroup_rows.launch_warpgroup_rows_half, geometry, given, Identity())
            assert np.array_equal(outputs, expected), tile
            tried += 1
    assert tried


@pytest.mark.gpu
@types
def test_more_lines_than_are_counted_at_once(dtype, rng, monkeypatch):
    geometry = Geometry(20, 9, 24, 70, (3, 3), **SAME)
    given = drawn_numbers(rng, 7, geometry, dtype)
    monkeypatch.setattr(warpgroup_rows, "MOST_LINES", 100)
    expected = reference_conv2d(*given, **options_of(geometry))
    launch = warpgroup_rows.launch_warpgroup_rows_half
    assert np.array_equal(launched(launch, geometry, given, Identity()), expected)
