"""Stacks of dense layers on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.formats import Array
from sparsenn.layers import Linear


@dataclass(frozen=True)
class StackShape:
    """Widths and activations by which a kernel for consecutive dense layers is chosen and compiled."""

    widths: tuple[int, ...]  # inputs of the first layer, then outputs of each
    activations: tuple[tuple[int, bool], ...]  # codes in `kernels/common.cuh`, and whether there is a clip


def shape_of(layers: Sequence[Linear]) -> StackShape:
    """Return the shape of layers that need not be on a device."""
    codes = (activation_code(layer, number) for number, layer in enumerate(layers, start=1))
    return StackShape(widths_of(layers), tuple(_coded(*code) for code in codes))


def widths_of(layers: Sequence[Linear | DenseLayer]) -> tuple[int, ...]:
    """Return the inputs of the first layer, then the outputs of each."""
    return (layers[0].inputs, *(layer.outputs for layer in layers))


def _coded(activation: np.int32, clip: np.float32) -> tuple[int, bool]:
    return int(activation), bool(np.isfinite(clip))


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """One dense layer in device memory."""

    weights: Array  # (inputs, outputs) float32, row-major
    bias: Array  # (outputs,) float32, zeros where the layer has none
    activation: np.int32
    clip: np.float32
    source: Linear  # the layer on the host

    def on_host(self) -> DenseLayer:
        """Return the layer over its arrays in host memory."""
        return replace(self, weights=self.source.weights, bias=self.source.bias_vector())

    @property
    def inputs(self) -> int:
        """Width of Y."""
        return int(self.weights.shape[0])

    @property
    def outputs(self) -> int:
        """Width of Y'."""
        return int(self.weights.shape[1])


@dataclass(frozen=True, eq=False)
class DenseStack:
    """Consecutive dense layers on one device."""

    device: int
    layers: tuple[DenseLayer, ...]

    @cached_property
    def shape(self) -> StackShape:
        """Widths and activations."""
        return StackShape(widths_of(self.layers), tuple(_coded(layer.activation, layer.clip) for layer in self.layers))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Inputs of the first layer, then outputs of each."""
        return self.shape.widths

    def groups(self, size: int) -> tuple[DenseStack, ...]:
        """Return stacks of `size` consecutive layers each, the last of fewer; the same ones in all calls."""
        if size not in self._groups:
            starts = range(0, len(self.layers), size)
            self._groups[size] = tuple(DenseStack(self.device, self.layers[start : start + size]) for start in starts)
        return self._groups[size]

    @cached_property
    def _groups(self) -> dict[int, tuple[DenseStack, ...]]:
        return {}

    def on_host(self) -> tuple[DenseLayer, ...]:
        """Return the layers over their arrays in host memory."""
        return tuple(layer.on_host() for layer in self.layers)

    @cached_property
    def ready(self) -> dict[Any, Any]:
        """Launches that have been made ready, by what they are for (`kernel.prepared`)."""
        return {}

    @cached_property
    def fitting(self) -> set[Any]:
        """What has been asked whether the stack fits a kernel, and said that it does."""
        return set()


def upload_dense(
    device: int, layers: Sequence[Linear], to_device: Callable[[Sequence[Array]], Iterable[Array]] | None = None
) -> DenseStack:
    """Copy layers to the current device, of index `device`, by `to_device` or CuPy."""
    copied = partial(map, cupy().asarray) if to_device is None else to_device
    codes = [activation_code(layer, number) for number, layer in enumerate(layers, start=1)]
    arrays = iter(copied([array for layer in layers for array in (layer.weights, layer.bias_vector())]))
    made = (DenseLayer(next(arrays), next(arrays), *code, layer) for code, layer in zip(codes, layers, strict=True))
    return DenseStack(device, tuple(made))
