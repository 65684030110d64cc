"""The study of dense layers: what fusing them into one kernel buys, and where their weights lie best."""

from sparsenn.backends.registry import register
from sparsenn.studies.ladder import register_ladder
from sparsenn.studies.mlp import float32, half
from sparsenn.studies.mlp.ladder import LADDER

__all__ = ["LADDER"]

for _rung in (*float32.KERNELS, *half.KERNELS):
    register(_rung)
register_ladder(LADDER)
