"""Convolutions of images, on CUDA. Importing this registers the kernels of `conv2d` that `auto` takes."""

from sparsenn.backends.cuda.conv import (
    channels_last,
    implicit,
    register_tiled,
    tensor,
    unrolled,
    warpgroup,
    warpgroup_rows,
)
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer, upload_conv
from sparsenn.backends.registry import register

__all__ = ["ConvLayer", "Geometry", "upload_conv"]

# of each precision the preferred one first
for _kernel in (
    tensor.TENSOR_FLOAT32,
    implicit.IMPLICIT_FLOAT32,
    warpgroup.WARPGROUP_FLOAT32,
    register_tiled.REGISTER_TILED,
    unrolled.UNROLLED,
    tensor.TENSOR_TF32,
    implicit.IMPLICIT_TF32,
    warpgroup.WARPGROUP_TF32,
    tensor.TENSOR_HALF,
    implicit.IMPLICIT_HALF,
    channels_last.CHANNELS_LAST_HALF,
    warpgroup.WARPGROUP_HALF,
    warpgroup_rows.WARPGROUP_ROWS_HALF,
):
    register(_kernel)
