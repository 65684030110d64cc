"""A network packed for the kernels of `resident`: all layers end to end, in the layout of `sparse/resident.cuh`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.sparse.stack import DEPTH, SLICE, DeviceLayer
from sparsenn.formats import Array

__all__ = ["PackedNetwork", "bytes_of", "pack_network"]

_LAYER = np.dtype(
    [(name, "i4") for name in ("inputs", "outputs", "output", "activation")]
    + [("clip", "f4"), ("edges", "i4"), ("rest", "i4", 2)]
)

ALIGNMENT = 512
"""Bytes, as of arrays of their own."""


@dataclass(frozen=True, eq=False)
class PackedNetwork:
    """A network in device memory.

    Parameters
    ----------
    layers : as they were uploaded.
    widths : inputs of the first layer, then outputs of each.
    block : device array that holds all that `pointer` refers to: layers, runs, pairs, bias, copies.
    pointer : device array that holds one `Network` record.
    """

    layers: tuple[DeviceLayer, ...]
    widths: tuple[int, ...]
    block: Any
    pointer: Any

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(self.block.nbytes)


def bytes_of(rows: int, width: int) -> int:
    """Estimate the device memory that so many rows take in a run: two buffers, links, hashes and tables."""
    return rows * (2 * 4 * width + 512)


def pack_network(layers: Sequence[DeviceLayer]) -> PackedNetwork:
    """Pack layers on the device."""
    cp = cupy()
    records = np.zeros(len(layers), _LAYER)
    runs, pairs, biases, copies = [], [], [], []
    start = outputs = 0
    for record, layer in zip(records, layers, strict=True):
        of_outputs, packed = _paired(layer)
        record["inputs"], record["outputs"], record["output"] = layer.inputs, layer.outputs, outputs
        record["activation"], record["clip"] = layer.activation, layer.clip
        record["edges"] = 2 * int(of_outputs[:, 1].sum())
        of_outputs[:, 0] += start
        runs.append(of_outputs)
        pairs.append(packed)
        rest = (0, len(of_outputs) - layer.outputs)
        biases.append(cp.pad(layer.bias, rest))
        copies.append(cp.pad(layer.copies, rest))
        start, outputs = start + len(packed), outputs + len(of_outputs)
    arrays = (
        cp.asarray(np.frombuffer(records.tobytes(), np.uint8)),
        cp.concatenate(runs).astype(np.int32),
        cp.concatenate(pairs),
        cp.concatenate(biases),
        cp.concatenate(copies).astype(np.int32),
    )
    block, places = _together(arrays)
    pointers = cp.asarray(np.array([block.data.ptr + place for place in places], np.uint64))
    return PackedNetwork(tuple(layers), (layers[0].inputs, *(layer.outputs for layer in layers)), block, pointers)


def _together(arrays: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return a device array of bytes that holds the arrays, each from a multiple of `ALIGNMENT` on, and these."""
    sizes = [-(-int(array.nbytes) // ALIGNMENT) * ALIGNMENT for array in arrays]
    *places, size = accumulate(sizes, initial=0)
    block = cupy().zeros(size, np.uint8)
    for place, array in zip(places, arrays, strict=True):
        block[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
    return block, places


def _paired(layer: DeviceLayer) -> tuple[Array, Array]:
    """Lay a layer's edges out in slices, as `sparse/resident.cuh` says.

    Returns
    -------
    Where each output's first pair is, and how many it has, (outputs, 2) int64, as many as whole slices have; and all
    pairs, (pairs, 4) int32: input and weight, as bits, of one edge and of the other.
    """
    cp, weights = cupy(), layer.weights
    slices = -(-layer.outputs // SLICE)
    runs = cp.zeros((slices * SLICE, 2), np.int64)
    runs[: layer.outputs, 1] = (cp.diff(weights.indptr) + 1) // 2
    depths = -(-runs[:, 1].reshape(slices, SLICE).max(axis=1) // DEPTH) * DEPTH
    starts = cp.zeros(slices + 1, np.int64)
    cp.cumsum(SLICE * depths, out=starts[1:])
    runs[:, 0] = starts[:-1].repeat(SLICE) + cp.arange(slices * SLICE) % SLICE
    pairs = cp.zeros((int(starts[-1]), 4), np.int32)
    pairs[:, ::2] = layer.inputs  # padding reads the zero behind the last input
    entries = cp.arange(weights.nnz)
    output = cp.searchsorted(weights.indptr, entries, side="right") - 1
    rank = entries - weights.indptr[output]
    pair, second = runs[output, 0] + rank // 2 * SLICE, rank % 2 * 2
    pairs[pair, second] = weights.indices.astype(np.int32)
    pairs[pair, second + 1] = cp.broadcast_to(weights.values, (weights.nnz,)).copy().view(np.int32)
    return runs, pairs
