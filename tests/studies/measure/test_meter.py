"""Measuring work on the host."""

import time

import pytest

from sparsenn.backends import backend_for
from sparsenn.studies.measure import meter as meters
from sparsenn.studies.measure import meter_for
from sparsenn.studies.measure.meter import HostMeter


def test_work_is_measured_and_its_output_kept():
    found = HostMeter().measure("spmspm", lambda: time.sleep(0.01) or "done")
    assert found.output == "done"
    assert 0.01 <= found.seconds < 5
    assert found.kernel_seconds is None


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_backends_on_the_host_share_its_meter(device):
    meter = meter_for(backend_for(device))
    assert isinstance(meter, HostMeter)
    assert meter.identity() == HostMeter().identity()


def test_roofs_are_plausible_for_any_machine():
    found = HostMeter().roofs()
    assert 1e8 < found.copy_bandwidth < 1e13
    assert 1e8 < found.cache_bandwidth < 1e14
    assert 1e7 < found.multiply_adds["float32"] < 1e15
    assert set(found.multiply_adds) == {"float32"}
    assert found.shared_bandwidth is None
    assert found.processors >= 1
    assert found.cache in {"L1", "L2", "L3", "L4"}
    assert found.cache_bytes == meters.cache_bytes() >= 1 << 14


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ({"index0": ("1", "48K"), "index2": ("2", "1024K"), "index3": ("3", "36M")}, (3, 36 << 20)),
        ({"index0": ("1", "48K"), "index1": ("2", "512K")}, (2, 512 << 10)),
        ({"index0": ("1", "32768"), "index1": ("2", "a lot"), "index2": ("3", "0K")}, (1, 32768)),
        ({"index0": ("1", "32K"), "index1": ("?", "1G")}, (1, 32 << 10)),
        ({}, meters.UNTOLD),
    ],
)
def test_the_largest_cache_is_what_the_system_tells(tmp_path, monkeypatch, caches, expected):
    for name, texts in caches.items():
        (tmp_path / name).mkdir()
        for file, text in zip(("level", "size"), texts, strict=True):
            (tmp_path / name / file).write_text(f"{text}\n")
    (tmp_path / "index9").mkdir()  # tells nothing
    monkeypatch.setattr(meters, "CACHES", tmp_path)
    assert (meters.cache_level(), meters.cache_bytes()) == expected
