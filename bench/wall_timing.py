"""Timing calls as a caller waits for them: by the wall clock, until the result is there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["RUNS", "Timing", "gpu_wait", "timed", "timed_in_blocks", "timed_in_turn", "wait_for_nothing"]

RUNS = 50
LEAST_RUNS = 5
WARM_UP = 5

BLOCKS = 5
PAUSE_SECONDS = 0.02  # longer than threads spin


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median and interquartile range of `runs` calls."""

    median: float
    spread: float
    runs: int


def wait_for_nothing() -> None:
    """Return at once: what runs on the host is done when its call returns."""


def gpu_wait() -> Callable[[], None]:
    """Return what waits until the current GPU has done all that was queued on any stream."""
    import cupy

    return cupy.cuda.Device().synchronize  # type: ignore[no-any-return]


def timed(
    call: Callable[[], Any],
    wait: Callable[[], None] = wait_for_nothing,
    runs: int = RUNS,
    warm_up: int = WARM_UP,
    most_seconds: float | None = None,
    warm_seconds: float = 0.0,
    least_seconds: float = 0.0,
) -> Timing:
    """Time calls one after the other, each until its result is there.

    Parameters
    ----------
    wait : what is called after each call, and before the first.
    runs : calls that are timed, unless one of the seconds below says otherwise.
    warm_up : calls before those; one of them always.
    most_seconds : fewer calls are timed where so many would take longer, but never fewer than 5; and only one goes
        before them where even 5 do.
    warm_seconds : calls go before those that are timed for so long, at least.
    least_seconds : more calls are timed where all would take less, but none beyond `most_seconds`.
    """
    if most_seconds is not None:
        least_seconds = min(least_seconds, most_seconds)
    warm, done = time.perf_counter() + warm_seconds, 0
    while done < max(1, warm_up) or time.perf_counter() < warm:
        start = time.perf_counter()
        call()
        wait()
        done += 1
        last = time.perf_counter() - start
        if most_seconds is not None and LEAST_RUNS * last > most_seconds:
            break
    if most_seconds is not None:
        runs = max(min(LEAST_RUNS, runs), min(runs, int(most_seconds / max(last, 1e-9))))
    seconds: list[float] = []
    until = time.perf_counter() + least_seconds
    while len(seconds) < runs or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return _timing(seconds)


def timed_in_turn(
    calls: Sequence[Callable[[], Any]],
    wait: Callable[[], None] = wait_for_nothing,
    runs: int = RUNS,
    warm_up: int = WARM_UP,
    before: Callable[[], None] = wait_for_nothing,
) -> list[Timing]:
    """Time calls against each other: each once, then each again, so that a disturbance affects all.

    `before` is called before each call, and not timed; the other arguments are as for `timed`.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    for run in range(warm_up + runs):
        for call, own in zip(calls, seconds, strict=True):
            before()
            start = time.perf_counter()
            call()
            wait()
            if run >= warm_up:
                own.append(time.perf_counter() - start)
    return [_timing(own) for own in seconds]


def timed_in_blocks(calls: Sequence[Callable[[], Any]], seconds: float) -> list[Timing]:
    """Time calls of several libraries on a CPU, for some seconds in all, in blocks with a pause before each.

    Threads of a library that spin after its calls do not hold up those of another so.
    """
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(BLOCKS):
        for call, own in zip(calls, found, strict=True):
            time.sleep(PAUSE_SECONDS)
            call()
            end = time.perf_counter() + seconds / (BLOCKS * len(calls))
            while True:
                start = time.perf_counter()
                call()
                own.append(time.perf_counter() - start)
                if start + own[-1] >= end:
                    break
    return [_timing(own) for own in found]


def _timing(seconds: Sequence[float]) -> Timing:
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return Timing(1e3 * middle, 1e3 * (high - low), len(seconds))
