"""Builds of the fused kernels of mlp: those that some networks lead to, on few and on many rows."""

from cuda_builds import declare

from sparsenn.backends.cuda.dense.fused import fma_defines, network_defines, plan, rows_of_block
from sparsenn.backends.cuda.dense.image import FLOAT32, HALF, HALF_ROWS, TF32
from sparsenn.backends.machine import H200

NETWORKS = (
    ((72, 64, 64, 4), (0, 0, 3)),
    ((10, 16, 1), (4, 1)),
    ((3, 5, 2), (2, 3)),
    ((128, 128, 128, 10), (0, 0, 3)),
    ((129, 200, 7), (0, 1)),
    ((256, 256, 256, 10), (0, 4, 3)),
)
"""Widths, and activations as the kernels know them."""

for _widths, _activations in NETWORKS:
    _shared = {**network_defines(_widths, _activations), "VECTOR": int(_widths[0] % 4 == 0)}
    for _rows in (1, 1 << 22):
        _size, _staged, _ = rows_of_block(_widths, _rows, H200)
        declare("mlp/fused_fma.cu", **_shared, **fma_defines(_size, _staged))
        for _kind in (FLOAT32, TF32, HALF, HALF_ROWS):
            _input = {"INPUT": "half_bits" if _kind is HALF_ROWS else "float"} if _kind.source == HALF.source else {}
            declare(_kind.source, **_shared, **plan(_kind, _widths, _rows, H200).defines(), **_input)
