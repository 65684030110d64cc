"""Pickling and copying by the constructor, so that a copy is checked as the original was."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Rebuilt:
    """Base of frozen dataclasses that pickle as the arguments of their constructor.

    What the constructor checks, converts and makes read-only is so again in a copy and in another process, and what
    was computed from the arguments is left behind.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the class and its arguments."""
        return type(self), tuple(getattr(self, part.name) for part in fields(self) if part.init)  # type: ignore[arg-type]
