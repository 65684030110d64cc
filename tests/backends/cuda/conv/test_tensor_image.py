"""Weights of the tensor-core convolutions of few channels: layouts, proven by products as lanes make them.

Which numbers a lane has follows from the PTX ISA's figures of the instructions' fragments.
"""

import numpy as np
import pytest
from convolutions import few_channels, reference_conv2d
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry
from sparsenn.backends.cuda.conv.tensor_image import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    Layout,
    columns_of,
    places,
    weight_image,
)

KINDS = {"float32": FLOAT32, "tf32": TF32, "half": HALF, "half rows": HALF_ROWS}

LANES = np.arange(32)
G, T = LANES // 4, LANES % 4

kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def numbers_of(kind, across, quads, quad):
    """Return which numbers of an item's row lanes read for one of its quads: (32, numbers of a lane)."""
    if kind.quad == 8:
        return 8 * quad + 2 * T[:, None] + np.arange(2)
    paired = across > 1 and quad // 2 < quads // 2
    return (8 * (quad // 2) + 2 * T + quad % 2 if paired else 4 * quad + T)[:, None]


def product(inputs, weights):
    """Multiply 16 items by 8 columns, as lanes hold them: (2 quads, 2 items, 32, n) and (2 quads, 32, n).

    In its half of the inputs, lane 4 g + t has n neighbours from n t on: of the items g and g + 8, and of column g.
    """
    count = inputs.shape[3]
    left, right = np.zeros((16, 8 * count)), np.zeros((8 * count, 8))
    for quad in range(2):
        for i in range(count):
            inner = 4 * count * quad + count * T + i
            left[G, inner], left[G + 8, inner] = inputs[quad, :, :, i]
            right[inner, G] = weights[quad, :, i]
    return left @ right


def held_weights(kind, geometry, layout, weights):
    """Take an image apart: (parts, panels, turns, steps, tiles, 32, 2 quads, numbers), whole numbers or both parts."""
    made = weight_image(kind, geometry, layout, weights)
    assert made.dtype == np.uint8
    assert made.size == layout.weight_bytes(kind, geometry)
    shape = layout.panels(geometry), layout.turns(geometry), layout.steps(kind, geometry), layout.panel, 32
    numbers = made.view(np.float16 if kind.quad == 8 else np.float32).astype(np.float64)
    return np.moveaxis(numbers.reshape(*shape, kind.passes // 2 + 1, 2, -1), 5, 0)


def emulated(kind, geometry, layout, image, weights):
    """Convolve an image as the kernels do, one output row of an item after the other."""
    (down, right), across = geometry.padding, layout.across
    quads, (height, width) = layout.quads(kind, geometry), (geometry.output_height, geometry.output_width)
    padded = np.pad(image.astype(np.float64), ((0, 0), (down, down), (right, right + 8 + quads * kind.quad)))
    held = held_weights(kind, geometry, layout, weights)
    beside = -(-width // across)
    sums = np.zeros((-(-height * beside // 16) * 16, held.shape[1] * held.shape[4] * 8))
    for first in range(0, len(sums), 16):
        items = np.minimum(first + np.arange(16), height * beside - 1)
        y, x = items // beside, items % beside * across
        for panel, turn, step, tile in np.ndindex(held.shape[1:5]):
            inputs = np.zeros((2, 2, 32, max(1, kind.quad // 4)))
            for i, quad in enumerate((2 * step, 2 * step + 1)):
                row, place = divmod(quad, quads)
                if row >= layout.at_once * geometry.kernel[0]:
                    continue  # a last step of one quad
                channel = turn * layout.at_once + row // geometry.kernel[0]
                for which in range(2):
                    item = G + 8 * which
                    across_row = x[item][:, None] + numbers_of(kind, across, quads, place)
                    inputs[i, which] = padded[channel, (y[item] + row % geometry.kernel[0])[:, None], across_row]
            column = 8 * (panel * held.shape[4] + tile)
            found = product(inputs, np.moveaxis(held[0, panel, turn, step, tile], 1, 0))
            if kind is FLOAT32:
                found += product(inputs, np.moveaxis(held[1, panel, turn, step, tile], 1, 0))
            sums[first : first + 16, column : column + 8] += found
    used = sums[: height * beside, : geometry.filters * across].reshape(height, beside, geometry.filters, across)
    return used.transpose(2, 0, 1, 3).reshape(geometry.filters, height, -1)[:, :, :width]


CUT = [
    (Geometry(1, 20, 22, 4, (7, 7)), Layout(2, 1, 1)),
    (Geometry(4, 10, 12, 16, (7, 7)), Layout(2, 1, 4)),
    (Geometry(4, 10, 11, 16, (7, 7)), Layout(2, 4, 2)),
    (Geometry(3, 9, 7, 5, (5, 3), padding=(2, 1)), Layout(2, 3, 2)),
    (Geometry(2, 6, 9, 3, (2, 4), padding=(0, 3)), Layout(4, 1, 2)),
    (Geometry(5, 3, 20, 1, (3, 11)), Layout(8, 5, 1)),
    (Geometry(1, 4, 5, 17, (1, 1)), Layout(2, 1, 3)),
]


def integers(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


@kinds
@pytest.mark.parametrize(("geometry", "layout"), CUT, ids=str)
def test_lanes_hold_what_the_instructions_multiply(kind, geometry, layout, rng):
    image = integers(rng, geometry.channels, geometry.height, geometry.width)
    weights = integers(rng, geometry.filters, geometry.channels, *geometry.kernel)
    expected = reference_conv2d(image[None], weights, padding=geometry.padding)[0]
    assert np.array_equal(emulated(kind, geometry, layout, image, weights), expected)


def test_items_of_one_pixel(rng):
    geometry = Geometry(3, 8, 9, 10, (4, 5), padding=(1, 2))
    image, weights = integers(rng, 3, 8, 9), integers(rng, 10, 3, 4, 5)
    expected = reference_conv2d(image[None], weights, padding=(1, 2))[0]
    for kind in (FLOAT32, TF32):
        for layout in (Layout(1, 3, 2), Layout(1, 1, 1)):
            assert np.array_equal(emulated(kind, geometry, layout, image, weights), expected)


def test_split_weights_keep_float32s_precision(rng):
    geometry, layout = Geometry(2, 5, 5, 3, (5, 5)), Layout(2, 2, 1)
    weights = rng.normal(size=(3, 2, 5, 5)).astype(np.float32)
    found = places(FLOAT32, geometry, layout)
    sums = held_weights(FLOAT32, geometry, layout, weights).sum(0)
    expected = np.where(found < 0, 0.0, weights.ravel()[found])
    assert (np.abs(sums - expected) <= 2.0**-22 * np.abs(expected)).all()


@given(few_channels(), st.sampled_from([1, 2, 4, 8]), st.sampled_from(list(KINDS)))
def test_every_weight_is_held_once_for_each_pixel(geometry, across, name):
    if across == 1 and KINDS[name].quad == 8:
        return
    layout = Layout(across, geometry.channels, columns_of(geometry.filters, across) // 8)
    held = places(KINDS[name], geometry, layout)
    assert held.shape[:5] == (1, 1, layout.steps(KINDS[name], geometry), layout.panel, 32)
    counts = np.bincount(held[held >= 0], minlength=geometry.filters * geometry.depth)
    assert (counts == across).all()
