"""The roofline formula of priors."""

from __future__ import annotations

import pytest

from sparsenn.backends.machine import H200
from sparsenn.backends.prior import Prior

PRIOR = Prior(compute=0.5, memory=0.8, launch=3e-6, precision="tf32")


def test_arithmetic_bounds_problems_with_many_multiply_adds_a_byte() -> None:
    seconds = PRIOR.seconds(H200, multiply_adds=1e12, nbytes=1e6)
    assert seconds == pytest.approx(3e-6 + 1e12 / (0.5 * H200.multiply_adds("tf32")))


def test_bandwidth_bounds_problems_with_few() -> None:
    seconds = PRIOR.seconds(H200, multiply_adds=1e6, nbytes=1e9)
    assert seconds == pytest.approx(3e-6 + 1e9 / (0.8 * H200.copy_bandwidth))


def test_each_launch_takes_its_time() -> None:
    assert PRIOR.seconds(H200, 0, 0, launches=7) == pytest.approx(21e-6)
