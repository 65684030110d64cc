"""The timer: calls until they are done, in turn, in blocks, and by pytest-benchmark where it is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import timing
from timing import LEAST_RUNS, Timer


class Clock:
    """Time that only calls spend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.events: list[str] = []
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.events.append("sleep")

    def call(self, name: str, seconds: float) -> Any:
        def run() -> None:
            self.now += seconds
            self.events.append(name)

        return run


def test_calls_are_timed_until_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    call, wait = clock.call("call", 0.001), clock.call("wait", 0.002)
    found = Timer().time(call, wait, runs=20, warm_up=2)
    assert clock.events == ["call", "wait"] * 22
    assert (found.median, found.runs) == (pytest.approx(3.0), 20)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert Timer().time(call, wait, 20, most_seconds=0.0301).runs == 10
    assert Timer().time(call, wait, 20, most_seconds=0.001).runs == LEAST_RUNS
    assert Timer().time(call, wait, 2, most_seconds=0.001).runs == 2
    assert Timer().time(call, wait, 20, least_seconds=0.0899).runs == 30
    assert Timer().time(call, wait, 1).spread == 0
    clock.events.clear()
    Timer().time(call, wait, 20, warm_seconds=0.0889)
    assert len(clock.events) == 2 * (30 + 20)
