"""Builds of the fused kernels of mlp: those that some networks lead to, on few and on many rows."""

from itertools import product

from cuda_builds import declare

from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE
from sparsenn.backends.cuda.dense import warpgroup, warpgroup_plan
from sparsenn.backends.cuda.dense.fused import fits, fma_defines, network_defines, plan, rows_of_block
from sparsenn.backends.cuda.dense.image import FLOAT32, HALF, HALF_ROWS, TF32
from sparsenn.backends.cuda.dense.stack import StackShape
from sparsenn.backends.cuda.tensor_tiles import HALF as HALVES
from sparsenn.backends.machine import H200

NETWORKS = (
    ((72, 64, 64, 4), (0, 0, 3)),
    ((10, 16, 1), (4, 1)),
    ((3, 5, 2), (2, 3)),
    ((128, 128, 128, 10), (0, 0, 3)),
    ((128, 128, 10), (0, 3)),
    ((129, 200, 7), (0, 1)),
    ((256, 256, 256, 10), (0, 4, 3)),
)
"""Widths, and activations as the kernels know them."""

for _widths, _activations in NETWORKS:
    _shape = StackShape(_widths, tuple((_activation, False) for _activation in _activations))
    _shared = {**network_defines(_widths, _activations), "VECTOR": int(_widths[0] % 4 == 0)}
    for _rows in (1, 1 << 22):
        _size, _staged, _ = rows_of_block(_widths, _rows, H200)
        declare("mlp/fused_fma.cu", **_shared, **fma_defines(_size, _staged))
        for _kind in (FLOAT32, TF32, HALF, HALF_ROWS):
            if fits(_kind, H200, _shape):
                continue
            _input = {"INPUT": "half_bits" if _kind is HALF_ROWS else "float"} if _kind.source == HALF.source else {}
            declare(_kind.source, **_shared, **plan(_kind, _widths, _rows, H200).defines(), **_input)

for (_kind, _steps), _most in warpgroup_plan.MOST_ROWS.items():
    for _groups, _idle in (*((_groups, 0) for _groups in _most), *([(2, 1)] if 2 in _most else [])):
        _tile = warpgroup_plan.Tile(_kind, _most[_groups], _groups, _steps, _idle)
        if _tile.stages(H200) >= warpgroup_plan.LEAST_STAGES:
            for _half, _flag in product((False, True) if _kind is HALVES else (False,), (False, True)):
                _made = warpgroup.defines(_tile, H200, _half, vector=_flag, curved=not _flag)
                declare(warpgroup.SOURCE, ARCHITECTURE, **_made)
"""The largest tiles take the most registers; scalar reads, and activations with curves, the most besides."""

for _kind in {kind for kind, _ in warpgroup_plan.MOST_ROWS}:
    for _rows in (1, 10_000):
        _tile = warpgroup_plan.plan(_kind, 128, _rows, H200)
        declare(warpgroup.SOURCE, ARCHITECTURE, **warpgroup.defines(_tile, H200, False, vector=True, curved=False))
