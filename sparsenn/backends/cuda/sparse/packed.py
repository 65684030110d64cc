"""A network packed for the kernels of `resident`: all layers end to end, in the layout of `sparse/resident.cuh`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.formats import Array

__all__ = ["PackedNetwork", "bytes_of", "pack_network"]

_LAYER = np.dtype(
    [(name, "i4") for name in ("inputs", "outputs", "column", "output", "activation")]
    + [("clip", "f4"), ("edges", "i4")]
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
    block : device array that holds all that `pointer` refers to: layers, columns, edges, bias, copies.
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
    """Pack layers on the device; each output's edges are padded to an even number."""
    cp = cupy()
    records = np.zeros(len(layers), _LAYER)
    columns, edges = [], []
    start = outputs = 0
    for number, (record, layer) in enumerate(zip(records, layers, strict=True)):
        offsets, packed = _padded_edges(layer)
        record["inputs"], record["outputs"] = layer.inputs, layer.outputs
        record["column"], record["output"] = outputs + number, outputs
        record["activation"], record["clip"] = layer.activation, layer.clip
        record["edges"] = len(packed)
        columns.append(offsets + start)
        edges.append(packed)
        start, outputs = start + len(packed), outputs + layer.outputs
    arrays = (
        cp.asarray(np.frombuffer(records.tobytes(), np.uint8)),
        cp.concatenate(columns).astype(np.int32),
        cp.concatenate(edges),
        cp.concatenate([layer.bias for layer in layers]),
        cp.concatenate([layer.copies for layer in layers]).astype(np.int32),
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


def _padded_edges(layer: DeviceLayer) -> tuple[Array, Array]:
    """Return column offsets, (outputs + 1,) int64, and edges, (edges, 2) int32: input, and weight as bits."""
    cp = cupy()
    weights = layer.weights
    lengths = cp.diff(weights.indptr)
    offsets = cp.zeros(layer.outputs + 1, np.int64)
    cp.cumsum(lengths + lengths % 2, out=offsets[1:])
    edges = cp.zeros((int(offsets[-1]), 2), np.int32)
    edges[:, 0] = layer.inputs  # padding reads the zero behind the last input
    entries = cp.arange(weights.nnz)
    column = cp.searchsorted(weights.indptr, entries, side="right") - 1
    place = entries + (offsets[:-1] - weights.indptr[:-1])[column]
    edges[place, 0] = weights.indices.astype(np.int32)
    edges[place, 1] = cp.broadcast_to(weights.values, (weights.nnz,)).copy().view(np.int32)
    return offsets, edges
