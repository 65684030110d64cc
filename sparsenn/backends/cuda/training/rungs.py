"""The CUDA variants of `train` by name, from plain to fast."""

from __future__ import annotations

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.training import graph, layered
from sparsenn.backends.trainer import TRAIN

__all__ = ["register_all"]

_ANY = ("NVIDIA GPU (compute capability 7.0)",)
_FUSED = ("NVIDIA GPU (compute capability 8.0)",)


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    for rungs, needs in ((layered.RUNGS, _ANY), (graph.RUNGS, _FUSED)):
        for name, trainer, summary in rungs:
            register(Variant(TRAIN, name, "cuda", summary, trainer, needs))
