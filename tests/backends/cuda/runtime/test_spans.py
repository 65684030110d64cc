"""Ranges and times of a GPU, with a CuPy whose clock ticks with each event."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from sparsenn.backends.cuda.runtime import spans
from sparsenn.backends.cuda.runtime.spans import DeviceSpans
from sparsenn.runtime.spans import Span

STEP = Span("chunks, layers 1 to 9", "step", {"device": "cuda"})


class FakeCuPy:
    """Notes ranges; each event is one millisecond after the one before."""

    def __init__(self) -> None:
        self.ranges: list[str] = []
        self.events = 0
        self.available = True
        fake = self

        class Event:
            def record(self) -> None:
                fake.events += 1
                self.at = float(fake.events)

            def synchronize(self) -> None:
                pass

        self.cuda = SimpleNamespace(
            Event=Event,
            Device=nullcontext,
            get_elapsed_time=lambda begun, ended: ended.at - begun.at,
            runtime=SimpleNamespace(getDevice=lambda: 0),
        )

    @contextmanager
    def _range(self, name: str) -> Iterator[None]:
        self.ranges.append(f"+{name}")
        yield
        self.ranges.append(f"-{name}")

    def time_range(self, name: str) -> Any:
        if not self.available:
            raise RuntimeError("nvtx is not installed")
        return self._range(name)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuPy:
    made = FakeCuPy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(profiler=made))
    monkeypatch.setitem(sys.modules, "cupyx.profiler", made)
    monkeypatch.setattr(spans, "_used", spans.threading.Event())
    return made


def test_nothing_is_done_before_a_gpu_is_used(fake: FakeCuPy) -> None:
    device = DeviceSpans()
    with device(STEP):
        spans.note_use()
    assert (fake.ranges, fake.events, list(device.steps())) == ([], 0, [])


@pytest.mark.parametrize("available", [True, False])
def test_spans_are_ranges_and_steps_have_times(fake: FakeCuPy, available: bool) -> None:
    fake.available = available
    spans.note_use()
    device = DeviceSpans()
    with device(Span("run", "run", {})), device(STEP):
        pass
    with device(Span("on the host", "step", {"device": "cpu"})):
        pass
    with device(STEP):
        pass
    names = ["+run", f"+{STEP.name}", f"-{STEP.name}", "-run", "+on the host", "-on the host"]
    assert fake.ranges == ([*names, f"+{STEP.name}", f"-{STEP.name}"] if available else [])
    first, second = device.steps()
    assert [step[:2] for step in (first, second)] == [(STEP, "cuda:0")] * 2
    assert [step[3] - step[2] for step in (first, second)] == [1_000_000] * 2
    assert second[2] - first[3] == 1_000_000


def test_a_step_that_fails_has_no_time(fake: FakeCuPy) -> None:
    spans.note_use()
    device = DeviceSpans()
    with pytest.raises(KeyError), device(STEP):
        raise KeyError
    assert list(device.steps()) == []
