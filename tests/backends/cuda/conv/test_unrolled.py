"""How unrolled cuts outputs into tiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv import Geometry
from sparsenn.backends.cuda.conv.unrolled import THREADS, shape_defines, tile_of


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([128, 256]))
def test_tiles_are_powers_of_two_that_a_block_has_threads_for(height, width, threads):
    across, down = tile_of(height, width, threads)
    assert across.bit_count() == down.bit_count() == 1
    assert threads % (across * down) == 0
    assert across < 2 * width
    assert down < 2 * height


@pytest.mark.parametrize(("height", "width"), [(1, 1), (34, 34), (80, 80), (1, 300), (300, 1), (14, 14)])
def test_few_threads_of_a_tile_stand_over(height, width):
    across, down = tile_of(height, width)
    assert -(-width // across) * across * -(-height // down) * down <= 1.4 * height * width


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_block_has_a_thread_for_each_pixel_of_its_planes(height, width):
    cut = shape_defines(Geometry(3, height, width, 5, (1, 1)))
    assert cut["TILE_WIDTH"] * cut["TILE_HEIGHT"] * cut["PLANES"] == THREADS
    assert (cut["HEIGHT"], cut["WIDTH"]) == (height, width)
