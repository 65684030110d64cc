"""A network packed for the kernels of `resident`: all layers end to end, in the layout of `sparse/resident.cuh`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.memory import aligned_places
from sparsenn.backends.cuda.sparse.stack import DEPTH, SLICE, DeviceLayer
from sparsenn.formats import CSC, Array

__all__ = ["PackedNetwork", "bytes_of", "pack_network"]

_LAYER = np.dtype(
    [(name, "i4") for name in ("inputs", "outputs", "output", "activation")]
    + [("clip", "f4"), ("edges", "i4"), ("rest", "i4", 2)]
)

TOGETHER = 1 << 22
"""Edges of layers that are laid out together, which takes some 60 bytes each for a while."""

ON_HOST = 1 << 20
"""Edges up to which a network is laid out on the host: it takes less time than CuPy does to load what it adds by."""


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
    """Pack layers: on the device, or, where they are small, on the host."""
    cp = cupy()
    xp = np if sum(layer.weights.nnz for layer in layers) <= ON_HOST else cp
    records = np.zeros(len(layers), _LAYER)
    runs, pairs, biases, copies = [], [], [], []
    start = outputs = first = 0
    for batch in _batches(layers):
        numbers = [layer.host if xp is np else layer.there for layer in batch]
        laid_out = _laid_out(xp, [each.weights for each in numbers])
        record = records[first : first + len(batch)]
        for name in ("inputs", "outputs", "activation", "clip"):
            record[name] = [getattr(layer, name) for layer in batch]
        record["output"], record["edges"] = outputs + laid_out.first_outputs, laid_out.edges
        laid_out.runs[:, 0] += start
        runs.append(laid_out.runs)
        pairs.append(laid_out.pairs)
        biases.append(laid_out.spread(xp, [each.bias for each in numbers]))
        copies.append(laid_out.spread(xp, [each.copies for each in numbers]))
        start, outputs = start + len(laid_out.pairs), outputs + len(laid_out.runs)
        first += len(batch)
    arrays = (
        np.frombuffer(records.tobytes(), np.uint8),
        xp.concatenate(runs).astype(np.int32),
        xp.concatenate(pairs),
        xp.concatenate(biases),
        xp.concatenate(copies).astype(np.int32),
    )
    block, places = _together([cp.asarray(array) for array in arrays])
    pointers = cp.asarray(np.array([block.data.ptr + place for place in places], np.uint64))
    return PackedNetwork(tuple(layers), (layers[0].inputs, *(layer.outputs for layer in layers)), block, pointers)


def _batches(layers: Sequence[DeviceLayer]) -> Iterator[Sequence[DeviceLayer]]:
    """Yield consecutive layers, as many at a time as have no more than `TOGETHER` edges, one at least."""
    first = edges = 0
    for number, layer in enumerate(layers):
        if edges and edges + layer.weights.nnz > TOGETHER:
            yield layers[first:number]
            first, edges = number, 0
        edges += layer.weights.nnz
    yield layers[first:]


def _together(arrays: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return a device array of bytes that holds the arrays, and where each begins."""
    places, size = aligned_places([int(array.nbytes) for array in arrays])
    block = cupy().zeros(size, np.uint8)
    for place, array in zip(places, arrays, strict=True):
        block[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
    return block, places


@dataclass(frozen=True, eq=False)
class _LaidOut:
    """Layers whose edges lie in slices, as `sparse/resident.cuh` says; outputs are as many as whole slices have.

    Parameters
    ----------
    first_outputs : (layers,) where the outputs of each begin.
    places : the place of each real output among all.
    runs : (outputs, 2) int64: where each output's first pair is, and how many it has.
    pairs : (pairs, 4) int32: input and weight, as bits, of one edge and of the other.
    edges : (layers,) of each, an even number for each output.
    """

    first_outputs: Array
    places: Any
    runs: Any
    pairs: Any
    edges: Array

    def spread(self, xp: Any, numbers: Sequence[Any]) -> Any:
        """Return numbers of the outputs of each layer at the places of these, 0 elsewhere; `xp` as for `_laid_out`."""
        given = xp.concatenate(numbers)
        found = xp.zeros(len(self.runs), given.dtype)
        found[self.places] = given
        return found


def _laid_out(xp: Any, weights: Sequence[CSC]) -> _LaidOut:
    """Lay the edges of layers out together: what each takes is not worth a launch of its own.

    Parameters
    ----------
    xp : NumPy or CuPy, whose the weights are; it computes, and the result is of it, too.
    """
    outputs = np.array([each.shape[1] for each in weights])
    firsts = np.concatenate([[0], np.cumsum(-(-outputs // SLICE) * SLICE)])
    number = np.repeat(np.arange(len(weights)), outputs)  # of each output's layer
    within = np.arange(number.size) - np.repeat(np.cumsum(outputs) - outputs, outputs)
    places = xp.asarray(firsts[number] + within)
    ends = xp.concatenate([each.indptr for each in weights])
    own = xp.asarray(np.arange(number.size) + number)  # of an output's offset among those of all layers
    degrees = ends[own + 1] - ends[own]
    runs = xp.zeros((int(firsts[-1]), 2), np.int64)
    runs[places, 1] = (degrees + 1) // 2
    slices = len(runs) // SLICE
    depths = -(-runs[:, 1].reshape(slices, SLICE).max(axis=1) // DEPTH) * DEPTH
    starts = xp.zeros(slices + 1, np.int64)
    xp.cumsum(SLICE * depths, out=starts[1:])
    runs[:, 0] = starts[:-1].repeat(SLICE) + xp.arange(len(runs)) % SLICE
    counted = xp.concatenate([starts[-1:], xp.cumsum(runs[:, 1])[xp.asarray(firsts[1:] - 1)]])
    size, *upto = counted.tolist()
    slice_inputs = xp.asarray(np.repeat([each.shape[0] for each in weights], np.diff(firsts) // SLICE).astype(np.int32))
    pairs = xp.zeros((size, 4), np.int32)
    of_slice = xp.searchsorted(starts, xp.arange(size), side="right") - 1
    pairs[:, ::2] = slice_inputs[of_slice][:, None]  # padding reads the zero behind the last input
    edges_before = xp.zeros(number.size + 1, np.int64)
    xp.cumsum(degrees, out=edges_before[1:])
    entries = xp.arange(sum(each.nnz for each in weights))
    output = xp.searchsorted(edges_before, entries, side="right") - 1
    rank = entries - edges_before[output]
    pair, second = runs[places[output], 0] + rank // 2 * SLICE, rank % 2 * 2
    pairs[pair, second] = xp.concatenate([each.indices for each in weights]).astype(np.int32)
    stored = np.array([each.values.size for each in weights])
    kept = np.array([each.nnz for each in weights])
    begins = np.stack([np.cumsum(stored) - stored, np.cumsum(kept) - kept, stored > 1])  # of values and edges; several
    first_value, first_edge, several = xp.asarray(begins)[:, xp.asarray(number)[output]]
    values = xp.concatenate([each.values for each in weights])[first_value + several * (entries - first_edge)]
    pairs[pair, second + 1] = values.view(np.int32)
    return _LaidOut(firsts[:-1], places, runs, pairs, 2 * np.diff([0, *upto]))
