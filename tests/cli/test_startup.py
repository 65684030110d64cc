"""How a process of the program begins and ends: what is loaded, what the driver is asked, and what still runs last."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparsenn.cli import startup


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of the program alone; how often garbage is looked for is as before afterwards."""
    monkeypatch.setattr(startup, "_alone", False)
    monkeypatch.setenv("MPLBACKEND", "")
    before = gc.get_threshold()
    startup.begin()
    yield
    gc.set_threshold(*before)


class Driver:
    """CUDA's driver, of which the call named `failing` fails; it notes the calls."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if self.failing == f"no {name}":
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            plain = tuple(argument for argument in arguments if isinstance(argument, int))
            self.calls.append((name, *plain))
            return int(name == self.failing)

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver that is loaded in place of a real one; threads run at once, and CuPy is there."""

    class AtOnce:
        def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
            assert daemon
            self.start = lambda: target(*args)

    made = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    monkeypatch.setattr(startup, "Thread", AtOnce)
    monkeypatch.setattr(startup, "find_spec", lambda name: object())
    return made


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)])
def test_the_context_of_the_named_gpu_is_made(driver: Driver, device: str, index: int) -> None:
    startup.wake_gpu(device)
    assert driver.calls == [("cuInit", 0), ("cuDeviceGet", index), ("cuDevicePrimaryCtxRetain",)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("device", ["cpu", "reference", "cuda:", "cuda:x", "abacus", ""])
def test_other_devices_wake_no_gpu(driver: Driver, device: str) -> None:
    startup.wake_gpu(device)
    assert driver.calls == []


@pytest.mark.usefixtures("alone")
def test_without_cupy_no_gpu_is_woken(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    startup.wake_gpu("auto")
    assert driver.calls == []


def test_in_a_process_of_others_no_gpu_is_woken(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_alone", False)
    startup.wake_gpu("cuda")
    assert driver.calls == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("failing", "calls"), [("cuInit", 1), ("cuDeviceGet", 2), ("cuDevicePrimaryCtxRetain", 3), ("no cuInit", 0)]
)
def test_a_driver_that_fails_is_asked_no_more(driver: Driver, failing: str, calls: int) -> None:
    driver.failing = failing
    startup.wake_gpu("cuda")
    assert len(driver.calls) == calls


@pytest.mark.usefixtures("alone", "driver")
def test_a_missing_driver_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    startup.wake_gpu("cuda")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)


def test_garbage_is_looked_for_less_often(alone: None) -> None:
    assert gc.isenabled()
    assert gc.get_threshold()[0] >= 100_000


@pytest.mark.parametrize(("given", "left"), [("0", None), ("00", None), ("100", "100"), (None, None)])
@pytest.mark.usefixtures("alone")
def test_a_width_of_no_columns_is_none(monkeypatch: pytest.MonkeyPatch, given: str | None, left: str | None) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if given is not None:
        monkeypatch.setenv("COLUMNS", given)
    startup.begin()
    assert os.environ.get("COLUMNS") == left


@pytest.mark.parametrize(("words", "code"), [(["kernels"], 0), (["info", "none.h5"], 2), (["conjure"], 2)])
def test_the_end_runs_what_is_registered_and_flushes(words: list[str], code: int) -> None:
    done = python(
        "import atexit, sys; from sparsenn.cli import run\n"
        f"sys.argv = ['sparsenn', *{words!r}]\n"
        "atexit.register(lambda: print('last', end=''))\n"
        "atexit.register(lambda: print('stderr, too', end='', file=sys.stderr))\n"
        "run()"
    )
    assert done.returncode == code
    assert done.stdout.endswith("last")
    assert done.stderr.endswith("stderr, too")
