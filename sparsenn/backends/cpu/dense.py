"""Stacks of dense layers on the CPU, by NumPy's products in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsenn.backends.contract import DenseKernel
from sparsenn.backends.oracle.dense import forward_in
from sparsenn.backends.registry import register
from sparsenn.formats import Array
from sparsenn.layers import Linear

__all__ = ["BLAS", "launch_blas"]


def launch_blas(layers: Sequence[Linear], features: Array) -> Array:
    """Compute the layers in float32, one after the other.

    Parameters
    ----------
    features : of shape (rows, inputs).

    Returns
    -------
    A float32 array of shape (rows, outputs).

    Raises
    ------
    ShapeError
        Layers or features do not fit together.
    """
    return forward_in(np.float32, layers, features)


BLAS = register(
    DenseKernel(
        name="blas",
        device="cpu",
        summary="NumPy's products in float32, then bias and activation",
        launch=launch_blas,
        auto=True,
    )
)
