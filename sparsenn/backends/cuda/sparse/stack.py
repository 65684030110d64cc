"""Layers on the device: the weights by column, and what kernels make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.activation import activation_code
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.sparse import conversion
from sparsenn.backends.cuda.sparse.teams import Teams, TeamsSize, teams_of
from sparsenn.formats import CSC, Array
from sparsenn.layers import SparseLinear

__all__ = ["DEPTH", "SLICE", "DeviceLayer", "Stack", "named", "prepared_bytes", "upload"]

SLICE, DEPTH = 16, 8
"""Outputs whose edges lie side by side for the resident kernel, and pairs of edges that they have multiples of; as in
`sparse/resident.cuh`."""


@dataclass(eq=False)
class DeviceLayer:
    """One layer in device memory.

    Parameters
    ----------
    weights : CSC over device arrays, float32.
    bias : (outputs,) float32.
    activation, clip : its code in `common.cuh`; infinity where there is no clip.
    copies : (outputs,) int64, how many neurons each output stands for.
    teams : of the outputs, where there are some.
    """

    weights: CSC
    bias: Array
    activation: np.int32
    clip: np.float32
    copies: Array
    teams: Teams | None = None

    @property
    def inputs(self) -> int:
        """Width of Y."""
        return self.weights.shape[0]

    @property
    def outputs(self) -> int:
        """Width of Y'."""
        return self.weights.shape[1]

    @property
    def team_size(self) -> TeamsSize | None:
        """`Teams.size`, where there are teams."""
        return self.teams.size if self.teams else None

    @property
    def degrees(self) -> Array:
        """How many weights each input has, (inputs,) int64, counted on the device on first use."""
        return kept(self, "degrees", lambda: conversion.histogram(self.weights.indices, self.inputs))

    @property
    def epilogue(self) -> tuple[Array, np.int32, np.float32]:
        """The kernels' arguments for bias and activation."""
        return self.bias, self.activation, self.clip


@dataclass(frozen=True, eq=False)
class Stack:
    """Consecutive layers on one device."""

    device: int
    layers: tuple[DeviceLayer, ...]


def named(layers: Sequence[DeviceLayer]) -> str:
    """Say in words which layers a launch takes."""
    if len(layers) == 1:
        return f"a layer of {layers[0].inputs:,} x {layers[0].outputs:,}"
    return f"{len(layers):,} layers of up to {max(layer.outputs for layer in layers):,} outputs"


def prepared_bytes(layer: SparseLinear) -> int:
    """Estimate the device memory that a layer takes once a kernel has made of it what it reads.

    That is the weights by column and by row, with 64-bit offsets and values unless they are all one; bias, copies and
    degrees; and edges packed for the resident kernel, which are there twice while layers are joined: 16 bytes for two,
    in slices of outputs that are all given as many.
    """
    entry = layer.weights.indices.itemsize + (0 if layer.weights.iso else 4)
    by_column = layer.edges * entry + 8 * (layer.outputs + 1)
    by_row = layer.edges * entry + 8 * (layer.inputs + 1)
    vectors = (4 + 8) * layer.outputs + 8 * layer.inputs
    longest = np.maximum.reduceat(np.diff(layer.weights.indptr), np.arange(0, layer.outputs, SLICE))
    packed = 2 * (16 * SLICE * DEPTH * int(-(-longest // (2 * DEPTH)).sum()) + 16 * SLICE * longest.size)
    return by_column + by_row + vectors + packed


def upload(
    device: int, layers: Sequence[SparseLinear], copies: Sequence[Array], to_device: Callable[[Array], Array]
) -> Stack:
    """Copy layers to the device `device`, which must be the current one.

    Parameters
    ----------
    layers : consecutive layers.
    copies : for each layer, (outputs,) int64: how many neurons each output stands for.
    to_device : returns a device array of a host array's values.

    Raises
    ------
    UsageError
        A layer has an activation that the kernels do not know.
    """
    codes = [activation_code(layer, number) for number, layer in enumerate(layers, start=1)]
    return Stack(device, tuple(_upload(*given, to_device) for given in zip(layers, copies, codes, strict=True)))


def _upload(
    layer: SparseLinear, copies: Array, code: tuple[np.int32, np.float32], to_device: Callable[[Array], Array]
) -> DeviceLayer:
    weights = layer.weights
    return DeviceLayer(
        weights=CSC(
            weights.shape,
            to_device(weights.indptr),
            to_device(weights.indices),
            to_device(weights.values.astype(np.float32, copy=False)),
        ),
        bias=to_device(layer.bias_vector() + np.float32(0)),  # -0.0 becomes +0.0
        activation=code[0],
        clip=code[1],
        copies=to_device(copies.astype(np.int64, copy=False)),
        teams=teams_of(layer),
    )
