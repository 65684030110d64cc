"""Stacks of dense layers on CUDA. The kernels of mlp register here, those first that `auto` prefers."""

from sparsenn.backends.cuda.dense import cublas, fused, warpgroup
from sparsenn.backends.cuda.dense.stack import DenseStack, upload_dense
from sparsenn.backends.registry import register

__all__ = ["DenseStack", "upload_dense"]

for _kernel in (*fused.KERNELS, *warpgroup.KERNELS, *cublas.KERNELS):
    register(_kernel)
