"""Convolutions of images, on CUDA. Importing this registers the kernels of `conv2d` that `auto` takes."""

from sparsenn.backends.cuda.conv import (
    channels_last,
    cudnn,
    depthwise,
    implicit,
    register_tiled,
    sparse_direct,
    tensor,
    unrolled,
    warpgroup,
)
from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, upload_conv
from sparsenn.backends.registry import register

__all__ = ["ConvLayer", "Geometry", "upload_conv"]

# of each precision the preferred one first
for _kernel in (
    tensor.TENSOR_FLOAT32,
    implicit.IMPLICIT_FLOAT32,
    warpgroup.WARPGROUP_FLOAT32,
    register_tiled.REGISTER_TILED,
    sparse_direct.SPARSE_DIRECT,
    depthwise.DEPTHWISE,
    unrolled.UNROLLED,
    cudnn.CUDNN_FLOAT32,
    tensor.TENSOR_TF32,
    warpgroup.WARPGROUP_TF32,
    channels_last.CUDNN_TF32,
    tensor.TENSOR_HALF,
    warpgroup.WARPGROUP_HALF,
    channels_last.CUDNN_FLOAT16,
):
    register(_kernel)
