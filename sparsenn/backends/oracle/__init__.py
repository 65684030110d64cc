"""The oracle: float64 by the book, one layer at a time, nothing clever. Every test compares with it."""

from sparsenn.backends.oracle import dense, training
from sparsenn.backends.oracle.backend import ReferenceBackend
from sparsenn.backends.oracle.network import categories, forward, run

__all__ = ["ReferenceBackend", "categories", "dense", "forward", "run", "training"]
