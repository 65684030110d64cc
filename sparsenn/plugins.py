"""Modules that those below them use by name, without importing them: kernels beyond the engine's own, and views.

Each is imported when it is first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Viewed", "add_plugin", "draw_views_with", "load_plugins", "views"]

_waiting: list[str] = []
_views: list[str] = []


def add_plugin(module: str) -> None:
    """Name a module that registers kernels when it is imported."""
    _waiting.append(module)


def load_plugins() -> None:
    """Import the modules named so far, each once."""
    while _waiting:
        import_module(_waiting.pop(0))


def draw_views_with(module: str) -> None:
    """Name the module that draws views of objects."""
    _views[:] = [module]


def views() -> Any:
    """Return the module that draws views of objects."""
    return import_module(*_views)


class Viewed:
    """An object that a notebook shows as the command line does."""

    def _repr_html_(self) -> str:
        return str(views().html_of(self))
