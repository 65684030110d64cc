"""Which convolutions the first story's own float32 rungs take, and how they cut them, in arithmetic alone."""

import pytest

from sparsenn.backends.cuda.conv import Geometry
from sparsenn.studies.conv2d.direct import float32

GENERAL = Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2)


def test_what_does_not_fit_is_told():
    deep = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
    assert "2,359,296 weights" in float32.fits_constant(deep)
    assert "shared memory" in float32.fits_tiled(Geometry(1, 200, 200, 1, (100, 100)))
    assert "2 groups" in float32.fits_one_group(GENERAL)


@pytest.mark.parametrize("filters", [1, 4, 5, 16, 17, 64, 65, 512])
def test_product_tiles_are_rectangles_of_whole_threads(filters):
    tile = float32.product_tile(filters)
    threads = tile["ROWS"] // tile["ROWS_EACH"] * (tile["COLUMNS"] // tile["COLUMNS_EACH"])
    assert threads == 128
    assert max(threads, tile["COLUMNS"]) % min(threads, tile["COLUMNS"]) == 0
    assert tile["ROWS"] >= min(filters, 64)
