"""Training on the GPU: the trainers of train."""

from sparsenn.backends.cuda.training.rungs import register_all

__all__ = ["register_all"]
