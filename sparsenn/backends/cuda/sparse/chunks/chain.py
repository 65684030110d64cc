"""chunks: layers of any sparse weights, by `gather_chunks`: one launch per layer and slice of the rows.

Features lie in tiles: an array of shape (tiles, width, rows of a tile), in which the rows of one input are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cuda.runtime.activation import RELU
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current, cupy, current_machine
from sparsenn.backends.cuda.runtime.layer_cache import cache_all_on_device
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.streams import StreamOrder
from sparsenn.backends.cuda.sparse.chunks.blocks import BLOCKS, TEAM_BLOCK
from sparsenn.backends.cuda.sparse.chunks.tiling import in_slices, shared_tilings
from sparsenn.backends.cuda.sparse.chunks.weights import ChunkedWeights, block_program, lay_out
from sparsenn.backends.cuda.sparse.priors import chunks_seconds
from sparsenn.backends.cuda.sparse.row_slices import NOTHING, SLICES, RowSlices
from sparsenn.backends.cuda.sparse.rows import (
    count_tiles,
    room_of,
    rows_to_tiles,
    tiles_from_csr,
    tiles_to_rows,
    weigh_rows,
)
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, Stack, named, team_counts
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import WARP
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR, Array

_PROGRAMS = {block: block_program("sparse/gather_chunks.cu", block) for block in (*BLOCKS, TEAM_BLOCK)}


def _launch_of(
    weights: ChunkedWeights, activation: np.int32, clip: np.float32, features: Any, target: Any, alive: Any
) -> tuple[Any, tuple[int], tuple[int], tuple[Any, ...], int]:
    """Return how to launch a layer: kernel, grid, block, arguments, and bytes of shared memory.

    Tiles of `features` and `target` may have room for more lines; `alive` may be a null pointer.
    """
    tiling, (tiles, *_) = weights.tiling, features.shape
    block = tiling.block
    grid = min(tiles * tiling.groups, current_machine().multiprocessors * block.blocks)
    numbers = tiles, room_of(features), room_of(target), *weights.cut
    range_of_outputs = (np.float32(0), clip) if activation == RELU else (np.float32(-np.inf), np.float32(np.inf))
    arguments = (
        *(features, *weights.arrays, target, alive),
        *(np.int32(number) for number in numbers),
        *(activation, *range_of_outputs, clip),
    )
    kernel, threads = _PROGRAMS[block].kernel("gather_chunks"), WARP * (block.warps + 1)
    return kernel, (grid,), (threads,), arguments, weights.stages * weights.stage_bytes


class ChunkChain:
    """Consecutive layers, ready for up to `rows` rows; a `SparseChain`. All rows are computed in every layer.

    Layers read and write two buffers alternately, with space for the widest in each tile, so that slices of the rows
    need not be in the same layer; each run has a matrix of its own for the outputs by rows.
    """

    def __init__(self, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        cp = cupy()
        self.capacity = rows
        self._device = device
        self._layers = tuple(layers)
        self._weights = laid_out(layers, rows)
        self._block = self._weights[0].tiling.block
        self._tiles = max(1, parts_of(rows, self._block.rows))
        self._widths = (layers[0].inputs, *(layer.outputs for layer in layers))
        widest = [max(self._widths[parity::2]) for parity in range(2)]
        self._buffers = [cp.empty((self._tiles, width, self._block.rows), np.float32) for width in widest]
        self._slices = RowSlices(rows, self._block.rows, slices_for(self._weights, rows))
        self._order = StreamOrder()
        self._counted: tuple[int, Any, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return sum(int(buffer.nbytes) for buffer in self._buffers)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`."""
        rows = features.shape[0]
        with as_current(self._device):
            if counting:
                return RowsLeft(self._run_counted(features, multiplicity))
            self._order.enter()
            self._counted = None
            self._enter(features)
            self._slices.enqueue(rows, self._enqueue_slice)
            return RowsLeft(self._leave(rows))

    def _run_counted(self, features: Features, multiplicity: Array | None) -> Array:
        cp, layers, rows = cupy(), self._layers, features.shape[0]
        self._order.enter()
        features = _readable(features)
        stands_for = cp.asarray(np.ones(rows, np.int64) if multiplicity is None else multiplicity, np.int64)
        counters = cp.zeros((len(layers), 3), np.int64)  # as in `rows/tiles.cu`
        entering, _ = weigh_rows(features, layers[0].degrees)
        used = parts_of(rows, self._block.rows)
        alive = cp.zeros(used * self._block.rows, np.uint8)
        with section("total"):
            self._enter(features)
        for number, layer in enumerate(layers):
            alive.fill(0)
            if used and layer.outputs:
                kernel, grid, threads, arguments, shared_bytes = self._launch(number, slice(used), alive)
                with section("total"):
                    launch("spmspm", kernel, grid, threads, *arguments, shared_bytes=shared_bytes)
            following = layers[number + 1].degrees if number + 1 < len(layers) else None
            outputs = self._in_tiles(number + 1, slice(used))
            count_tiles(outputs, alive, stands_for, layer.copies, following, counters[number:])
        with section("total"):
            left: Array = self._leave(rows)
        self._counted = rows, counters, entering
        return left

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; waits for it."""
        assert self._counted is not None, "the last run did not count"
        rows, counters, entering = self._counted
        with as_current(self._device):
            self._order.enter()
            lines = counters.get()
            lines[0, 2] = entering.get().sum()
            return tuple(LayerCounts("chunks", rows, *line) for line in lines.tolist())

    def _in_tiles(self, number: int, tiles: slice) -> Any:
        return self._buffers[number % 2][tiles, : self._widths[number]]

    def _leave(self, rows: int) -> Any:
        return tiles_to_rows(self._in_tiles(len(self._layers), slice(parts_of(rows, self._block.rows))), rows)

    def _enter(self, features: Features) -> None:
        tiles = self._in_tiles(0, slice(parts_of(features.shape[0], self._block.rows)))
        if isinstance(features, CSR):
            tiles_from_csr(features, self._block.rows, tiles)
        else:
            rows_to_tiles(_readable(features), self._block.rows, tiles)

    def _launch(self, number: int, tiles: slice, alive: Any) -> tuple[Any, ...]:
        layer, source, target = self._layers[number], *(self._in_tiles(at, tiles) for at in (number, number + 1))
        return _launch_of(self._weights[number], layer.activation, layer.clip, source, target, alive)

    def _enqueue_slice(self, first: int, last: int) -> None:
        tiles = slice(first // self._block.rows, parts_of(last, self._block.rows))
        for number, layer in enumerate(self._layers):
            if layer.outputs:
                kernel, grid, threads, arguments, shared_bytes = self._launch(number, tiles, NOTHING)
                kernel(grid, threads, arguments, shared_mem=shared_bytes)


def _readable(features: Features) -> Features:
    if isinstance(features, CSR):
        return features
    dense: Array = as_rows(features, np.float32)
    return dense


def prepare(stack: Stack, problem: SparseProblem) -> ChunkChain:
    """Make all layers of a stack ready; weights are laid out once for about as many rows.

    Raises OutOfMemoryError for too many rows, and ResourceError for a layer of more than 32 GiB in chunks.
    """
    layers = stack.layers
    with as_current(stack.device), within_memory(named(layers), problem.rows, _tiled_bytes(layers)):
        return ChunkChain(stack.device, layers, problem.rows)


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


def _tiled_bytes(layers: Sequence[DeviceLayer]) -> int:
    return 8 * max(layers[0].inputs, *(layer.outputs for layer in layers))


CHUNKS = SparseKernel(
    name="chunks",
    device="cuda",
    summary="inputs streamed through shared memory in chunks, many outputs' sums in registers",
    prepare=prepare,
    needs=(ANY_GPU,),
    auto=True,
    seconds=chunks_seconds,
    fuses=True,
    drops_rows=False,
    reproducible=True,
    own_outputs=True,
)
