"""How register_tiled cuts outputs among blocks and threads; and, on a GPU, that it is right with any tiling."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from convolutions import assert_near_conv2d, plain_geometries
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry, register_tiled, upload_conv
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.machine import H200, MACHINES
from sparsenn.layers import Conv2d

LAYERS = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))

machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


@machines
def test_what_does_not_fit_is_told(machine):
    for geometry in LAYERS:
        assert register_tiled.fits(machine, geometry) is None
    assert "280 rows" in register_tiled.fits(machine, Geometry(1, 300, 300, 1, (280, 280)))
    assert "shared memory" in register_tiled.fits(machine, Geometry(1, 20, 60_000, 1, (20, 50_000)))
    general = Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2)
    assert "dilation (1, 2)" in register_tiled.fits(machine, general)


def test_a_machine_with_less_shared_memory_takes_less():
    geometry = Geometry(1, 20, 20_000, 1, (20, 1_000))
    assert register_tiled.fits(H200, geometry) is None
    assert "shared memory" in register_tiled.fits(replace(H200, block_bytes=99 << 10), geometry)


@given(plain_geometries(), st.sampled_from([4_000, 40_000, 227 << 10]), st.data())
def test_blocks_and_threads_compute_every_output_once(geometry, room, data):
    """The numbers of a block and of a thread's tile, taken apart as the kernel does."""
    found = list(register_tiled.tilings(geometry, replace(H200, block_bytes=room)))
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
    tiling = data.draw(st.sampled_from(list(register_tiled.tilings(geometry, H200))))
    shape = geometry.filters, geometry.channels, *geometry.kernel
    weights = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    laid_out = register_tiled.arranged(tiling, weights)
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


@machines
@given(geometry=plain_geometries(), count=st.integers(1, 20_000))
def test_tilings_fit_the_device(machine, geometry, count):
    tiling = register_tiled.tiling_for(geometry, count, machine)
    assert register_tiled.shared_bytes(geometry, tiling) <= machine.block_bytes
    assert tiling.blocks * (register_tiled.shared_bytes(geometry, tiling) + 1024) <= machine.multiprocessor_bytes
    assert tiling.blocks * tiling.threads <= 2048
    assert geometry.channels % tiling.slice == 0
    assert tiling.slice == geometry.channels or tiling.tiles <= tiling.threads


@pytest.mark.parametrize("geometry", LAYERS, ids=str)
def test_most_instructions_are_expected_to_be_multiply_adds(geometry):
    count = 10_000
    tiling = register_tiled.tiling_for(geometry, count, H200)
    least = count * geometry.multiply_adds / 128 / H200.multiprocessors
    assert least < register_tiled._clocks(geometry, tiling, count, register_tiled._rates(H200)) < 1.3 * least


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(12))
def test_register_tiled_is_right_with_any_tiling(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    padding = tuple(int(size) for size in rng.integers(0, 3, 2))
    image = int(rng.choice([1, 2, 4, 6])), int(rng.integers(5, 24)), int(rng.integers(5, 40))
    shape = int(rng.integers(1, 18)), image[0], *map(int, rng.integers(1, 6, 2))
    weights = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    layer = Conv2d(weights, rng.normal(size=shape[0]), padding=padding)
    images = rng.normal(size=(int(rng.integers(1, 9)), *image)).astype(np.float32)
    uploaded = upload_conv(0, layer, image)
    machine = current_machine()
    room = replace(machine, block_bytes=int(rng.choice([8_000, 50_000, machine.block_bytes])))
    found = list(register_tiled.tilings(uploaded.geometry, room))
    for number in rng.choice(len(found), min(3, len(found)), replace=False):
        monkeypatch.setattr(register_tiled, "tiling_for", lambda *_, tiling=found[number]: tiling)
        outputs = cupy().asnumpy(register_tiled.launch_register_tiled(uploaded, cupy().asarray(images)))
        assert_near_conv2d(outputs, images, layer.weights, layer.bias_vector(), layer.activation, padding=padding)
