"""chunks on halves: layers of any sparse weights by `gather_chunks_half`, launched as `chunks` launches its kernel.

Rows are halves from the first layer to the last, scaled row by row: half of the bytes that bound `chunks` are moved,
and tensor cores multiply. Rows are rounded to 11 bits before each layer, and lose what is below 2**-39 of a bound of
the row's numbers; likewise weights, by the largest of their output. Sums are float32. All outputs of a row with an
infinity or NaN are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.sparse.chunks.chain import laid_out, slices_for
from sparsenn.backends.cuda.sparse.chunks.tiling import HALF_BLOCKS
from sparsenn.backends.cuda.sparse.chunks.weights import block_program
from sparsenn.backends.cuda.sparse.half_chain import LAST, LAST_AS_HALVES, HalfChain, bound_of
from sparsenn.backends.cuda.sparse.priors import half_chunks_seconds
from sparsenn.backends.cuda.sparse.queued_chain import chain_kernel
from sparsenn.backends.cuda.sparse.rows import largest_numbers, room_of, rows_to_half_tiles, tiles_to_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import WARP
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

HALF = 2  # bytes

_PROGRAMS = {
    block: block_program(
        "sparse/gather_chunks_half.cu",
        block,
        ACTIVATION=tuple(range(len(ACTIVATIONS) + 1)),
        LAST=(0, LAST, LAST_AS_HALVES),
    )
    for block in HALF_BLOCKS
}


class HalfChunkChain(HalfChain):
    """Consecutive layers by `gather_chunks_half`."""

    def __init__(self, name: str, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        self._weights, self._bounds = laid_out(layers, rows, halves=True), [bound_of(layer) for layer in layers]
        side = self._weights[0].tiling.block.rows
        widths = [max(1, layer.inputs) for layer in layers]
        slices = slices_for(self._weights[:-1], rows)  # the last layer is launched for all rows
        super().__init__(device, name, layers, rows, side, [HALF * width for width in widths], True, slices)
        self._tiled = [
            buffer.view(np.float16).reshape(-1, max(widths[parity::2]), side)
            for parity, buffer in enumerate(self._buffers[: len(layers)])
        ]

    def _enter(self, features: Array) -> None:
        tiles = self._in_tiles(0, 0, features.shape[0])
        largest_numbers(features, self._exponents, self._largest, tiles.shape[0] * self._side)
        rows_to_half_tiles(features, tiles, self._exponents)

    def _in_tiles(self, number: int, first: int, last: int) -> Any:
        tiles = slice(first // self._side, parts_of(last, self._side))
        return self._tiled[number % 2][tiles, : self._layers[number].inputs]

    def _leave(self, rows: int, kind: np.dtype[Any]) -> Any:
        tiles = cupy().empty((parts_of(rows, self._side), self._layers[-1].outputs, self._side), kind)
        self._launch(len(self._layers) - 1, tiles, 0, rows)
        return tiles_to_rows(tiles, rows)

    def _launch(self, number: int, target: Any, first: int, last: int) -> None:
        layer, weights = self._layers[number], self._weights[number]
        if not layer.outputs or last <= first:
            return
        source = self._in_tiles(number, first, last)
        to = target if number + 1 == len(self._layers) else self._in_tiles(number + 1, first, last)
        tiles, tiling, block = source.shape[0], weights.tiling, weights.tiling.block
        facts = [fact[first:] for fact in self._facts[number]] if first else self._facts[number]
        kernel = _PROGRAMS[block].kernel("gather_chunks_half", **self._defines(number, target))
        arguments = (
            *(source, *weights.arrays, to, *facts),
            *map(np.int32, (tiles, room_of(source), room_of(to), *weights.cut)),
            *(*self._bounds[number], layer.clip),
        )
        grid = min(tiles * tiling.groups, current_machine().multiprocessors * block.blocks)
        shared_bytes = weights.stages * weights.stage_bytes
        kernel((grid,), (WARP * (block.warps + 1),), arguments, shared_mem=shared_bytes)


def _kernel(name: str, precision: str, summary: str) -> SparseKernel:
    made = partial(HalfChunkChain, name)
    return chain_kernel(name, made, HALF, half_chunks_seconds, precision=precision, summary=summary, needs=(ANY_GPU,))


_SUMMARY = "as chunks, on tensor cores; rows of halves between layers, float32 sums"
KERNELS = (
    _kernel("chunks_tf32", "tf32", f"{_SUMMARY}; 11 bits"),
    _kernel("chunks_float16", "float16", f"{_SUMMARY}; 11 bits, any range"),
)
