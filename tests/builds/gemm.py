"""Builds of gemm's kernels on tensor cores: every tile, and the largest with matrices that begin anywhere."""

from cuda_builds import declare

from sparsenn.backends.cuda.tensor_tiles import HALF, TF32
from sparsenn.studies.gemm.tensor import SOURCES, TILES, defines

for _kind, _tiles in TILES.items():
    declare(SOURCES[_kind], **defines(_kind, _tiles[0], False, False))
    for _tile in _tiles if _kind is not TF32 else _tiles[:2]:
        declare(SOURCES[_kind], **defines(_kind, _tile, True, _kind is HALF))
