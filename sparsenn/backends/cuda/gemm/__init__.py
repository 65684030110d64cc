"""Products of dense matrices on the GPU: the rungs of gemm."""

from sparsenn.backends.cuda.gemm.tiling import Cut, Tiling, cut_for

__all__ = ["Cut", "Tiling", "cut_for"]
