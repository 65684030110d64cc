"""Roofs are measured once, then read from the cache folder."""

import json
from dataclasses import replace

import pytest

from sparsenn.studies.measure import Identity, Roofs
from sparsenn.studies.measure.meter import FILE, VERSION, HostMeter, roofs_of

EMPTY = json.dumps({"version": VERSION, "devices": []})

ROOFS = Roofs(
    copy_bandwidth=100.0,
    cache_bandwidth=1000.0,
    cache="L2",
    cache_bytes=50,
    multiply_adds={"float32": 10.0, "float16": 1000.0},
    shared_bandwidth=2000.0,
    processors=4,
)


class Meter(HostMeter):
    def __init__(self, name="Test", driver="1"):
        self.count = 0
        self._identity = Identity(name, driver)

    def identity(self):
        return self._identity

    def roofs(self):
        self.count += 1
        return replace(ROOFS, copy_bandwidth=100.0 * self.count)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_roofs_are_measured_once_a_device_driver_and_version(folder, monkeypatch):
    meter = Meter()
    first = roofs_of(meter)
    assert (first.measured, first.notes, first.identity) == (True, (), Identity("Test", "1"))
    again = roofs_of(meter)
    assert (again.measured, again.notes, again.roofs) == (False, (), first.roofs)
    assert meter.count == 1
    for other in (Meter("Other"), Meter(driver="2")):
        assert roofs_of(other).measured
    assert not roofs_of(Meter()).measured
    assert len(json.loads((folder / FILE).read_text())["devices"]) == 3
    assert roofs_of(meter, anew=True).roofs.copy_bandwidth == 200.0
    assert roofs_of(Meter()).roofs.copy_bandwidth == 200.0
    monkeypatch.setattr("sparsenn.studies.measure.meter.package_version", lambda: "9.9")
    assert roofs_of(Meter()).measured


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1}', '{"version": 99}', EMPTY])
def test_a_damaged_file_is_measured_anew_and_replaced(folder, text):
    folder.mkdir()
    (folder / FILE).write_text(text)
    found = roofs_of(Meter())
    assert found.measured
    assert ("measured anew" in " ".join(found.notes)) == (text != EMPTY)
    again = roofs_of(Meter())
    assert (again.measured, again.notes) == (False, ())
