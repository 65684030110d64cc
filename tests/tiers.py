"""Cases of which a run without --all takes the first few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["rest_slow"]


def rest_slow(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """Return all cases for `pytest.mark.parametrize`, those after the first `fast` marked slow."""
    cases = list(cases)
    return [*cases[:fast], *(_slow(case) for case in cases[fast:])]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
