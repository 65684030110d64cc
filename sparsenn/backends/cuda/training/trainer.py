"""Training on a GPU: what all trainers share, their arrays and how an epoch is begun and ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import note, section
from sparsenn.backends.trainer import TRAINING_OPERATION, TrainingProblem, Velocities
from sparsenn.errors import InputError, ShapeError
from sparsenn.formats import Array
from sparsenn.layers import Linear

QUAD = 4  # floats that are read at once; rows of every array are padded to whole quads, as in `kernels/train/layer.cuh`
REDUCING_THREADS = 256  # of a block that adds up losses, as in the kernels


def padded(width: int) -> int:
    """Return the floats that a row of `width` takes."""
    return -(-width // QUAD) * QUAD


def batches(rows: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield (first entry of the order, rows) of each mini-batch; the last may be smaller."""
    for start in range(0, rows, batch_size):
        yield start, min(batch_size, rows - start)


def checked_order(order: Array, rows: int) -> Array:
    """Return the order as the kernels read it: (rows,) int64, contiguous; refuse entries that are no row."""
    if order.shape != (rows,):
        raise ShapeError(f"the order has shape {order.shape}; there are {rows:,} rows")
    if order.dtype.kind not in "iu" or order.min() < 0 or order.max() >= rows:
        raise InputError(f"the order has an entry that is not a row number from 0 to {rows - 1:,}")
    return np.ascontiguousarray(order, dtype=np.int64)


class _LayerArrays:
    """One layer's arrays on the device; `kernels/train/layer.cuh` says how they lie."""

    def __init__(self, shape: Linear, number: int, batch: int) -> None:
        cp = cupy()
        self.inputs, self.outputs = shape.inputs, shape.outputs
        self.activation, self.clip = activation_code(shape, number)
        self.weights: Any = cp.zeros((self.inputs + 1, padded(self.outputs)), np.float32)
        self.velocity: Any = cp.zeros_like(self.weights)
        out = np.zeros((batch, padded(self.outputs + 1)), np.float32)
        out[:, self.outputs] = 1
        self.out: Any = cp.asarray(out)
        self.gradient: Any = cp.zeros((batch, padded(self.outputs)), np.float32)

    def fields(self, inputs: Any, before: _LayerArrays | None) -> tuple[Any, ...]:
        """Return the fields of the kernels' record `Layer`: NumPy scalars, pointers as uint64."""
        pointers = (
            inputs if before is None else before.out,
            None if before is None else before.gradient,
            self.weights,
            self.velocity,
            self.out,
            self.gradient,
        )
        return (
            *(np.uint64(0 if array is None else array.data.ptr) for array in pointers),
            np.int32(self.inputs),
            np.int32(self.outputs),
            self.activation if before is None else before.activation,
            self.clip if before is None else before.clip,
            self.activation,
            self.clip,
        )


class CUDATrainer(ABC):
    """A trainer whose data and parameters stay on one GPU. What becomes of a batch, its subclasses say."""

    _kernels: dict[str, Any]  # what an epoch launches, by name

    def __init__(self, problem: TrainingProblem, device_index: int = 0) -> None:
        cp = cupy()
        self._problem = problem
        self._rows = len(problem.inputs)
        self._batch_size = min(problem.batch_size, self._rows)
        self._device = cp.cuda.Device(device_index)
        row_bytes = sum(12 * padded(layer.outputs + 1) for layer in problem.layers)
        with self._device, within_memory("a batch in training", self._batch_size, row_bytes):
            self._stream = cp.cuda.Stream(non_blocking=True)
            self._allocate()
            cp.cuda.get_current_stream().synchronize()
            with self._stream:
                self._prepare()
            self._stream.synchronize()
        zeros = tuple((np.zeros_like(layer.weights), np.zeros(layer.outputs, np.float32)) for layer in problem.layers)
        self.restore(problem.layers, zeros)

    def _allocate(self) -> None:
        cp = cupy()
        problem, width = self._problem, self._problem.layers[0].inputs
        inputs = np.zeros((self._rows, padded(width + 1)), np.float32)
        inputs[:, :width], inputs[:, width] = problem.inputs, 1
        self._inputs, self._targets = cp.asarray(inputs), cp.asarray(np.ascontiguousarray(problem.targets, np.float32))
        self._order = cp.zeros(self._rows, np.int64)
        self._losses = cp.zeros(self._rows, np.float64)
        self._total = cp.zeros(1, np.float64)
        self._arrays = [
            _LayerArrays(layer, number, self._batch_size) for number, layer in enumerate(problem.layers, start=1)
        ]
        befores = [None, *self._arrays]
        self._layers = [
            arrays.fields(self._inputs, before) for arrays, before in zip(self._arrays, befores, strict=False)
        ]
        """For each layer what every kernel takes of it."""

    def _batch(self, order: Any, losses: Any, rows: int) -> tuple[Any, ...]:
        problem = self._problem
        return (
            order,
            self._targets,
            losses,
            np.int32(rows),
            np.int32(problem.loss == "cross_entropy"),
            np.float32(problem.learning_rate),
            np.float32(problem.momentum),
        )

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready whatever outlasts an epoch, on the trainer's stream; parameters are written after that."""

    @abstractmethod
    def _pass(self) -> None:
        """Enqueue an epoch on the trainer's stream, which is current; the losses' sum is added to `_total`."""

    def epoch(self, order: Array) -> float:
        """Pass once over the rows; see `Trainer`."""
        runtime = cupy().cuda.runtime
        entries = checked_order(order, self._rows)
        with self._device, self._stream as stream:
            kind = runtime.memcpyHostToDevice
            runtime.memcpyAsync(self._order.data.ptr, entries.ctypes.data, entries.nbytes, kind, stream.ptr)
            runtime.memsetAsync(self._total.data.ptr, 0, self._total.nbytes, stream.ptr)
            with section(TRAINING_OPERATION):
                self._pass()
            note(TRAINING_OPERATION, self._kernels.values())
            return float(self._total.get()[0]) / self._rows

    def layers(self) -> tuple[Linear, ...]:
        """Return the parameters as they are now, on the host; see `Trainer`."""
        return tuple(
            Linear(*pair, layer.activation)
            for pair, layer in zip(self._fetch("weights"), self._problem.layers, strict=True)
        )

    def velocities(self) -> Velocities:
        """Return the velocities as they are now, on the host."""
        return tuple(self._fetch("velocity"))

    def restore(self, layers: Sequence[Linear], velocities: Velocities) -> None:
        """Replace parameters and velocities by those of an earlier run."""
        parameters = [(layer.weights, layer.bias_vector()) for layer in layers]
        shapes = [layer.weights.shape for layer in self._problem.layers]
        for pairs in (parameters, velocities):
            found = [(weights.shape, bias.shape) for weights, bias in pairs]
            if found != [(shape, shape[1:]) for shape in shapes]:
                raise ShapeError(f"parameters and velocities of shapes {found} do not belong to layers of {shapes}")
        with self._device, self._stream:
            for arrays, parameter, velocity in zip(self._arrays, parameters, velocities, strict=True):
                for target, (weights, bias) in ((arrays.weights, parameter), (arrays.velocity, velocity)):
                    rows = np.zeros(target.shape, np.float32)
                    rows[:-1, : arrays.outputs], rows[-1, : arrays.outputs] = weights, bias
                    target.set(rows)
            self._stream.synchronize()

    def _fetch(self, name: str) -> Iterator[tuple[Array, Array]]:
        with self._device, self._stream:
            for arrays in self._arrays:
                found = getattr(arrays, name).get()[:, : arrays.outputs]
                yield np.ascontiguousarray(found[:-1]), found[-1].copy()
