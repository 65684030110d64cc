"""Spans: named sections of work, passed to watchers. Without watchers they cost next to nothing.

What runs a network marks its calls, batches, steps, copies and waits with `span`; `sparsenn.trace` watches all of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

CATEGORIES = (
    *("run", "batch", "step", "plan", "prepare", "transfer", "convert", "wait"),
    *("compile", "read", "write", "train"),
)
"""Kinds of work."""


@dataclass(frozen=True)
class Span:
    """A stretch of work in one thread, inside those that the thread has begun and not ended.

    name : what is done.
    category : one of `CATEGORIES`.
    details : plain values by name.
    """

    name: str
    category: str
    details: Mapping[str, Any]


Watcher: TypeAlias = Callable[[Span], AbstractContextManager[object]]
"""Called with a span before it begins; what it returns is entered as the span begins, and left as it ends."""

_NOTHING = nullcontext()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # the thread that held it is not in the child
    os.register_at_fork(after_in_child=lambda: _lock.release() if _lock.locked() else None)
_watching: list[tuple[Watcher, tuple[str, ...]]] = []
_hidden = 0

watchers: dict[str, tuple[Watcher, ...]] = dict.fromkeys(CATEGORIES, ())
"""The watchers of each category; work so short that `span` itself would cost something checks them first."""


def span(name: str, category: str, **details: Any) -> AbstractContextManager[object]:
    """Return what is entered as a stretch of work begins, and left as it ends; parameters as those of `Span`."""
    called = watchers[category]
    if not called:
        return _NOTHING
    begun = Span(name, category, details)
    return called[0](begun) if len(called) == 1 else _all_called(called, begun)


@contextmanager
def watching(watcher: Watcher, *categories: str) -> Iterator[None]:
    """Have spans of some categories, all unless given, of all threads call `watcher` while the block runs."""
    entry = watcher, categories or CATEGORIES
    with _lock:
        _watching.append(entry)
        _renew()
    try:
        yield
    finally:
        with _lock:
            _watching.remove(entry)
            _renew()


@contextmanager
def unwatched() -> Iterator[None]:
    """Call no watcher while the block runs, which measures a time."""
    _hide(1)
    try:
        yield
    finally:
        _hide(-1)


def _hide(change: int) -> None:
    global _hidden
    with _lock:
        _hidden += change
        _renew()


def _renew() -> None:
    for category in CATEGORIES:
        watchers[category] = () if _hidden else tuple(watcher for watcher, kinds in _watching if category in kinds)


@contextmanager
def _all_called(called: tuple[Watcher, ...], begun: Span) -> Iterator[None]:
    with ExitStack() as stack:
        for watcher in called:
            stack.enter_context(watcher(begun))
        yield
