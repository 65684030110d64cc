"""Weights of the tensor-core convolutions of few channels: each is in their layout, as precisely as it has to be."""

import numpy as np
from convolutions import few_channels
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry
from sparsenn.backends.cuda.conv.tensor_plan import (
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


def held_weights(kind, geometry, layout, weights):
    """Take an image apart: (parts, panels, turns, steps, tiles, 32, 2 quads, numbers), whole numbers or both parts."""
    made = weight_image(kind, geometry, layout, weights)
    assert made.dtype == np.uint8
    assert made.size == layout.weight_bytes(kind, geometry)
    shape = layout.panels(geometry), layout.turns(geometry), layout.steps(kind, geometry), layout.panel, 32
    numbers = made.view(np.float16 if kind.quad == 8 else np.float32).astype(np.float64)
    return np.moveaxis(numbers.reshape(*shape, kind.passes // 2 + 1, 2, -1), 5, 0)


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
