"""The types of the fixtures that run the program, which `tests/cli/conftest.py` makes, and how a process ends."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from typer.testing import Result

__all__ = ["Refused", "Run", "Spawn", "ended"]

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]
Refused = Callable[..., None]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit code, and what it wrote to stdout and to stderr."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err
