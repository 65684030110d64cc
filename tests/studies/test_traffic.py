"""Performance models: bytes counted by hand, and the study's figures in the study's convention."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.studies.traffic import (
    STUDY_BANDWIDTH,
    Traffic,
    block_tiled,
    coalesced,
    compulsory,
    naive,
    shared_tiled,
    study_block_tiled,
    study_coalesced,
    study_naive,
)

LARGE = Geometry(64, 224, 224, 64, (3, 3), padding=(1, 1))
DEEP = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
SMALL = Geometry(2, 4, 4, 3, (3, 3))
"""Outputs of 2 x 2 pixels, sums of 18."""

ODD = Geometry(4, 7, 9, 6, (3, 2), stride=(2, 3), padding=(1, 0), dilation=(1, 2), groups=2)
"""Outputs of 4 x 3 pixels, sums of 12, 3 filters a group."""


def test_three_of_the_four_printed_predictions_come_out():
    assert int(study_naive(LARGE, 16)) == 1521
    assert round(study_naive(DEEP, 16)) == 1200  # where 1120 is printed
    assert int(study_coalesced(LARGE)) == 1374
    assert int(study_coalesced(DEEP)) == 1394


def test_the_studys_tiles_are_bound_by_arithmetic():
    assert study_block_tiled(LARGE, 16) == study_block_tiled(DEEP, 16) == 13_800
    assert study_block_tiled(DEEP, 5) == pytest.approx(13_800 * 5 * 8 / 80)  # 40 blocks for 80 multiprocessors
    one = 2 * 576 / (4 * 576 * (2 + 4 * 576 / (128 << 10)) + 4)
    assert study_block_tiled(LARGE, 16, (1, 1, 1)) == pytest.approx(one * STUDY_BANDWIDTH / 1e9)


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


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_bytes_are_four_times_the_studys_numbers_where_nothing_is_padded(channels, height, width, filters, size, count):
    geometry = Geometry(channels, height + size - 1, width + size - 1, filters, (size, size))
    for traffic, study in (
        (naive(geometry, count), study_naive(geometry, count, beta=1)),
        (coalesced(geometry, count), study_coalesced(geometry)),
    ):
        intensity = 2 * traffic.multiply_adds / traffic.loaded
        assert 4 * intensity * STUDY_BANDWIDTH / 1e9 == pytest.approx(study)
