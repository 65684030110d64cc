from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.datasets import bitmaps


@given(
    side=st.integers(1, 20), images=st.integers(1, 5), density=st.sampled_from((0.0, 0.2, 1.0)), seed=st.integers(0, 9)
)
def test_indices_are_those_of_the_black_pixels_column_by_column(
    side: int, images: int, density: float, seed: int
) -> None:
    pixels = np.random.default_rng(seed).random((images, side, side)) < density  # image, y, x
    stack = bitmaps.bitmap_stack(images, side)
    for image, y, x in np.argwhere(pixels):
        stack[y // 8, image, x] |= 1 << (y % 8)
    inputs = bitmaps.stack_to_csr(stack).validate()
    np.testing.assert_array_equal(inputs.to_scipy().toarray(), pixels.transpose(0, 2, 1).reshape(images, side * side))
    assert inputs.values.tolist() == [1.0]
    assert inputs.values.dtype == np.float32
    assert inputs.indices.dtype == np.uint16


def test_the_last_pixel_of_the_largest_image_fits_16_bits() -> None:
    stack = bitmaps.bitmap_stack(1, 256)
    stack[31, 0, 255] = 0x80
    assert bitmaps.stack_to_csr(stack).indices.tolist() == [65535]
