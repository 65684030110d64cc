"""Stages of `resident` whose rows are many or wide: all layers in one launch, as `gather_chunks` computes one.

Features lie in tiles while a stage lasts, and are rows again between stages, where rows are dropped and grouped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.sparse.chunks.tiling import (
    COUNTING_BLOCKS,
    MOST_STAGES,
    TEAM_BLOCK,
    BlockShape,
    Tiling,
    room,
    stage_tilings,
)
from sparsenn.backends.cuda.sparse.chunks.weights import ARRAYS, ChunkedWeights, block_program, lay_out
from sparsenn.backends.cuda.sparse.resident.packed import PackedNetwork
from sparsenn.backends.cuda.sparse.resident.stages import tiles_of_wave
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, team_counts
from sparsenn.backends.machine import WARP, Machine

THREADS = 256  # of a block that moves rows

_PROGRAMS = {block: block_program("sparse/chunk_layers.cu", block) for block in (*COUNTING_BLOCKS, TEAM_BLOCK)}

_CHUNKED = np.dtype([(name, "u8") for name in ARRAYS] + [("groups", "i4"), ("chunks", "i4")])
_BUFFERS = np.dtype(
    [(name, "u8") for name in ("even", "odd", "nonzeros", "done", "tile_bytes")]
    + [(name, "i4") for name in ("capacity", "wave", "chunk", "stages", "stage_bytes", "unused")]
)


@dataclass(frozen=True, eq=False)
class StageTiles:
    """The layers of one stage, laid out alike."""

    block: BlockShape
    chunk: int
    stages: int
    stage_bytes: int
    weights: tuple[ChunkedWeights, ...]
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in this layout."""
        return sum(weights.nbytes for weights in self.weights)


def laid_out(network: PackedNetwork, ranges: Sequence[tuple[int, int]], rows: int) -> tuple[StageTiles, ...]:
    """Return the stages laid out on the current device, cached until rows come for which another layout is best."""
    machine = current_machine()

    def stage(first: int, last: int) -> StageTiles:
        layers = network.layers[first:last]
        sizes = [(layer.inputs, layer.outputs, layer.weights.nnz) for layer in layers]
        chosen = stage_tilings(rows, sizes, machine, team_counts(layers))
        return cache_on_device(
            network, ("stage in chunks", first, last), lambda: _lay_out(layers, chosen, machine), chosen
        )

    return tuple(stage(first, last) for first, last in ranges)


def _lay_out(layers: Sequence[DeviceLayer], chosen: Sequence[Tiling], machine: Machine) -> StageTiles:
    block, chunk = chosen[0].block, min(tiling.chunk for tiling in chosen)
    teams = [layer.teams if block.teams else None for layer in layers]
    while True:  # records that turn out too long are cut shorter, and then those of all layers
        cut = [replace(each, chunk=chunk) for each in chosen]
        weights = lay_out([layer.host for layer in layers], cut, machine, teams)
        shortest = min(found.tiling.chunk for found in weights)
        if shortest == chunk:
            break
        chunk = shortest
    stage_bytes = max(found.stage_bytes for found in weights)
    stages = min(MOST_STAGES, room(machine, block) // stage_bytes)
    width = max(max(layer.inputs, layer.outputs) for layer in layers)
    return StageTiles(block, chunk, stages, stage_bytes, tuple(weights), width)


class ChunkStages:
    """Buffers and launches for stages that are computed in tiles."""

    def __init__(self, stages: Sequence[StageTiles], rows: int) -> None:
        cp = cupy()
        self._stages = tuple(stages)
        self._machine = current_machine()
        most_rows = max(stage.block.rows for stage in stages)
        capacity = -(-max(1, rows) // most_rows) * most_rows
        size = capacity * max(stage.width for stage in stages)
        self._tiles = [cp.empty(size, np.float32) for _ in range(2)]
        nonzeros = [(len(stage.weights), capacity) for stage in stages]
        done = [(len(stage.weights), capacity // stage.block.rows) for stage in stages]
        bounds = [0, *accumulate(count * each for count, each in (*nonzeros, *done))]
        self._tallies = cp.empty(bounds[-1], np.int32)
        parts = [self._tallies[first:last] for first, last in pairwise(bounds)]
        self._nonzeros, self._done = parts[: len(stages)], parts[len(stages) :]
        records = np.concatenate([self._record(number, capacity) for number in range(len(stages))])
        self._buffers, *self._chunked = to_device([each.view(np.uint8) for each in (records, *map(_records, stages))])

    def _record(self, number: int, capacity: int) -> Any:
        stage = self._stages[number]
        record = np.zeros(1, _BUFFERS)
        record["even"], record["odd"] = (tiles.data.ptr for tiles in self._tiles)
        record["nonzeros"], record["done"] = self._nonzeros[number].data.ptr, self._done[number].data.ptr
        record["tile_bytes"], record["capacity"] = stage.block.line * stage.width, capacity
        groups = max(weights.tiling.groups for weights in stage.weights)
        record["wave"] = tiles_of_wave(self._machine, stage.block, groups, stage.width)
        record["chunk"], record["stages"], record["stage_bytes"] = stage.chunk, stage.stages, stage.stage_bytes
        return record

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, and of the weights in this layout."""
        buffers = sum(tiles.nbytes for tiles in self._tiles) + self._tallies.nbytes
        return int(buffers) + sum(stage.nbytes for stage in self._stages)

    def clear(self, stream: Any) -> None:
        """Enqueue what has to be zero before a run."""
        cupy().cuda.runtime.memsetAsync(self._tallies.data.ptr, 0, self._tallies.nbytes, stream.ptr)

    def enqueue(self, number: int, network: Any, stage: Any, few: int) -> None:
        """Enqueue a stage; the kernels leave the stage to another for up to `few` rows."""
        tiles, multiprocessors = self._stages[number], self._machine.multiprocessors
        block, buffers = tiles.block, self._buffers[number * _BUFFERS.itemsize :]
        source, common = _PROGRAMS[block], (network, stage)
        few_rows, turning = np.int32(few), ((self._machine.filling_blocks(THREADS),), (THREADS,))
        source.kernel("stage_to_tiles")(*turning, (*common, few_rows, buffers))
        source.kernel("chunk_layers")(
            (multiprocessors * block.blocks,),
            (WARP * (block.warps + 1),),
            (*common, self._chunked[number], few_rows, buffers),
            shared_mem=tiles.stages * tiles.stage_bytes,
        )
        source.kernel("leave_tiles")((2 * multiprocessors,), (THREADS,), (*common, few_rows, buffers))
        source.kernel("tiles_to_stage")(*turning, (*common, few_rows, buffers))


def _records(stage: StageTiles) -> Any:
    records = np.zeros(len(stage.weights), _CHUNKED)
    for record, weights in zip(records, stage.weights, strict=True):
        for name in ARRAYS:
            record[name] = getattr(weights, name).data.ptr
        record["groups"], record["chunks"] = weights.tiling.groups, weights.chunks
    return records
