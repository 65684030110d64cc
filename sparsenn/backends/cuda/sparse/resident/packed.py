"""A network packed for the kernels of `resident`: all layers end to end, in the layout of `sparse/resident.cuh`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.sparse.stack import DEPTH, SLICE, DeviceLayer
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array
from sparsenn.formats.conversion import scan
from sparsenn.layers import SparseLinear
from sparsenn.runtime.jit import compiled, example
from sparsenn.runtime.workers import map_threads

_LAYER = np.dtype(
    [(name, "i4") for name in ("inputs", "outputs", "output", "activation")]
    + [("clip", "f4"), ("edges", "i4"), ("rest", "i4", 2)]
)


@dataclass(frozen=True, eq=False)
class PackedNetwork:
    """A network in device memory."""

    layers: tuple[DeviceLayer, ...]
    widths: tuple[int, ...]  # inputs of the first layer, then outputs of each
    arrays: tuple[Any, ...]  # in one block on the device: layers, runs, pairs, biases, copies
    pointer: Any  # device array of one `Network` record, which refers to the arrays

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.arrays)


def bytes_of(rows: int, width: int) -> int:
    """Estimate the device memory that so many rows take in a run: two buffers, links, hashes and tables."""
    return rows * (2 * 4 * width + 512)


def pack_network(layers: Sequence[DeviceLayer]) -> PackedNetwork:
    """Pack layers on the host, and copy them to the current device."""
    arrays: list[Any] = to_device(pack_arrays(layers))
    (pointers,) = to_device([np.array([array.data.ptr for array in arrays], np.uint64)])
    widths = layers[0].inputs, *(layer.outputs for layer in layers)
    return PackedNetwork(tuple(layers), widths, tuple(arrays), pointers)


def pack_arrays(layers: Sequence[DeviceLayer]) -> tuple[Array, ...]:
    """Return layers, runs, pairs, biases and copies as `sparse/resident.cuh` has them; outputs fill whole slices."""
    runs_of_layers = [_runs(layer.host.weights) for layer in layers]
    outputs = scan(np.array([len(runs) for runs, _ in runs_of_layers]))
    starts = scan(np.array([pairs for _, pairs in runs_of_layers]))
    records = np.zeros(len(layers), _LAYER)
    for name in ("inputs", "outputs", "activation", "clip"):
        records[name] = [getattr(layer, name) for layer in layers]
    records["output"] = outputs[:-1]
    records["edges"] = [2 * runs[:, 1].sum() for runs, _ in runs_of_layers]
    runs, pairs = np.zeros((outputs[-1], 2), np.int32), np.empty((starts[-1], 4), np.int32)
    biases, copies = np.zeros(outputs[-1], np.float32), np.zeros(outputs[-1], np.int32)

    def pack(number: int) -> None:
        layer, first = layers[number], outputs[number]
        runs_of_layer, weights = runs_of_layers[number][0], layer.host.weights
        runs[first : outputs[number + 1]] = runs_of_layer + np.array([starts[number], 0])
        of_layer = pairs[starts[number] : starts[number + 1]]
        of_layer[:] = layer.inputs, 0, layer.inputs, 0  # padding reads the zero behind the last input
        values = weights.values.view(np.int32)
        _write_pairs(weights.indptr, weights.indices, values, runs_of_layer, SLICE, of_layer)
        biases[first : first + layer.outputs] = layer.host.bias
        copies[first : first + layer.outputs] = layer.host.copies

    map_threads(pack, range(len(layers)))
    return records.view(np.uint8), runs, pairs, biases, copies


def _runs(weights: CSC) -> tuple[Array, int]:
    """Return the first pair of each output, counted from the layer's, and how many it has; and all pairs.

    Slices have as many pairs for each output as for the longest.
    """
    outputs = weights.shape[1]
    runs = np.zeros((parts_of(outputs, SLICE) * SLICE, 2), np.int64)
    runs[:outputs, 1] = (np.diff(weights.indptr) + 1) // 2
    longest = runs[:, 1].reshape(-1, SLICE).max(axis=1)
    starts = scan(SLICE * DEPTH * -(-longest // DEPTH))
    runs[:, 0] = np.repeat(starts[:-1], SLICE) + np.arange(len(runs)) % SLICE
    return runs, int(starts[-1])


@compiled
def _write_pairs(indptr: Array, indices: Array, values: Array, runs: Array, step: int, pairs: Array) -> None:
    """Write a layer's edges two by two; `step` lies between the pairs of an output."""
    for output in range(indptr.size - 1):
        for edge in range(indptr[output], indptr[output + 1]):
            rank = edge - indptr[output]
            pair, second = runs[output, 0] + rank // 2 * step, rank % 2 * 2
            pairs[pair, second] = indices[edge]
            pairs[pair, second + 1] = values[edge if values.size > 1 else 0]


@example
def _example() -> None:
    weights = SparseLinear(CSC((1, 1), np.array([0, 1]), np.zeros(1, np.uint16), np.ones(1, np.float32))).weights
    runs, pairs = _runs(weights)
    _write_pairs(
        weights.indptr, weights.indices, weights.values.view(np.int32), runs, SLICE, np.zeros((pairs, 4), np.int32)
    )
