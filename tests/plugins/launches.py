"""A pytest plugin that writes down which kernels a run launches: pytest -p launches --launches FILE.

FILE gets a line `source:kernel` when that kernel is first launched, or captured in a graph, by this process; those that
other processes launch are not seen. Nothing is written in the end, so that a run that is cut short has its lines, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Tell = Callable[[str], None]


class WatchedKernel:
    """Stands for a kernel, or for the function that it holds as `kernel`, and tells its name after each launch."""

    def __init__(self, kernel: Any, name: str, tell: Tell) -> None:
        vars(self).update(_kernel=kernel, _name=name, _tell=tell)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        result = self._kernel(*arguments, **settings)
        self._tell(self._name)
        return result

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernel, name)
        return WatchedKernel(found, self._name, self._tell) if name == "kernel" else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._kernel, name, value)


class WatchedModule:
    """Stands for a compiled module, and watches the kernels that it gives."""

    def __init__(self, module: Any, source: str, tell: Tell) -> None:
        self._module, self._source, self._tell = module, source, tell

    def get_function(self, name: str) -> WatchedKernel:
        return WatchedKernel(self._module.get_function(name), f"{self._source}:{name}", self._tell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launches", type=Path, metavar="FILE", help="write down which kernels are launched")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--launches"):
        watch(path)


def watch(path: Path) -> None:
    """From now on, write the kernels that this process launches to `path`."""
    from sparsenn.backends.cuda.runtime import loader

    seen: set[str] = set()

    def tell(name: str) -> None:
        if name not in seen:
            seen.add(name)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")

    make = loader._module

    @cache
    def watched(source: str, *arguments: Any) -> WatchedModule:
        return WatchedModule(make(source, *arguments), source, tell)

    loader._module = watched
