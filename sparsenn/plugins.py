"""Modules that bring kernels beyond the engine's own, by name; whoever needs them has them imported."""

from __future__ import annotations

from importlib import import_module

__all__ = ["add_plugin", "load_plugins"]

_waiting: list[str] = []


def add_plugin(module: str) -> None:
    """Name a module that registers kernels when it is imported."""
    _waiting.append(module)


def load_plugins() -> None:
    """Import the modules named so far, each once."""
    while _waiting:
        import_module(_waiting.pop(0))
