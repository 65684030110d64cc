"""Times of modules within a model, computed by PyTorch and by sessions in turns."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

WARM_UPS = 2
"""Runs of each kind before those that count: the first prepares, the second captures a graph."""

MIN_RUNS = 5
MAX_RUNS = 25
MAX_SECONDS = 2.0
SHORT_SECONDS = 0.05
"""Seconds after which no run follows the least number of them: of a model, and of a single layer."""

QUEUED_ON_A_GPU = 4
"""Calls of a single layer before a wait: the GPU computes one while the next is launched, as in a model."""

SLOWER = 1.05
"""A layer that takes this multiple of PyTorch's time is slower: clocks are no more exact."""


def call_model(model: Any, example: Any) -> None:
    """Call a model with one batch, a tuple of arguments, or a dictionary of them by name."""
    if isinstance(example, Mapping):
        model(**example)
    else:
        model(*(example if isinstance(example, tuple) else (example,)))


def times_in_turns(
    model: nn.Module, modules: Sequence[Any], switches: Sequence[Callable[[], None]], example: Any
) -> list[dict[Any, float]]:
    """Run a model after each of some switches in turns.

    Parameters
    ----------
    model : in evaluation mode.
    modules : those whose times count; one that is called several times in a run has the sum.
    switches : functions that change how modules compute.
    example : as of `call_model`.

    Returns
    -------
    For each switch, the median seconds of each module that is called.
    """
    times: list[dict[Any, list[float]]] = [defaultdict(list) for _ in switches]
    start = 0.0
    for count in range(WARM_UPS + MAX_RUNS):
        if count == WARM_UPS:
            start = time.perf_counter()
        if count >= WARM_UPS + MIN_RUNS and time.perf_counter() > start + MAX_SECONDS:
            break
        for switch, known in zip(switches, times, strict=True):
            switch()
            for module, seconds in _timed_run(model, modules, example).items():
                if count >= WARM_UPS:
                    known[module].append(seconds)
    return [{module: median(seconds) for module, seconds in known.items()} for known in times]


def is_slower(call: Callable[[], torch.Tensor], other: Callable[[], torch.Tensor], queued: int = 1) -> bool:
    """Return whether a call takes more than `SLOWER` times as long as another; some of either are queued in turns."""
    times: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + SHORT_SECONDS
    while len(times[0]) < WARM_UPS + MIN_RUNS or (len(times[0]) < MAX_RUNS and time.perf_counter() < end):
        for each, known in zip((call, other), times, strict=True):
            start = time.perf_counter()
            _wait([each() for _ in range(queued)])
            known.append(time.perf_counter() - start)
    own, others = (median(known[WARM_UPS:]) for known in times)
    return own > SLOWER * others


def _timed_run(model: nn.Module, modules: Sequence[Any], example: Any) -> dict[Any, float]:
    """Return the seconds of each module in one call of a model."""
    seconds: dict[Any, float] = {}
    starts: dict[Any, float] = {}
    with ExitStack() as stack:
        for module in modules:
            for register, hook in (
                (module.register_forward_pre_hook, partial(_begin, starts)),
                (module.register_forward_hook, partial(_end, starts, seconds)),
            ):
                stack.callback(register(hook).remove)
        call_model(model, example)
    return seconds


def _begin(starts: dict[Any, float], module: Any, rows: Any) -> None:
    _wait(rows)
    starts[module] = time.perf_counter()


def _end(starts: dict[Any, float], seconds: dict[Any, float], module: Any, rows: Any, outputs: Any) -> None:
    _wait(rows)
    seconds[module] = seconds.get(module, 0.0) + time.perf_counter() - starts[module]


def _wait(rows: Any) -> None:
    for each in rows:
        if isinstance(each, torch.Tensor) and each.device.type == "cuda":
            torch.cuda.synchronize(each.device)
