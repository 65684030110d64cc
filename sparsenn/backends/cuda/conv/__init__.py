"""Convolutions of images, on CUDA."""

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer, upload_conv

__all__ = ["ConvLayer", "Geometry", "upload_conv"]
