"""Sparse layers from plain to fast: the rungs of `spmspm` that the engine does not choose among, and the ladder."""

from sparsenn.backends.registry import register
from sparsenn.studies.ladder import register_ladder
from sparsenn.studies.spmspm import cuda, scipy_product, sequential
from sparsenn.studies.spmspm.ladder import LADDER

__all__ = ["LADDER"]

for _rung in (sequential.SEQUENTIAL, scipy_product.SCIPY, *cuda.KERNELS):
    register(_rung)
register_ladder(LADDER)
