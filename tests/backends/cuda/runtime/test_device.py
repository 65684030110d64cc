"""CuPy as it is imported, and what a GPU that is here offers, with a CuPy that only answers."""

import os
import sys
from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda.runtime import device
from sparsenn.backends.machine import A100, H200, RTX_4090


@pytest.fixture
def asked(monkeypatch):
    """Has CuPy answer for one GPU; what it was asked for since."""
    numbers = []

    def install(name, major, minor):
        properties = {
            "name": name,
            "major": major,
            "minor": minor,
            "multiProcessorCount": 60,
            "sharedMemPerBlockOptin": 101_376,
            "sharedMemPerMultiprocessor": 102_400,
            "totalGlobalMem": 10**10,
        }
        attributes = {device.CLOCK_RATE: 2_000_000, device.MEMORY_CLOCK_RATE: 10_000_000, device.MEMORY_BUS_WIDTH: 256}

        def answer(number):
            numbers.append(number)
            return properties

        runtime = SimpleNamespace(
            getDevice=lambda: 3,
            getDeviceProperties=answer,
            deviceGetAttribute=lambda attribute, number: attributes[attribute],
        )
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
        return numbers

    device.machine_of.cache_clear()
    yield install
    device.machine_of.cache_clear()


@pytest.mark.parametrize("name", ["NVIDIA Some GPU", b"NVIDIA Some GPU"])
def test_a_gpu_of_unknown_rates_reaches_about_nine_tenths_of_what_it_states(asked, name):
    asked(name, 8, 9)
    found = device.machine_of(0)
    assert (found.name, found.device, found.capability, found.multiprocessors) == ("NVIDIA Some GPU", "cuda", 89, 60)
    assert (found.block_bytes, found.multiprocessor_bytes, found.memory_bytes) == (101_376, 102_400, 10**10)
    assert found.clock == pytest.approx(0.88 * 2e9)
    assert found.copy_bandwidth == pytest.approx(0.88 * 640e9)


@pytest.mark.parametrize("known", [H200, A100, RTX_4090])
def test_rates_of_known_gpus_are_those_measured(asked, known):
    asked(known.name, *divmod(known.capability, 10))
    found = device.machine_of(0)
    assert (found.clock, found.copy_bandwidth) == (known.clock, known.copy_bandwidth)
    assert found.multiprocessors == 60  # of the part that is there


def test_a_gpu_is_asked_once(asked):
    numbers = asked("NVIDIA Some GPU", 9, 0)
    assert device.current_machine() is device.machine_of(3) is device.machine_of(3)
    assert numbers == [3]


def test_a_device_is_entered_and_left_unless_it_is_the_current_one(monkeypatch):
    current, entered = [3], []

    class Entered:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            entered.append(self.number)
            self.before, current[0] = current[0], self.number

        def __exit__(self, *error):
            current[0] = self.before

    cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: current[0]), Device=Entered)
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=cuda))
    with device.as_current(3):
        assert (current, entered) == ([3], [])
        with device.as_current(1), device.as_current(1):
            assert (current, entered) == ([1], [1])
        assert current == [3]


def test_warnings_of_cupy_about_itself_are_dropped(tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text(
        "import warnings\nwarnings.warn('two CuPy packages are installed')\nhere = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert device.cupy().here
    del sys.modules["cupy"]  # the one that was there before, if any, comes back


def test_cupy_is_imported_once_and_again_where_it_has_changed(monkeypatch):
    asked = []
    monkeypatch.setattr(device, "import_module", lambda name: asked.append(name) or sys.modules[name])
    for cupy in (SimpleNamespace(), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        asked.clear()
        assert device.cupy() is device.cupy() is cupy
        assert asked == ["cupy"]
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.cupy()
    assert asked == ["cupy"] * 2


@pytest.fixture
def _no_settings_of_cupy(monkeypatch):
    for name in ("CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_settings_of_cupy")
def test_a_setting_moves_cupys_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "own"))
    device._place_cache()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "own" / "cupy")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "other"))
    device._place_cache()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "other")
    assert "CUPY_CACHE_IN_MEMORY" not in os.environ


@pytest.mark.usefixtures("_no_settings_of_cupy")
def test_where_cupy_cannot_keep_anything_it_keeps_it_in_memory(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("SPARSENN_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="compiled kernels cannot be cached,.*set SPARSENN_CACHE"):
        device._place_cache()
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
    device._place_cache()
