"""The CUDA variants of `train` by name, from plain to fast."""

from __future__ import annotations

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.training import graph, layered
from sparsenn.backends.trainer import TRAIN

__all__ = ["register_all"]


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    for name, trainer, summary in (*layered.RUNGS, *graph.RUNGS):
        register(Variant(TRAIN, name, "cuda", summary, trainer, (ANY_GPU,)))
