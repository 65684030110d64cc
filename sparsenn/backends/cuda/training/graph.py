"""Training on a GPU without the host: an epoch as a graph of fused launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.streams import Graph
from sparsenn.backends.cuda.training.trainer import REDUCING_THREADS, CUDATrainer, batches
from sparsenn.backends.kernel_records import TrainingKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.trainer import TrainingProblem
from sparsenn.errors import DeviceError

NARROW = 32  # outputs up to which the last layer is computed a row at a time

THREADS = 256
SHARED_BYTES = 4 * 4 * 4736  # as in `kernels/train/fused.cuh`: four stages of 4736 floats

ROW_TILES = (16, 32, 64)
WEIGHT_TILES = (32, 64)  # sides of tiles: of what belongs to the rows of a batch, and of weights
MOST_LAUNCHES = 4096  # launches of a graph; a longer epoch takes several

_FUSED = program("train/fused.cu", ROW_TILE=ROW_TILES, WEIGHT_TILE=WEIGHT_TILES)
_SHARING = replace(_FUSED, dynamic_shared=True)  # the same for kernels that take `SHARED_BYTES`


@dataclass(frozen=True)
class Step:
    """One launch on the way back. Layers are counted from 0."""

    through: int | None  # the layer that the gradient goes back through, reading its weights; None at the end
    updates: tuple[int, ...]  # the layers that are updated, whose weights nothing else reads in this step or later ones


def backward_steps(count: int, narrow: bool) -> Iterator[Step]:
    """Yield the steps back through `count` layers; a narrow last layer has its gradient passed on already.

    While the gradient goes back through a layer the one behind it is updated: its weights have been read. The first two
    are updated together.
    """
    for number in range(max(0, count - 1 - narrow), -1, -1):
        behind = (number + 1,) if number + 1 < count else ()
        yield Step(number or None, behind if number else (*behind, 0))


def lanes_of(outputs: int) -> int:
    """Return the threads that share an input of a narrow last layer, a power of two; 0 where it is wide."""
    return 1 << (outputs - 1).bit_length() if outputs <= NARROW else 0


def tile_size(products: list[tuple[int, int]], sizes: tuple[int, ...], blocks: int) -> int:
    """Return the largest tile of which the largest product, (rows, columns), gives so many blocks, or the smallest."""
    rows, columns = max(products, key=lambda shape: shape[0] * shape[1])
    enough = [size for size in sizes if -(-rows // size) * -(-columns // size) >= blocks]
    return max(enough, default=min(sizes))


def too_little_shared_memory(machine: Machine) -> str | None:
    """Return why blocks have no room for `SHARED_BYTES` on a machine; None if they have."""
    if machine.block_bytes >= SHARED_BYTES:
        return None
    return (
        f"blocks have {machine.block_bytes:,} bytes of shared memory here, this kernel takes {SHARED_BYTES:,}; "
        "use --kernel tiled"
    )


class FusedTrainer(CUDATrainer):
    """What trainers with fused steps have in common: sizes of tiles, and how many outputs the last layer has."""

    def _allocate(self) -> None:
        machine = current_machine()
        reason = too_little_shared_memory(machine)
        if reason is not None:
            raise DeviceError(reason)
        super()._allocate()
        self._multiprocessors = machine.multiprocessors
        self._lanes = lanes_of(self._arrays[-1].outputs)

    def _tiles(self, row_tiles: tuple[int, ...], weight_tiles: tuple[int, ...]) -> dict[str, int]:
        rows = [(self._batch_size, arrays.outputs) for arrays in self._arrays]
        weights = [(arrays.inputs + 1, arrays.outputs) for arrays in self._arrays]
        return {
            "ROW_TILE": tile_size(rows, row_tiles, self._multiprocessors),
            "WEIGHT_TILE": tile_size(weights, weight_tiles, self._multiprocessors),
        }


class GraphTrainer(FusedTrainer):
    """Fused launches, captured as a graph that serves every epoch."""

    def _prepare(self) -> None:
        count = len(self._layers)
        self._steps = tuple(backward_steps(count, self._lanes > 0))
        self._defines = self._tiles(ROW_TILES, WEIGHT_TILES)
        sources = {"forward": _SHARING, "head": _SHARING, "loss": _FUSED, "backward": _SHARING, "add_losses": _FUSED}
        self._kernels = {name: source.kernel(name, **self._defines) for name, source in sources.items()}
        launches = count + 1 + len(self._steps)
        self._span = min(self._rows, max(1, MOST_LAUNCHES // launches) * self._batch_size)  # rows of a graph
        whole = self._span == self._rows
        self._window = self._order if whole else cupy().zeros(self._span, np.int64)
        self._enqueue(self._batch_size)  # not captured: whatever a first launch loads is loaded now
        self._stream.synchronize()
        spans = {self._span, self._rows % self._span or self._span}
        self._graphs = {span: Graph(partial(self._enqueue, span), self._stream) for span in spans}

    def _pass(self) -> None:
        runtime = cupy().cuda.runtime
        for start in range(0, self._rows, self._span):
            rows = min(self._span, self._rows - start)
            if self._window is not self._order:
                source, kind = self._order.data.ptr + 8 * start, runtime.memcpyDeviceToDevice
                runtime.memcpyAsync(self._window.data.ptr, source, 8 * rows, kind, self._stream.ptr)
            self._graphs[rows].launch(self._stream)

    def _enqueue(self, total: int) -> None:
        for start, rows in batches(total, self._batch_size):
            batch = self._batch(self._window[start:], self._losses[start:], rows)
            for number in range(len(self._layers) - (self._lanes > 0)):
                blocks = self._tiles_of(rows, self._arrays[number].outputs, "ROW_TILE")
                self._launch("forward", blocks, (*self._layers[number], *batch))
            if self._lanes:
                self._launch("head", rows, (*self._layers[-1], *batch, np.int32(self._lanes)))
            else:
                self._launch("loss", rows, (*self._layers[-1], *batch))
            for step in self._steps:
                self._step_back(step, rows, batch)
        arguments = (self._losses, np.int32(total), self._total)
        self._kernels["add_losses"]((1,), (REDUCING_THREADS,), arguments)

    def _step_back(self, step: Step, rows: int, batch: tuple[Any, ...]) -> None:
        through = 0 if step.through is None else step.through
        first, second = step.updates[:1] or (0,), step.updates[1:] or (0,)
        blocks = [0 if step.through is None else self._tiles_of(rows, self._arrays[through].inputs, "ROW_TILE")]
        for number in step.updates:
            arrays = self._arrays[number]
            blocks.append(self._tiles_of(arrays.inputs + 1, arrays.outputs, "WEIGHT_TILE"))
        layers = (*self._layers[through], *self._layers[first[0]], *self._layers[second[0]])
        split = (np.int32(blocks[0]), np.int32(sum(blocks[1:2])))
        self._launch("backward", sum(blocks), (*layers, *batch, *split))

    def _tiles_of(self, rows: int, columns: int, define: str) -> int:
        size = self._defines[define]
        return -(-rows // size) * -(-columns // size)

    def _launch(self, name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        memory = 0 if name == "loss" else SHARED_BYTES
        self._kernels[name]((blocks,), (THREADS,), arguments, shared_mem=memory)


def _why_not(machine: Machine, problem: TrainingProblem) -> str | None:
    return too_little_shared_memory(machine)


GRAPH = TrainingKernel(
    name="graph",
    device="cuda",
    summary="a fused launch for each step, the whole epoch one graph",
    launch=GraphTrainer,
    needs=(ANY_GPU,),
    auto=True,
    why_not=_why_not,
)
