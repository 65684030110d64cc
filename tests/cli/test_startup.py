"""How a process of the program begins and ends: what is loaded, what the driver is asked, and what still runs last."""

from __future__ import annotations

import ctypes
import gc
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
    """CUDA's driver, which notes the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            plain = tuple(argument for argument in arguments if isinstance(argument, int))
            self.calls.append((name, *plain))
            return 0

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
@pytest.mark.parametrize(
    ("device", "index"),
    [
        *(("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)),
        *((device, None) for device in ("cpu", "reference", "cuda:", "cuda:x", "abacus", "")),
    ],
)
def test_the_context_of_the_named_gpu_alone_is_made(driver: Driver, device: str, index: int | None) -> None:
    startup.wake_gpu(device)
    made = [("cuInit", 0), ("cuDeviceGet", index), ("cuDevicePrimaryCtxRetain",)]
    assert driver.calls == ([] if index is None else made)
