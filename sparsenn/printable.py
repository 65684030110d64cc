"""Texts of one line: names that files bring, without what a terminal would obey; objects, without their arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

__all__ = ["kind_of", "one_line", "printable", "reason_of"]

_LONGEST = 60
"""Characters of a field that are shown as they are."""


def printable(text: str) -> str:
    """Return a text in one line, with whatever does not print, such as a terminal's control sequences, escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def kind_of(value: object) -> str:
    """Return what an object is, with an article: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name.startswith((*'aeioAEIO', 'nd')) else 'a'} {name}"


def one_line(record: Any) -> str:
    """Return an object of a dataclass as `Name(field=value, …)` in one line: to be its class's `__repr__`.

    Arrays are shown by type and shape, tuples, lists and dictionaries by their lengths where they are long, and other
    long objects by their classes' names.
    """
    values = (f"{field.name}={_brief(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({', '.join(values)})"


def _brief(value: Any) -> str:
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{value.dtype} {' × '.join(map(str, value.shape)) or 'scalar'}>"
    if isinstance(value, tuple | list | dict) and len(value) > 4:
        return f"<{kind} of {len(value):,}>"
    text = printable(repr(value))
    return text if len(text) <= _LONGEST else f"<{kind}>"


def reason_of(error: Exception) -> str:
    """Return in a line an error's message; its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
