"""Sparse layers from plain to fast: the rungs of `spmspm` that the engine does not choose among, and the ladder."""

from sparsenn.backends.registry import register
from sparsenn.studies.ladder import register_ladder
from sparsenn.studies.spmspm import cuda, ladder, scipy_product, sequential

__all__ = ["ladder"]

for kernel in (sequential.SEQUENTIAL, scipy_product.SCIPY, *cuda.RUNGS):
    register(kernel)
register_ladder(ladder.LADDER)
