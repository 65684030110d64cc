"""The steps from COO to CSR, plain and as the engine takes them: their rungs and ladders."""

from sparsenn.backends.registry import register
from sparsenn.studies.conversion.cuda import KERNELS
from sparsenn.studies.conversion.ladder import LADDERS
from sparsenn.studies.ladder import register_ladder

__all__ = ["LADDERS"]

for _rung in KERNELS:
    register(_rung)
for _ladder in LADDERS:
    register_ladder(_ladder)
