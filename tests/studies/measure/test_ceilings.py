"""What a GPU can do at most: within reason, in the right order, and found out if a kernel left work out."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn.backends import backend_for
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.studies.measure import Roofs, meter_for
from sparsenn.studies.measure.meter import median_seconds

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture(scope="module")
def roofs() -> Roofs:
    return meter_for(backend_for("cuda")).roofs()


def test_each_memory_is_faster_than_the_one_behind_it(roofs: Roofs) -> None:
    assert roofs.shared_bandwidth is not None
    assert 5e10 < roofs.copy_bandwidth < roofs.cache_bandwidth < roofs.shared_bandwidth < 1e15
    assert (roofs.cache, roofs.shared_bandwidth / roofs.cache_bandwidth < 100) == ("L2", True)


def test_a_multiprocessor_does_no_more_than_its_clock_allows(roofs: Roofs) -> None:
    properties = cupy().cuda.runtime.getDeviceProperties(0)
    assert roofs.processors == properties["multiProcessorCount"]
    assert roofs.cache_bytes == properties["l2CacheSize"] > 1 << 18
    clocks = roofs.processors * 3e9  # no GPU's clock is higher
    assert roofs.shared_bandwidth is not None
    assert 16 * roofs.processors * 1e8 < roofs.shared_bandwidth < 128 * clocks
    assert 32 * roofs.processors * 1e8 < roofs.multiply_adds["float32"] < 128 * clocks


def test_precisions_are_faster_the_fewer_bits_they_multiply(roofs: Roofs) -> None:
    rates = roofs.multiply_adds
    assert rates["float32"] < rates["tf32"] < rates["float16"]
    assert 1.5 < rates["float16"] / rates["tf32"] < 4.5


def test_float32_is_at_least_what_the_library_reaches(roofs: Roofs) -> None:
    matrix = cupy().ones((8192, 8192), np.float32)
    product = cupy().empty_like(matrix)
    seconds = median_seconds(meter_for(backend_for("cuda")), lambda: cupy().matmul(matrix, matrix, out=product))
    assert 0.9 < roofs.multiply_adds["float32"] / (len(matrix) ** 3 / seconds) < 4
