"""Measuring work on the host."""

import time

from sparsenn.backends.meter import HostMeter, median_seconds


def test_work_is_measured_and_its_output_kept():
    found = HostMeter().measure("spmspm", lambda: time.sleep(0.01) or "done")
    assert found.output == "done"
    assert 0.01 <= found.seconds < 5
    assert found.kernel_seconds is None


def test_the_median_leaves_out_the_first_run():
    delays = iter([0.5, *[0.0] * 20])
    assert median_seconds(HostMeter(), lambda: time.sleep(next(delays))) < 0.1


def test_ceilings_are_plausible_for_any_machine():
    found = HostMeter().ceilings()
    assert 1e8 < found.copy_bandwidth < 1e13
    assert 1e7 < found.multiply_adds < 1e15
