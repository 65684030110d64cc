"""Kernels of `sparsenn/backends/cuda/kernels`, emulated on the host, and kept between runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache

import pytest
from compiled import compiled

from sparsenn.backends.cuda.runtime.loader import source_text
from sparsenn.studies.emulation import EmulatedKernel, EmulationError, compiled_library, host_program, loaded

__all__ = ["EmulationError", "emulated"]


def emulated(source: str, defines: Mapping[str, int | str], planted: tuple[str, str] = ("", "")) -> EmulatedKernel:
    """Compile a kernel for the host; the calling test is skipped where there is no g++.

    Parameters
    ----------
    source : path within the package's `kernels` folder.
    planted : what to replace in its text, by what: a fault.
    """
    if shutil.which("g++") is None:
        pytest.skip("emulating a kernel takes g++")
    return _emulated(source, tuple(sorted(defines.items())), planted)


@cache
def _emulated(source: str, defines: tuple[tuple[str, int | str], ...], planted: tuple[str, str]) -> EmulatedKernel:
    text = host_program(source_text(source))
    assert "asm" not in text
    assert planted[0] in text
    text = text.replace(*planted) if planted[0] else text
    return EmulatedKernel(loaded(compiled_library(text, [f"-D{name}={value}" for name, value in defines], compiled)))
