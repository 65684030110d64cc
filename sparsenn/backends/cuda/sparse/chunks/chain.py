"""chunks: layers of any sparse weights, by `gather_chunks`: one launch per layer and slice of the rows.

Features lie in tiles: an array of shape (tiles, width, rows of a tile), in which the rows of one input are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features
from sparsenn.backends.cuda.runtime.activation import RELU
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.layer_cache import cache_all_on_device
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse.chunks.tiling import BLOCKS, TEAM_BLOCK, in_slices, shared_tilings
from sparsenn.backends.cuda.sparse.chunks.weights import ChunkedWeights, block_program, lay_out
from sparsenn.backends.cuda.sparse.priors import chunks_seconds
from sparsenn.backends.cuda.sparse.queued_chain import QueuedChain, chain_kernel
from sparsenn.backends.cuda.sparse.row_slices import SLICES, RowSlices
from sparsenn.backends.cuda.sparse.rows import room_of, rows_to_tiles, tiles_from_csr, tiles_to_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, team_counts
from sparsenn.backends.machine import WARP
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR

_PROGRAMS = {block: block_program("sparse/gather_chunks.cu", block) for block in (*BLOCKS, TEAM_BLOCK)}


def _launch_of(
    weights: ChunkedWeights, activation: np.int32, clip: np.float32, features: Any, target: Any
) -> tuple[Any, tuple[int], tuple[int], tuple[Any, ...], int]:
    """Return how to launch a layer: kernel, grid, block, arguments, and bytes of shared memory.

    Tiles of `features` and `target` may have room for more lines.
    """
    tiling, (tiles, *_) = weights.tiling, features.shape
    block = tiling.block
    grid = min(tiles * tiling.groups, current_machine().multiprocessors * block.blocks)
    numbers = tiles, room_of(features), room_of(target), *weights.cut
    range_of_outputs = (np.float32(0), clip) if activation == RELU else (np.float32(-np.inf), np.float32(np.inf))
    arguments = (
        *(features, *weights.arrays, target),
        *(np.int32(number) for number in numbers),
        *(activation, *range_of_outputs, clip),
    )
    kernel, threads = _PROGRAMS[block].kernel("gather_chunks"), WARP * (block.warps + 1)
    return kernel, (grid,), (threads,), arguments, weights.stages * weights.stage_bytes


class ChunkChain(QueuedChain):
    """Consecutive layers, ready for up to `rows` rows.

    Layers read and write two buffers alternately, with space for the widest in each tile, so that slices of the rows
    need not be in the same layer; each run has a matrix of its own for the outputs by rows.
    """

    def __init__(self, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        super().__init__("chunks", device, layers, rows)
        cp = cupy()
        self._weights = laid_out(layers, rows)
        self._block = self._weights[0].tiling.block
        self._tiles = max(1, parts_of(rows, self._block.rows))
        self._widths = (layers[0].inputs, *(layer.outputs for layer in layers))
        widest = [max(self._widths[parity::2]) for parity in range(2)]
        self._buffers = [cp.empty((self._tiles, width, self._block.rows), np.float32) for width in widest]
        self._slices = RowSlices(rows, self._block.rows, slices_for(self._weights, rows))

    def _readable(self, features: Features) -> Any:
        return features if isinstance(features, CSR) else super()._readable(features)

    def _queue(self, first: int, last: int, rows: Any) -> Any:
        count = rows.shape[0]
        tiles = slice(parts_of(count, self._block.rows))
        if isinstance(rows, CSR):
            tiles_from_csr(rows, self._block.rows, self._in_tiles(first, tiles))
        else:
            rows_to_tiles(rows, self._block.rows, self._in_tiles(first, tiles))
        self._slices.enqueue(count, partial(self._enqueue_slice, range(first, last)))
        return tiles_to_rows(self._in_tiles(last, tiles), count)

    def _in_tiles(self, number: int, tiles: slice) -> Any:
        return self._buffers[number % 2][tiles, : self._widths[number]]

    def _enqueue_slice(self, layers: range, first: int, last: int) -> None:
        tiles = slice(first // self._block.rows, parts_of(last, self._block.rows))
        for number in layers:
            layer = self._layers[number]
            if layer.outputs:
                tiled = (self._in_tiles(at, tiles) for at in (number, number + 1))
                code = layer.activation, layer.clip
                kernel, grid, threads, arguments, shared_bytes = _launch_of(self._weights[number], *code, *tiled)
                launch("spmspm", kernel, grid, threads, *arguments, shared_bytes=shared_bytes)


def laid_out(layers: Sequence[DeviceLayer], rows: int, halves: bool = False) -> list[ChunkedWeights]:
    """Return the layers' weights in chunks, for tiles of equally many rows; those not laid out so far are now."""
    machine = current_machine()
    shapes = [(layer.inputs, layer.outputs, layer.weights.nnz) for layer in layers]
    tilings = shared_tilings(rows, shapes, machine, halves, () if halves else team_counts(layers))
    return cache_all_on_device(
        layers,
        [("chunks", tiling) for tiling in tilings],
        lambda missing: lay_out(
            [layers[at].host for at in missing],
            [tilings[at] for at in missing],
            machine,
            [layers[at].teams if tilings[at].block.teams else None for at in missing],
        ),
    )


def slices_for(weights: Sequence[ChunkedWeights], rows: int) -> int:
    """Return the number of `RowSlices` for a number of rows and layers of some weights."""
    machine = current_machine()
    return SLICES if len(weights) > 1 and any(in_slices(one.tiling, rows, machine) for one in weights) else 1


CHUNKS = chain_kernel(
    "chunks",
    ChunkChain,
    4,
    chunks_seconds,
    summary="inputs streamed through shared memory in chunks, many outputs' sums in registers",
    needs=(ANY_GPU,),
    reproducible=True,
)
