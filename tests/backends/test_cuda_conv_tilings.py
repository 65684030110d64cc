"""How the kernels of the first conv2d ladder cut outputs among blocks and threads, in arithmetic alone."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, half, register_tiled, streamed, study, swept
from sparsenn.backends.cuda.sparse.tiling import Limits
from sparsenn.errors import UsageError

LAYERS = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))
GENERAL = Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2)


@st.composite
def plain_geometries(draw):
    """Small convolutions of stride 1, dilation 1 and one group."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    least = (max(1, size - 2 * added) for size, added in zip(kernel, padding, strict=True))
    height, width = (draw(st.integers(size, size + 12)) for size in least)
    channels, filters = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    return Geometry(channels, height, width, filters, kernel, padding=padding)


def test_what_does_not_fit_is_told():
    deep = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
    assert "2,359,296 weights" in study.fits_constant(deep)
    assert "shared memory" in study.fits_tiled(Geometry(1, 200, 200, 1, (100, 100)))
    assert "2 groups" in study.fits_one_group(GENERAL)
    assert "280 rows" in register_tiled.fits(Geometry(1, 300, 300, 1, (280, 280)))
    assert "280 rows" in swept.fits(Geometry(1, 300, 300, 1, (280, 280)))
    assert "shared memory" in register_tiled.fits(Geometry(1, 20, 60_000, 1, (20, 50_000)))
    assert "dilation (1, 2)" in swept.fits(GENERAL)
    assert "stride (2, 1)" in half.fits(GENERAL)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([128, 256]))
def test_tiles_are_powers_of_two_that_a_block_has_threads_for(height, width, threads):
    across, down = study.tile_of(height, width, threads)
    assert across.bit_count() == down.bit_count() == 1
    assert threads % (across * down) == 0
    assert across < 2 * width
    assert down < 2 * height


@pytest.mark.parametrize(("height", "width"), [(1, 1), (34, 34), (80, 80), (1, 300), (300, 1), (14, 14)])
def test_few_threads_of_a_tile_stand_over(height, width):
    across, down = study.tile_of(height, width)
    assert -(-width // across) * across * -(-height // down) * down <= 1.4 * height * width


@pytest.mark.parametrize("filters", [1, 4, 5, 16, 17, 64, 65, 512])
def test_product_tiles_are_rectangles_of_whole_threads(filters):
    tile = study.product_tile(filters)
    threads = tile["ROWS"] // tile["ROWS_EACH"] * (tile["COLUMNS"] // tile["COLUMNS_EACH"])
    assert threads == 128
    assert max(threads, tile["COLUMNS"]) % min(threads, tile["COLUMNS"]) == 0
    assert tile["ROWS"] >= min(filters, 64)


@given(plain_geometries(), st.sampled_from([4_000, 40_000, 227 << 10]), st.data())
def test_blocks_and_threads_compute_every_output_once(geometry, room, data):
    """The numbers of a block and of a thread's tile, taken apart as the kernel does."""
    limits = Limits(132, room, 228 << 10)
    found = list(register_tiled.tilings(geometry, limits))
    if not found:
        assert room < 227 << 10
        return
    tiling = data.draw(st.sampled_from(found))
    count = data.draw(st.integers(1, 5))
    height, width = geometry.output_height, geometry.output_width
    sets = -(-geometry.filters // (tiling.bundles * tiling.each))
    strips, bands = -(-width // tiling.strip), -(-height // (tiling.pixels * tiling.band))
    computed = Counter()
    for block in range(-(-count // tiling.images) * bands * strips * sets):
        set_, left = block % sets, block // sets % strips * tiling.strip
        top = block // (sets * strips) % bands * tiling.band * tiling.pixels
        first = block // (sets * strips * bands) * tiling.images
        for tile in range(tiling.tiles):
            column, row = left + tile % tiling.strip, top + tile // tiling.strip % tiling.band * tiling.pixels
            image = first + tile // (tiling.strip * tiling.band) % tiling.images
            bundle = set_ * tiling.bundles + tile // (tiling.strip * tiling.band * tiling.images)
            for filter_, below in itertools.product(range(tiling.each), range(tiling.pixels)):
                computed[image, bundle * tiling.each + filter_, row + below, column] += 1
    every = itertools.product(range(count), range(geometry.filters), range(height), range(width))
    assert all(computed[output] == 1 for output in every)


@given(plain_geometries(), st.data())
def test_arranged_weights_are_where_the_kernel_reads_them(geometry, data):
    tiling = data.draw(st.sampled_from(list(register_tiled.tilings(geometry, Limits()))))
    shape = geometry.filters, geometry.channels, *geometry.kernel
    weights = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    laid_out = register_tiled.arranged(weights, tiling)
    assert laid_out.flags.c_contiguous
    column = -(-geometry.kernel[0] * tiling.each // 4) * 4
    bundle = tiling.slice * geometry.kernel[1] * column
    flat, slices = laid_out.reshape(-1), geometry.channels // tiling.slice
    for filter_, channel, i, j in np.ndindex(shape):
        set_, rest = divmod(filter_, tiling.bundles * tiling.each)
        slice_, within = divmod(channel, tiling.slice)
        block = (set_ * slices + slice_) * tiling.bundles * bundle + rest // tiling.each * bundle
        place = block + (within * geometry.kernel[1] + j) * column + i * tiling.each + rest % tiling.each
        assert flat[place] == weights[filter_, channel, i, j]
    assert np.count_nonzero(laid_out) == weights.size


@given(plain_geometries(), st.integers(1, 20_000))
def test_tilings_fit_the_device(geometry, count):
    limits = Limits()
    tiling = register_tiled.tiling_for(geometry, count, limits)
    assert register_tiled.shared_bytes(geometry, tiling) <= limits.block_bytes
    assert tiling.blocks * (register_tiled.shared_bytes(geometry, tiling) + 1024) <= limits.multiprocessor_bytes
    assert tiling.blocks * tiling.threads <= 2048
    assert geometry.channels % tiling.slice == 0
    assert tiling.slice == geometry.channels or tiling.tiles <= tiling.threads


@pytest.mark.parametrize("geometry", LAYERS, ids=str)
def test_most_instructions_are_expected_to_be_multiply_adds(geometry):
    limits, count = Limits(), 10_000
    tiling = register_tiled.tiling_for(geometry, count, limits)
    least = count * geometry.multiply_adds / 128 / limits.multiprocessors
    assert least < register_tiled.clocks(geometry, tiling, count, limits) < 1.3 * least


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ({"pixels": 20, "filters": 16}, "320 sums"),
        ({"tile": 129}, "wider than a block"),
        ({"pixels": 0}, "at least 1"),
        ({"rows": 1}, "filters, pixels, tile"),
    ],
)
def test_parameters_that_cannot_be_are_refused(wrong, part):
    parameters = swept.defaults(LAYERS[0]) | wrong
    assert part in swept.why_not_parameters(LAYERS[0], parameters)
    with pytest.raises(UsageError, match=part):
        swept.launch_with(parameters)(upload_like(LAYERS[0]), np.zeros((1, 1, 86, 86), np.float32))


def upload_like(geometry):
    """A layer of that geometry with nothing in it: enough to be refused."""

    class Layer:
        pass

    layer = Layer()
    layer.geometry = geometry
    return layer


@given(plain_geometries())
def test_defaults_are_among_the_values_to_try(geometry):
    parameters = swept.defaults(geometry)
    assert swept.why_not_parameters(geometry, parameters) is None
    assert all(parameters[name] in values for name, values in swept.PARAMETERS.items())


@given(st.integers(0, 1000), st.integers(1, 50))
def test_pieces_make_up_the_images(images, pieces):
    cut = streamed.bounds(images, pieces)
    assert [number for first, end in cut for number in range(first, end)] == list(range(images))
    assert len(cut) <= pieces
    assert all(first % streamed.MULTIPLE == 0 for first, _ in cut)


def test_no_pieces_are_refused():
    with pytest.raises(UsageError, match="0 pieces"):
        streamed.bounds(3, 0)


@pytest.mark.parametrize("geometry", LAYERS, ids=str)
def test_chains_in_half_precision_stay_within_the_tolerance(geometry, rng):
    """The arithmetic of `half` in NumPy: products of float16 numbers, added up in float16 a chain at a time."""
    depth, outputs = geometry.depth, 20_000
    pixels = rng.random((outputs, depth)).astype(np.float16)
    weights = (rng.normal(size=depth) / np.sqrt(depth)).astype(np.float16)
    exact = pixels.astype(np.float64) @ weights.astype(np.float64)
    sums = np.zeros(outputs, np.float32)
    window = geometry.kernel[0] * geometry.kernel[1]
    for channel in range(0, depth, window):
        for first in range(channel, channel + window, half.CHAIN):
            chain = np.zeros(outputs, np.float16)
            for tap in range(first, min(first + half.CHAIN, channel + window)):
                product = pixels[:, tap].astype(np.float64) * float(weights[tap])
                chain = (product + chain).astype(np.float16)
            sums += chain
    assert np.abs(sums - exact).max() <= 2e-3 * np.abs(exact).max()
