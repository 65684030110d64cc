"""Layers on the device: the weights by column, and what kernels make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_host
from sparsenn.backends.cuda.sparse.chunks.tiling import Teams, teams_of
from sparsenn.formats import CSC, Array
from sparsenn.layers import SparseLinear

# The resident kernel, as in `sparse/resident.cuh`.
SLICE = 16  # outputs whose edges lie side by side
DEPTH = 8  # pairs of edges that outputs have multiples of


@dataclass(frozen=True, eq=False)
class LayerNumbers:
    """The numbers of a layer, on the host or on the device."""

    weights: CSC  # float32
    bias: Array  # (outputs,) float32
    copies: Array  # (outputs,) int64, how many neurons each output stands for

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All of them; `of_arrays` takes them back."""
        return (*self.weights.arrays, self.bias, self.copies)

    def of_arrays(self, indptr: Array, indices: Array, values: Array, bias: Array, copies: Array) -> LayerNumbers:
        """Return the same numbers in other arrays."""
        return LayerNumbers(CSC(self.weights.shape, indptr, indices, values), bias, copies)


@dataclass(frozen=True, eq=False)
class DeviceLayer:
    """One layer in device memory."""

    source: SparseLinear  # on the host
    there: LayerNumbers  # on the device, copied from `host`
    host: LayerNumbers
    activation: np.int32  # its code in `common.cuh`
    clip: np.float32  # infinity where there is no clip

    @property
    def weights(self) -> CSC:
        """On the device."""
        return self.there.weights

    @property
    def bias(self) -> Array:
        """On the device."""
        return self.there.bias

    @property
    def copies(self) -> Array:
        """On the device."""
        return self.there.copies

    @property
    def inputs(self) -> int:
        """Width of Y."""
        return self.weights.shape[0]

    @property
    def outputs(self) -> int:
        """Width of Y'."""
        return self.weights.shape[1]

    @property
    def teams(self) -> Teams | None:
        """Teams of the outputs, where there are some."""
        return teams_of(self.source)

    @property
    def epilogue(self) -> tuple[Array, np.int32, np.float32]:
        """The kernels' arguments for bias and activation."""
        return self.bias, self.activation, self.clip


@dataclass(frozen=True, eq=False)
class Stack:
    """Consecutive layers on one device."""

    device: int
    layers: tuple[DeviceLayer, ...]


def team_counts(layers: Sequence[DeviceLayer]) -> list[int]:
    """Return the number of teams of each layer, 0 where there are none; as soon as one has none, of none."""
    counts: list[int] = []
    for layer in layers:
        if (teams := layer.teams) is None:
            return [0] * len(layers)
        counts.append(teams.count)
    return counts


def named(layers: Sequence[DeviceLayer]) -> str:
    """Say in words which layers a launch takes."""
    if len(layers) == 1:
        return f"a layer of {layers[0].inputs:,} x {layers[0].outputs:,}"
    return f"{len(layers):,} layers of up to {max(layer.outputs for layer in layers):,} outputs"


def prepared_bytes(layer: SparseLinear) -> int:
    """Estimate the device memory that a layer takes in all forms that kernels read.

    The forms are the weights by column and by row, and edges packed for the resident kernel, twice while layers are
    combined: 16 bytes for two, in slices of outputs that all have equally many.
    """
    return cache_on_host(layer, "prepared bytes", lambda: _bytes_of(layer))


def _bytes_of(layer: SparseLinear) -> int:
    entry = layer.weights.indices.itemsize + (0 if layer.weights.iso else 4)
    by_column = layer.edges * entry + 8 * (layer.outputs + 1)
    by_row = layer.edges * entry + 8 * (layer.inputs + 1)
    vectors = (4 + 8) * layer.outputs + 8 * layer.inputs
    longest = np.maximum.reduceat(np.diff(layer.weights.indptr), np.arange(0, layer.outputs, SLICE))
    packed = 2 * (16 * SLICE * DEPTH * int(-(-longest // (2 * DEPTH)).sum()) + 16 * SLICE * longest.size)
    return by_column + by_row + vectors + packed


def upload(
    device: int,
    layers: Sequence[SparseLinear],
    copies: Sequence[Array],
    to_device: Callable[[Sequence[Array]], Iterable[Array]] | None = None,
) -> Stack:
    """Copy layers to the device `device`, the current one; `copies`, int64, has the neurons of each output.

    `to_device` is such as `Staging.copying` yields. Raises UsageError for an activation that the kernels do not know.
    """
    codes = [activation_code(layer, number) for number, layer in enumerate(layers, start=1)]
    numbers = [_numbers(*given) for given in zip(layers, copies, strict=True)]
    copied = partial(map, cupy().asarray) if to_device is None else to_device
    arrays = iter(copied([array for each in numbers for array in each.arrays]))
    made = (
        DeviceLayer(layer, host.of_arrays(*islice(arrays, len(host.arrays))), host, *code)
        for host, code, layer in zip(numbers, codes, layers, strict=True)
    )
    return Stack(device, tuple(made))


def _numbers(layer: SparseLinear, copies: Array) -> LayerNumbers:
    weights = layer.weights
    values = weights.values.astype(np.float32, copy=False)
    bias = layer.bias_vector() + np.float32(0)  # -0.0 becomes +0.0
    return LayerNumbers(
        CSC(weights.shape, weights.indptr, weights.indices, values), bias, copies.astype(np.int64, copy=False)
    )
