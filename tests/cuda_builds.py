"""Every build of every CUDA program that the test-suite compiles.

Programs whose defines come from a fixed set are those that the package declares: all builds of all of them. Programs
that are compiled for a problem's own sizes have no such set; the modules of `builds` name some of their builds.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from sparsenn import studies
from sparsenn.backends import cuda
from sparsenn.backends.cuda.runtime import loader

__all__ = ["PROGRAMS", "declare", "declare_all", "forget_modules", "source_file"]

PROGRAMS: list[loader.Program] = []
"""Filled by `declare_all`: those that the package declares, and each build that has been named as one of its own."""

_NAMED: dict[tuple[str, str | None, frozenset[tuple[str, int | str]]], loader.Program] = {}
"""The builds that have been named, each once."""

_PACKAGE = Path(cuda.__file__).parents[2]


def forget_modules() -> None:
    """Have the loader make each module anew."""
    loader._modules.clear()
    loader._kernel.cache_clear()
    loader._kernel_of_unordered.cache_clear()


def declare(source: str, architecture: str | None = None, /, **defines: int | str) -> None:
    """Name one build of a program that is compiled for a problem's own sizes.

    Parameters
    ----------
    source, architecture : as those of `loader.specialised`.
    defines : all that the source needs.
    """
    assert source_file(source).is_file(), f"{source} is not there"
    choices = {name: (value,) for name, value in defines.items()}
    _NAMED.setdefault((source, architecture, frozenset(defines.items())), loader.Program(source, choices, architecture))


@cache
def declare_all() -> None:
    """Import all that declares programs and all that names builds, and fill `PROGRAMS`."""
    for package in (cuda, studies):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    for module in sorted(Path(__file__).with_name("builds").glob("*.py")):
        import_module(f"builds.{module.stem}")
    PROGRAMS.extend([*loader.PROGRAMS, *_NAMED.values()])


def source_file(source: str) -> Path:
    """Return the file of a source that is named as programs name it."""
    own = Path(cuda.__file__).parent / "kernels" / source
    return own if own.is_file() else _PACKAGE / source
