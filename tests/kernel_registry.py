"""Kernels that are registered for one test."""

from dataclasses import replace

import pytest

from sparsenn.backends import Kernel, registry
from sparsenn.plugins import load_plugins


def add(patch: pytest.MonkeyPatch, *kernels: Kernel) -> None:
    """Register kernels, in place of those of the same names, until the patch is undone."""
    load_plugins()  # what they register is to outlive the patch
    added = {(kernel.operation, kernel.device, kernel.name): kernel for kernel in kernels}
    patch.setattr(registry, "_KERNELS", {**registry._KERNELS, **added})


def let_auto_take(patch: pytest.MonkeyPatch, *kernels: Kernel) -> None:
    """Have `auto` take these kernels of their operation and device and no others, the first one first."""
    (problem,) = {(kernel.operation, kernel.device) for kernel in kernels}
    add(patch)
    names = {kernel.name for kernel in kernels}
    others = {
        key: replace(kernel, auto=kernel.auto and key[:2] != problem)
        for key, kernel in registry._KERNELS.items()
        if key[:2] != problem or key[2] not in names
    }
    patch.setattr(registry, "_KERNELS", others)
    add(patch, *(replace(kernel, auto=True) for kernel in kernels))
