"""The study of dense matrix products, from three loops to tensor cores, beside what libraries do."""

from sparsenn.backends.registry import register
from sparsenn.studies.gemm import ladder

__all__ = ["ladder"]

for _rungs in ladder.RUNGS.values():
    for _kernel in _rungs:
        register(_kernel)
