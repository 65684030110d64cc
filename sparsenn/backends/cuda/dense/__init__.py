"""Stacks of dense layers on CUDA. The kernels of mlp register here, those first that `auto` prefers."""

from sparsenn.backends.cuda.dense.cublas import CUBLAS
from sparsenn.backends.cuda.dense.fused import KERNELS
from sparsenn.backends.cuda.dense.stack import DenseStack, upload_dense
from sparsenn.backends.registry import register

__all__ = ["DenseStack", "upload_dense"]

for _kernel in (*KERNELS, CUBLAS):
    register(_kernel)
