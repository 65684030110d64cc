"""Work shared by threads, interrupted at every place where a signal's handler may raise an exception."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from sparsenn.distributed import sharing
from sparsenn.runtime import workers

LONGEST = 20.0
"""Seconds after which what was interrupted counts as hung."""

PLACES = 3000
"""Lines and returns of Python code that are tried at most, one after the other; there are fewer. A generator's yield,
which Python tells as a return, is none of them: signals are not looked at there."""


class Interrupt(BaseException):
    """What a signal's handler raises."""


class Tracer:
    """Raises an exception once, at some line or return that this thread comes to, as a signal's handler does."""

    def __init__(self, place: int) -> None:
        self.left, self.held, self.raised = place, 0, False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" or (event == "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR):
            self.left -= 1
            self.look()
        return self

    def look(self) -> None:
        if self.left < 0 and not self.held and not self.raised:
            self.raised = True
            raise Interrupt

    @contextmanager
    def holding(self) -> Iterator[Callable[[], bool]]:
        """Hold the exception back, as `held_signals` does with signals."""
        self.held += 1
        try:
            yield lambda: False
        finally:
            self.held -= 1
        self.look()


def read_ahead() -> None:
    with sharing.ahead(iter(range(6)), 2) as items:
        assert list(items) == list(range(6))


def share_out() -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        found = dict(sharing.shared((one, other), (lambda item, stopping: 2 * item,) * 2, range(6), 1))
    assert found == {item: 2 * item for item in range(6)}


def spread_over_workers() -> None:
    assert workers.map_threads(lambda item: 2 * item, range(6)) == [2 * item for item in range(6)]


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back how often threads give way, which what is interrupted may not come to."""
    monkeypatch.setattr(sharing, "_switch_seconds", [])
    usual = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("switches")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of weak references' callbacks
@pytest.mark.parametrize("work", [read_ahead, share_out, spread_over_workers])
def test_it_ends_wherever_it_is_interrupted(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    spread_over_workers()  # which starts threads that stay
    threads, ended = threading.active_count(), []

    def run(tracer: Tracer) -> None:
        sys.settrace(tracer)
        try:
            work()
        except Interrupt:
            ended.append("interrupted")
        else:
            ended.append("done")
        finally:
            sys.settrace(None)

    for place in range(PLACES):
        tracer = Tracer(place)
        for module in (sharing, workers):
            monkeypatch.setattr(module, "held_signals", tracer.holding)
        thread = threading.Thread(target=run, args=(tracer,), daemon=True)
        thread.start()
        thread.join(LONGEST)
        assert not thread.is_alive(), f"hangs where it is interrupted at place {place}"
        if not tracer.raised:
            break
    assert set(ended) == {"interrupted", "done"}
    end = time.monotonic() + LONGEST
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads, "a thread goes on"
