"""Spans: told to who watches, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparsenn.runtime.spans import CATEGORIES, Span, span, unwatched, watchers, watching


class Notes:
    """A watcher that notes what begins and what ends."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    @contextmanager
    def __call__(self, begun: Span) -> Iterator[None]:
        self.taken.append(f"+{begun.name}")
        try:
            yield
        finally:
            self.taken.append(f"-{begun.name}")


def test_nobody_watches() -> None:
    assert list(watchers) == list(CATEGORIES)
    assert not any(watchers.values())
    assert span("a", "run") is span("b", "step", rows=1)
    with span("a", "run"), span("b", "run"):
        pass


def test_who_watches_is_told_while_the_block_runs() -> None:
    notes = Notes()
    with watching(notes):
        assert all(watchers.values())
        with span("a", "run"), span("b", "step", rows=1):
            pass
    with span("c", "run"):
        pass
    assert notes.taken == ["+a", "+b", "-b", "-a"]
    assert not watchers["run"]


def test_some_categories_only() -> None:
    notes, every = Notes(), Notes()
    with watching(notes, "compile"):
        assert not watchers["step"]
        with watching(every), span("a", "step"), span("b", "compile"):
            pass
    assert notes.taken == ["+b", "-b"]
    assert every.taken == ["+a", "+b", "-b", "-a"]


def test_what_is_timed_is_hidden_also_from_who_ends_to_watch_meanwhile() -> None:
    notes, brief = Notes(), Notes()
    with watching(notes):
        beginning = watching(brief)
        beginning.__enter__()
        with unwatched(), unwatched():
            with span("a", "run"):
                beginning.__exit__(None, None, None)
            assert not watchers["run"]
        with span("b", "run"):
            pass
    assert (notes.taken, brief.taken) == (["+b", "-b"], [])


def test_errors_pass_and_end_the_span() -> None:
    notes = Notes()
    with pytest.raises(KeyError), watching(notes), span("a", "run"):
        raise KeyError
    assert notes.taken == ["+a", "-a"]
    assert not watchers["run"]
