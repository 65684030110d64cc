"""Activations as the kernels know them: by a number and a clip, or by the number or the name they are compiled for."""

from __future__ import annotations

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.layers import Conv2d, Identity, Linear, ReLU, Sigmoid, SparseLinear, Tanh

__all__ = ["ACTIVATIONS", "IDENTITY", "RELU", "SIGMOID", "TANH", "activation_code", "compiled_activation"]

ACTIVATIONS = ("RELU", "SIGMOID", "TANH", "IDENTITY")
"""`enum Activation` in `kernels/common.cuh`: an activation's code is its place here."""

RELU, SIGMOID, TANH, IDENTITY = range(len(ACTIVATIONS))

RELU_CLIPPED = len(ACTIVATIONS)
"""What `kernels/activation.cuh` calls a ReLU with a clip, where kernels are compiled for their activation."""

_CODES: dict[type, int] = {ReLU: RELU, Sigmoid: SIGMOID, Tanh: TANH, Identity: IDENTITY}


def activation_code(layer: SparseLinear | Linear | Conv2d, number: int) -> tuple[np.int32, np.float32]:
    """Return a layer's activation and clip, infinity where there is none, as the kernels take them.

    Raises
    ------
    UsageError
        The kernels do not know the activation; the message calls the layer by its number.
    """
    activation = layer.activation
    if type(activation) not in _CODES:
        raise UsageError(f"layer {number}: the CUDA kernels do not know the activation {activation}")
    clip = activation.clip if isinstance(activation, ReLU) else None
    return np.int32(_CODES[type(activation)]), np.float32(np.inf if clip is None else clip)


def compiled_activation(code: int, clipped: bool) -> int:
    """Return what a kernel is compiled for, given an activation's code and whether there is a clip."""
    return RELU_CLIPPED if code == RELU and clipped else code
