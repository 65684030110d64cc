"""Sparse layers on the GPU: the kernels of spmspm that `auto` takes, and what brings rows into their forms."""

from sparsenn.backends.cuda.sparse.chunks.chain import CHUNKS
from sparsenn.backends.cuda.sparse.chunks.half import KERNELS as HALF_CHUNK_KERNELS
from sparsenn.backends.cuda.sparse.few_rows.chain import FEW_ROWS
from sparsenn.backends.cuda.sparse.few_rows.half import FEW_ROWS_FLOAT16
from sparsenn.backends.cuda.sparse.resident.chain import RESIDENT
from sparsenn.backends.cuda.sparse.stack import Stack, prepared_bytes, upload
from sparsenn.backends.cuda.sparse.two_of_four.kernel import KERNELS as TENSOR_KERNELS
from sparsenn.backends.registry import register

__all__ = ["Stack", "prepared_bytes", "upload"]

for _kernel in (
    RESIDENT,
    CHUNKS,
    FEW_ROWS,
    FEW_ROWS_FLOAT16,
    *TENSOR_KERNELS,
    *HALF_CHUNK_KERNELS,
):  # in the order in which `auto` prefers them
    register(_kernel)
