"""The rungs of train that launch their kernels one by one, a layer at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.training.trainer import REDUCING_THREADS, CUDATrainer, batches, padded
from sparsenn.backends.kernel_records import TrainingKernel

BLOCK = (32, 8)
TRANSPOSED_TILE = 32
PRODUCT_TILE = 16  # as in the kernels

_NAIVE = program("studies/train/kernels/01_naive.cu")
_TRANSPOSED = program("studies/train/kernels/02_transposed.cu")
_TILED = program("studies/train/kernels/03_tiled.cu")


def _blocks(rows: int, columns: int, block: tuple[int, int]) -> tuple[int]:
    """Blocks of (columns, rows) that cover a matrix, in one dimension."""
    return (-(-columns // block[0]) * -(-rows // block[1]),)


class NaiveTrainer(CUDATrainer):
    """A thread an element; forward through all layers, back through all, then all updates."""

    def _prepare(self) -> None:
        self._kernels = {name: self._kernel(name) for name in ("forward", "loss", "backward", "update", "add_losses")}

    def _kernel(self, name: str) -> Any:
        return _NAIVE.kernel(name)

    def _pass(self) -> None:
        for start, rows in batches(self._rows, self._batch_size):
            batch = self._batch(self._order[start:], self._losses[start:], rows)
            for number in range(len(self._layers)):
                self._cover("forward", number, rows, self._arrays[number].outputs, batch)
            self._kernels["loss"]((rows,), (REDUCING_THREADS,), (*self._layers[-1], *batch))
            self._backpropagate(rows, batch)
        self._kernels["add_losses"]((1,), (REDUCING_THREADS,), (self._losses, np.int32(self._rows), self._total))

    def _backpropagate(self, rows: int, batch: tuple[Any, ...]) -> None:
        for number in reversed(range(1, len(self._layers))):
            self._backward(number, rows, batch)
        for number in range(len(self._layers)):
            self._update(number, rows, batch)

    def _backward(self, number: int, rows: int, batch: tuple[Any, ...]) -> None:
        self._cover("backward", number, rows, self._arrays[number].inputs, batch)

    def _update(self, number: int, rows: int, batch: tuple[Any, ...]) -> None:
        arrays = self._arrays[number]
        self._cover("update", number, arrays.inputs + 1, arrays.outputs, batch)

    def _cover(self, name: str, number: int, rows: int, columns: int, batch: tuple[Any, ...], *rest: Any) -> None:
        """Launch a kernel of one layer with a thread for each element of a matrix."""
        block = self._block(name)
        self._kernels[name](_blocks(rows, columns, block), block, (*self._layers[number], *batch, *rest))

    def _block(self, name: str) -> tuple[int, int]:
        return BLOCK


class PipelinedTrainer(NaiveTrainer):
    """The same kernels on two streams: a layer is updated while the gradient goes back through the one before."""

    def _prepare(self) -> None:
        super()._prepare()
        cuda = cupy().cuda
        self._side = cuda.Stream(non_blocking=True)
        self._done = [cuda.Event(disable_timing=True) for _ in range(len(self._layers) + 1)]

    def _backpropagate(self, rows: int, batch: tuple[Any, ...]) -> None:
        for number in reversed(range(len(self._layers))):
            if number:
                self._backward(number, rows, batch)  # reads the weights before they are updated
            self._done[number].record(self._stream)
            self._side.wait_event(self._done[number])
            with self._side:
                self._update(number, rows, batch)
        self._done[-1].record(self._side)
        self._stream.wait_event(self._done[-1])


class TransposedTrainer(PipelinedTrainer):
    """What is read across its rows is transposed first, through shared memory."""

    def _prepare(self) -> None:
        super()._prepare()
        cp = cupy()
        self._kernels |= {name: _TRANSPOSED.kernel(name) for name in ("transpose_weights", "transpose_inputs")}
        widest = max(arrays.inputs for arrays in self._arrays) + 1
        self._turned_weights = cp.empty(max(a.outputs * padded(a.inputs) for a in self._arrays), np.float32)
        self._turned_inputs = cp.empty(widest * padded(self._batch_size), np.float32)

    def _kernel(self, name: str) -> Any:
        return _TRANSPOSED.kernel(name) if name in ("backward", "update") else super()._kernel(name)

    def _backward(self, number: int, rows: int, batch: tuple[Any, ...]) -> None:
        arrays = self._arrays[number]
        self._transpose("weights", arrays.inputs, arrays.outputs, (*self._layers[number], self._turned_weights))
        self._cover("backward", number, rows, arrays.inputs, batch, self._turned_weights)

    def _update(self, number: int, rows: int, batch: tuple[Any, ...]) -> None:
        arrays = self._arrays[number]
        self._transpose("inputs", rows, arrays.inputs + 1, (*self._layers[number], *batch, self._turned_inputs))
        self._cover("update", number, arrays.inputs + 1, arrays.outputs, batch, self._turned_inputs)

    def _transpose(self, what: str, rows: int, columns: int, arguments: tuple[Any, ...]) -> None:
        grid = _blocks(rows, columns, (TRANSPOSED_TILE, TRANSPOSED_TILE))
        self._kernels[f"transpose_{what}"](grid, BLOCK, arguments)


class TiledTrainer(PipelinedTrainer):
    """All products by tiles in shared memory, where they are turned round if need be."""

    def _kernel(self, name: str) -> Any:
        source: Program = _TILED if self._block(name) != BLOCK else _NAIVE
        return source.kernel(name)

    def _block(self, name: str) -> tuple[int, int]:
        return (PRODUCT_TILE, PRODUCT_TILE) if name in ("forward", "backward", "update") else BLOCK


def _kernel(name: str, trainer: type[CUDATrainer], summary: str) -> TrainingKernel:
    return TrainingKernel(name=name, device="cuda", summary=summary, launch=trainer, needs=(ANY_GPU,))


KERNELS = (
    _kernel("naive", NaiveTrainer, "one thread per element; transposed matrices read by exchanged indices"),
    _kernel(
        "pipelined", PipelinedTrainer, "a layer is updated on a second stream while the one before is back-propagated"
    ),
    _kernel("transposed", TransposedTrainer, "weights and inputs transposed first, so that whole lines are read"),
    _kernel("tiled", TiledTrainer, "products by tiles in shared memory"),
)
"""In the ladder's order."""
