"""Performance models: bytes counted by hand."""

from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.studies.traffic import Traffic, block_tiled, coalesced, compulsory, naive, product_geometry, shared_tiled

DEEP = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
SMALL = Geometry(2, 4, 4, 3, (3, 3))
"""Outputs of 2 x 2 pixels, sums of 18."""

ODD = Geometry(4, 7, 9, 6, (3, 2), stride=(2, 3), padding=(1, 0), dilation=(1, 2), groups=2)
"""Outputs of 4 x 3 pixels, sums of 12, 3 filters a group."""


def test_bytes_counted_by_hand():
    assert compulsory(SMALL, 5) == Traffic("compulsory", 4 * (5 * (32 + 12) + 54), 5 * 12 * 18)
    passing = 4 * (5 * 32 + 18 + 5 * 4)
    assert naive(SMALL, 5) == Traffic("naive", 1096, 1080, loaded=3 * passing, between=passing)
    expected = Traffic("coalesced", 1096, 1080, loaded=4 * 20 * (18 + 54 + 3), between=4 * 4 * 18, blocks=20)
    assert coalesced(SMALL, 5) == coalesced(SMALL, 5, block=64) == expected
    assert coalesced(SMALL, 5, block=2).loaded == 4 * 40 * (18 + 36 + 2)
    weights, window, outputs = 4 * 2 * 18, 4 * 2 * 4 * 3, 4 * 2 * 2  # 2 filters, 2 x 1 pixels, 4 x 3 read
    tiled = block_tiled(SMALL, 5, tile=(2, 2, 1), l1_bytes=window)
    assert tiled.loaded == 20 * (weights + 2 * window + outputs)
    assert (tiled.between, tiled.blocks) == (4 * 54 + window, 20)
    shared = shared_tiled(SMALL, 5, tile=(2, 2, 1), thread_tile=(2, 1))
    assert shared.loaded == 20 * (weights + window + outputs)
    assert shared.shared == 4 * 1080 * 3 // 2


def test_strides_dilations_and_groups_are_counted():
    assert compulsory(ODD, 1) == Traffic("compulsory", 4 * (4 * 63 + 6 * 12 + 6 * 12), 6 * 12 * 12)
    assert naive(ODD, 1).loaded == 4 * 6 * (2 * 63 + 12 + 12)
    tiled = shared_tiled(ODD, 1, tile=(64, 2, 2))
    assert tiled.blocks == 2 * 2 * 2
    assert tiled.loaded == 8 * 4 * (3 * 12 + 2 * 5 * 6 + 3 * 2 * 2)


def test_numbers_of_two_bytes_are_half_of_it():
    for model in (compulsory, naive, coalesced, shared_tiled):
        single, half = model(DEEP, 3), model(DEEP, 3, 2)
        assert (single.compulsory, single.loaded) == (2 * half.compulsory, 2 * half.loaded)
        assert single.multiply_adds == half.multiply_adds


def test_a_matrix_product_is_a_convolution():
    product = product_geometry(rows=7, depth=11, columns=5)
    assert compulsory(product, 1) == Traffic("compulsory", 4 * (7 * 11 + 11 * 5 + 7 * 5), 7 * 11 * 5)
    assert naive(product, 1).loaded == 4 * 5 * (7 * 11 + 11 + 7)
    assert shared_tiled(product, 1, tile=(5, 1, 4)).loaded == 2 * 4 * (5 * 11 + 4 * 11 + 5 * 4)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3))
def test_one_tile_for_everything_moves_what_any_way_must(channels, height, width, filters, size):
    geometry = Geometry(channels, height + size - 1, width + size - 1, filters, (size, size))
    whole = shared_tiled(geometry, 1, tile=(filters, height, width))
    assert whole.loaded == whole.compulsory == compulsory(geometry, 1).compulsory
    assert block_tiled(geometry, 1).loaded >= shared_tiled(geometry, 1).loaded >= whole.loaded
