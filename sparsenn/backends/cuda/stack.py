"""Layers on the device: the weights by column and, once a kernel asks for it, by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsenn.backends.cuda import conversion
from sparsenn.backends.cuda.loader import cupy
from sparsenn.errors import UsageError
from sparsenn.formats import CSC, CSR, Array
from sparsenn.layers import Activation, Identity, ReLU, Sigmoid, SparseLinear, Tanh

__all__ = ["DeviceLayer", "Stack", "upload"]

_CODES: dict[type, int] = {ReLU: 0, Sigmoid: 1, Tanh: 2, Identity: 3}
"""As `enum Activation` in `kernels/common.cuh`."""


@dataclass(eq=False)
class DeviceLayer:
    """One layer in device memory.

    Parameters
    ----------
    weights : CSC over device arrays, float32.
    bias : (outputs,) float32.
    activation, clip : its code in `common.cuh`; infinity where there is no clip.
    copies : (outputs,) int64, how many neurons each output stands for.
    degrees : (inputs,) int64, how many weights each input has.
    """

    weights: CSC
    bias: Array
    activation: np.int32
    clip: np.float32
    copies: Array
    degrees: Array
    _by_row: CSR | None = field(default=None, repr=False)

    @property
    def inputs(self) -> int:
        """Width of Y."""
        return self.weights.shape[0]

    @property
    def outputs(self) -> int:
        """Width of Y'."""
        return self.weights.shape[1]

    @property
    def by_row(self) -> CSR:
        """The weights by input, converted on the device on first use."""
        if self._by_row is None:
            self._by_row = conversion.csc_to_csr(self.weights)
        return self._by_row

    @property
    def epilogue(self) -> tuple[Array, np.int32, np.float32]:
        """The kernels' arguments for bias and activation."""
        return self.bias, self.activation, self.clip


@dataclass(frozen=True, eq=False)
class Stack:
    """Consecutive layers on one device."""

    device: int
    layers: tuple[DeviceLayer, ...]


def upload(device: int, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Stack:
    """Copy layers to the device `device`, which must be the current one.

    Raises
    ------
    UsageError
        A layer has an activation that the kernels do not know.
    """
    for number, layer in enumerate(layers, start=1):
        if type(layer.activation) not in _CODES:
            raise UsageError(f"layer {number}: the CUDA kernels do not know the activation {layer.activation}")
    return Stack(device, tuple(_upload(layer, count) for layer, count in zip(layers, copies, strict=True)))


def _upload(layer: SparseLinear, copies: Array) -> DeviceLayer:
    cp = cupy()
    weights = layer.weights
    return DeviceLayer(
        weights=CSC(
            weights.shape,
            cp.asarray(weights.indptr),
            cp.asarray(weights.indices),
            cp.asarray(weights.values, dtype=np.float32),
        ),
        bias=cp.asarray(layer.bias_vector()),
        activation=np.int32(_CODES[type(layer.activation)]),
        clip=np.float32(_clip(layer.activation)),
        copies=cp.asarray(copies, dtype=np.int64),
        degrees=cp.asarray(np.bincount(weights.indices, minlength=layer.inputs).astype(np.int64)),
    )


def _clip(activation: Activation) -> float:
    clip = activation.clip if isinstance(activation, ReLU) else None
    return np.inf if clip is None else clip
