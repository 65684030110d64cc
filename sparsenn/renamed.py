"""Values of options that have changed: the old ones are taken for one release more, and whoever gives one is told.

What is in it goes with the release after the next.
"""

from __future__ import annotations

import sys
import warnings

__all__ = ["VALUES", "renewed", "told"]

VALUES: dict[str, dict[str, str]] = {"precision": {"fp16": "float16"}}
"""By the option's name: the new values by the old."""


def renewed(option: str, value: str) -> str:
    """Return an option's value as it is called now.

    Parameters
    ----------
    option : str
        The option's name.
    value : str
        As a caller gave it; an old one is a `DeprecationWarning` at the line outside this package that gave it.

    Returns
    -------
    str
        The value of now.
    """
    new = VALUES.get(option, {}).get(value, value)
    if new != value:
        warnings.warn(f"{option} {told(value, new)}", DeprecationWarning, stacklevel=_caller())
    return new


def told(old: str, new: str) -> str:
    """Return what is said of an old name."""
    return f"{old} is now {new}; the old name is accepted until the next release"


def _caller() -> int:
    """Return how many frames above `renewed` the first one outside this package is, as `warnings.warn` counts."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    return level
