"""The steps from COO to CSR, plain and as the engine takes them: their rungs and ladders."""

from sparsenn.backends.registry import register
from sparsenn.studies.conversion import cuda, ladder
from sparsenn.studies.ladder import register_ladder

__all__ = ["ladder"]

for kernel in cuda.RUNGS:
    register(kernel)
for steps in ladder.LADDERS:
    register_ladder(steps)
