"""The study of dense layers: what fusing them into one kernel buys, and where their weights lie best."""

from sparsenn.backends.registry import register
from sparsenn.studies.mlp import float32, half, ladder

__all__ = ["ladder"]

for _kernel in (*float32.KERNELS, *half.KERNELS):
    register(_kernel)
