"""chunks: layers of any sparse weights, by `gather_chunks`, one launch of it a layer.

The kernel, `sparse/gather_chunks.cu`, takes any sparse layer. Its features lie in tiles: an array of shape
(tiles, width, rows of a tile), in which the rows of one input are neighbours; layers follow each other in that layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.contract import Features, LayerCounts, SparseKernel, StepInput, StepOutput
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.device import cupy, current_machine
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.backends.cuda.sparse.chunked_weights import ChunkedWeights, block_program, chunk_weights
from sparsenn.backends.cuda.sparse.estimates import chunks_seconds
from sparsenn.backends.cuda.sparse.rows import count_tiles, take_from_tiles, tiles_from_csr, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.cuda.sparse.tiling import BLOCKS, BlockShape, Tiling, shared_tilings
from sparsenn.backends.machine import WARP, Machine
from sparsenn.formats import CSR, Array

__all__ = ["CHUNKS", "from_tiles", "gather_chunks", "launch_chunks", "to_tiles"]

_PROGRAMS = {block: block_program("sparse/gather_chunks.cu", block) for block in BLOCKS}


def gather_chunks(
    weights: ChunkedWeights, activation: np.int32, clip: np.float32, features: Any, alive: Any = None
) -> Any:
    """Compute one layer on the current device; returns (tiles, outputs, rows of a tile) float32.

    Rows that only fill the last tile up hold act(bias) of zeros, or whatever comes of them.

    Parameters
    ----------
    weights : over device arrays.
    activation, clip : code in `common.cuh`; upper bound of a ReLU, infinity where there is none.
    features : (tiles, inputs, rows of a tile) float32, contiguous.
    alive : (tiles * rows of a tile,) uint8; becomes 1 where a row has an output that is not zero, and is left as it is
        elsewhere.
    """
    cp = cupy()
    tiles, inputs, rows = features.shape
    block, (_, outputs) = weights.tiling.block, weights.shape
    assert (inputs, rows) == (weights.shape[0], block.rows), "features are laid out for another layer"
    target = cp.empty((tiles, outputs, rows), np.float32)
    items = tiles * weights.tiling.groups
    if not items or not outputs:
        return target
    grid = min(items, current_machine().multiprocessors * block.blocks)
    numbers = (tiles, inputs, outputs, weights.tiling.groups, weights.tiling.chunk, weights.stages, weights.stage_bytes)
    arguments = (
        *(features, weights.records, weights.starts, weights.slots, target),
        np.uintp(0) if alive is None else alive,
        *(np.int32(number) for number in numbers),
        *(activation, clip),
    )
    kernel, threads = _PROGRAMS[block].kernel("gather_chunks"), WARP * (block.warps + 1)
    shared_bytes = weights.stages * weights.stage_bytes
    launch("spmspm", kernel, (grid,), (threads,), *arguments, shared_bytes=shared_bytes)
    return target


def to_tiles(matrix: Any, block: BlockShape) -> Any:
    """Lay dense rows out in tiles; rows that fill the last one up are zeros."""
    rows, width = matrix.shape
    tiles = cupy().empty((-(-rows // block.rows), width, block.rows), np.float32)
    return _transpose("rows_to_tiles", block, matrix, tiles, rows, width, tiles)


def from_tiles(tiles: Any, rows: int, block: BlockShape) -> Any:
    """Return the first `rows` rows as a row-major matrix."""
    width = tiles.shape[1]
    return _transpose("tiles_to_rows", block, tiles, cupy().empty((rows, width), np.float32), rows, width, tiles)


def _transpose(name: str, block: BlockShape, source: Any, target: Any, rows: int, width: int, tiles: Any) -> Any:
    if rows and width:
        kernel = _PROGRAMS[block].kernel(name)
        grid = (tiles.shape[0], -(-width // WARP))
        with part(name):
            kernel(grid, (WARP, 8), (source, target, np.int32(rows), np.int32(width)))
    return target


def launch_chunks(step: StepInput) -> StepOutput:
    """Run all layers of the step; inputs streamed through shared memory, the sums of many outputs in registers.

    Rows lie in tiles from the first layer to the last. All are computed in every layer, whether they have died or not;
    once weights are laid out, the host waits for nothing until the last layer has been queued. Dense output.
    """
    cp = cupy()
    layers: Sequence[DeviceLayer] = step.stack.layers[step.first : step.last]
    rows = step.features.shape[0]
    with cp.cuda.Device(step.stack.device), within_memory(_named(layers), rows, _tiled_bytes(layers)):
        multiplicity = cp.asarray(step.multiplicity, dtype=np.int64)
        counters = cp.zeros((len(layers), 3), np.int64)  # as in `rows/tiles.cu`
        counters[0, 2] = weigh_rows(step.features, layers[0].degrees)[0].sum()
        with part("total"):
            weights = _laid_out(layers, rows)
            block = weights[0].tiling.block
            tiles = _in_tiles(step.features, weights[0])
        for number, layer in enumerate(layers):
            alive = cp.zeros(tiles.shape[0] * block.rows, np.uint8)
            with part("total"):
                tiles = gather_chunks(weights[number], layer.activation, layer.clip, tiles, alive)
            following = layers[number + 1].degrees if number + 1 < len(layers) else None
            count_tiles(tiles, alive, multiplicity, layer.copies, following, counters[number:])
        remaining, outputs = _left(tiles, alive[:rows], block, step.last - 1 >= step.droppable_from)
        counts = tuple(LayerCounts("chunks", rows, *line) for line in counters.get().tolist())
        return StepOutput(outputs, remaining, counts)


def _left(tiles: Any, alive: Any, block: BlockShape, droppable: bool) -> tuple[Array, Array]:
    """Return which rows are left, on the host, and those rows by rows; the dead are dropped where that is allowed."""
    cp = cupy()
    if droppable:
        living = cp.flatnonzero(alive).astype(np.int64)
        if living.size < alive.size:
            return cp.asnumpy(living), take_from_tiles(tiles, living)
    with part("total"):
        return np.arange(alive.size), from_tiles(tiles, alive.size, block)


def _laid_out(layers: Sequence[DeviceLayer], rows: int) -> list[ChunkedWeights]:
    """Return the layers' weights in chunks, for tiles of equally many rows; those not laid out so far are now."""
    machine = current_machine()
    shapes = [(layer.inputs, layer.outputs, layer.weights.nnz) for layer in layers]
    tilings = shared_tilings(rows, shapes, machine)
    return [_chunked(layer, tiling, machine) for layer, tiling in zip(layers, tilings, strict=True)]


def _chunked(layer: DeviceLayer, tiling: Tiling, machine: Machine) -> ChunkedWeights:
    """Return a layer's weights in chunks; it keeps those of every tiling that it was run with."""
    return kept(layer, ("chunks", tiling), lambda: chunk_weights(layer.weights, layer.bias, tiling, machine))


def _in_tiles(features: Features, weights: ChunkedWeights) -> Any:
    """Lay rows of either form out in tiles for a layer."""
    block = weights.tiling.block
    return tiles_from_csr(features, block.rows) if isinstance(features, CSR) else to_tiles(features, block)


def _named(layers: Sequence[DeviceLayer]) -> str:
    """Say in words which layers a launch takes."""
    if len(layers) == 1:
        return f"a layer of {layers[0].inputs:,} x {layers[0].outputs:,}"
    return f"{len(layers):,} layers of up to {max(layer.outputs for layer in layers):,} outputs"


def _tiled_bytes(layers: Sequence[DeviceLayer]) -> int:
    """Return what a row takes: the widest two neighbours among its layers in tiles, and the result row-major."""
    widths = [layers[0].inputs, *(layer.outputs for layer in layers)]
    return 4 * (max(before + after for before, after in pairwise(widths)) + widths[-1])


CHUNKS = SparseKernel(
    name="chunks",
    device="cuda",
    summary="inputs streamed through shared memory in chunks, many outputs' sums in registers",
    launch=launch_chunks,
    needs=(ANY_GPU,),
    auto=True,
    seconds=chunks_seconds,
    fuses=True,
)
