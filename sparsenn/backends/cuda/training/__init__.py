"""Training on CUDA. Its kernel of train registers here."""

from sparsenn.backends.cuda.training.graph import GRAPH
from sparsenn.backends.registry import register

__all__ = ["GRAPH"]

register(GRAPH)
