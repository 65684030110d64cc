"""The study of dense matrix products, from three loops to tensor cores, beside what libraries do."""

from sparsenn.backends.registry import register
from sparsenn.studies.gemm.ladder import LADDER
from sparsenn.studies.gemm.own import own_products
from sparsenn.studies.ladder import register_ladder

__all__ = ["LADDER", "own_products"]

for _rungs in LADDER.rungs.values():
    for _rung in _rungs:
        register(_rung)
register_ladder(LADDER)
