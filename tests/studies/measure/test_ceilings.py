"""What a GPU can do at most: within reason, in the right order, and found out if a kernel left work out."""

from __future__ import annotations

import numpy as np
import pytest

from sparsenn.backends import backend_for
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import DeviceError
from sparsenn.studies.measure import Roofs, ceilings, meter_for
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


def test_twice_the_rounds_take_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = meter_for(backend_for("cuda"))

    def seconds(work: ceilings.Work) -> float:
        return float(np.median([meter.measure("", work[1]).seconds for _ in range(9)]))

    for make, rounds in (
        (lambda: ceilings.l2_reading(0)[0], "READ_ROUNDS"),
        (lambda: ceilings.shared_reading(0), "SHARED_ROUNDS"),
        (lambda: ceilings.multiply_adding(0), "ADD_ROUNDS"),
    ):
        once = make()
        monkeypatch.setattr(ceilings, rounds, 2 * getattr(ceilings, rounds))
        twice = make()
        assert twice[0] == 2 * once[0]
        assert 1.6 < seconds(twice) / seconds(once) < 2.4


def test_work_that_was_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [
        ("READS", lambda: ceilings.l2_reading(0)),
        ("READS", lambda: ceilings.shared_reading(0)),
        ("SUMS", lambda: ceilings.multiply_adding(0)),
        ("TENSOR_TILES", lambda: ceilings.tensor_multiplying(0)),
    ]
    for name, make in works:
        with monkeypatch.context() as patch:
            patch.setattr(ceilings, name, 2 * getattr(ceilings, name))  # the kernel does half of what is expected
            with pytest.raises(DeviceError, match="computes wrongly"):
                make()
