"""The roofline formula of priors."""

from __future__ import annotations

import pytest

from sparsenn.backends.machine import H200
from sparsenn.backends.prior import Prior

PRIOR = Prior(compute=0.5, memory=0.8, launch=3e-6, precision="tf32")


@pytest.mark.parametrize(
    ("multiply_adds", "nbytes", "bound"),
    [(1e12, 1e6, 1e12 / (0.5 * H200.multiply_adds("tf32"))), (1e6, 1e9, 1e9 / (0.8 * H200.copy_bandwidth))],
    ids=["arithmetic", "bandwidth"],
)
def test_the_larger_share_bounds_a_problem(multiply_adds: float, nbytes: float, bound: float) -> None:
    assert PRIOR.seconds(H200, multiply_adds, nbytes) == pytest.approx(3e-6 + bound)


def test_each_launch_takes_its_time() -> None:
    assert PRIOR.seconds(H200, 0, 0, launches=7) == pytest.approx(21e-6)
