"""How long work reports where it stands: one call signature, understood by every layer of the package."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "silent"]


class Progress(Protocol):
    """Receives the state of a piece of work; called often, so it must be cheap."""

    def __call__(self, task: str, done: int, total: int) -> None:
        """Take note that `done` of `total` steps of `task` are finished; a task ends when the two are equal."""
        ...


def silent(task: str, done: int, total: int) -> None:
    """Report nothing."""
