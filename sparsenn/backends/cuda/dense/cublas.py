"""The kernel of mlp that takes layers of any width: a library's products, and one kernel of our own after each."""

from __future__ import annotations

import numpy as np

from sparsenn.backends.cuda.dense.kernel import dense_kernel
from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.loader import program
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.formats import Array

__all__ = ["CUBLAS", "launch_cublas"]

THREADS = 256
"""Of a block that adds a bias and activates."""

_EPILOGUE = program("mlp/epilogue.cu", THREADS=(THREADS,))


def launch_cublas(stack: DenseStack, features: Array) -> Array:
    """Run any stack: cuBLAS's product through CuPy, then a kernel for bias and activation.

    The work is queued on the current stream, and not waited for.

    Parameters
    ----------
    features : a CuPy array (rows, inputs) of float32 in row-major order.

    Returns
    -------
    A new CuPy array (rows, outputs) of float32.
    """
    cp = cupy()
    kernel = _EPILOGUE.kernel("add_bias_and_activate")
    for layer in stack.layers:
        with part("mlp"):
            sums = cp.matmul(features, layer.weights)
        given = np.int64(sums.size), np.int32(layer.outputs), sums, layer.bias, layer.activation, layer.clip
        launch("mlp", kernel, (-(-sums.size // THREADS),), (THREADS,), *given)
        features = sums
    return features


CUBLAS = dense_kernel(
    "cublas", launch_cublas, "cuBLAS's products, and a kernel for bias and activation after each", auto=True
)
