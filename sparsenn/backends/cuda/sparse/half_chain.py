"""Chains of layers whose rows are in half precision, each scaled by a power of two so that no number is too large.

The scale comes from a bound: the layer's largest sum of absolute weights times the largest input, plus its largest
bias.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cuda.runtime.activation import activation_of, compiled_activation
from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import section
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.streams import StreamOrder
from sparsenn.backends.cuda.sparse.row_slices import RowSlices
from sparsenn.backends.cuda.sparse.rows import as_dense, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, Stack, named
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

# The kernels' codes of a layer whose outputs are the chain's.
LAST = 1  # float32 outputs
LAST_AS_HALVES = 2  # halves that are not scaled

Bound = tuple[np.float32, np.float32, np.float32]
"""What is known of a layer's outputs, as `Bound` in `sparse/row_scale.cuh` has it: sums of absolute weights at most,
absolute biases at most, and what the activation lets through at most."""


def bound_of(layer: DeviceLayer) -> Bound:
    """Return a layer's bound."""
    weights, bias = layer.host.weights, layer.host.bias
    sizes = np.abs(np.broadcast_to(weights.values, (weights.nnz,)).astype(np.float64))
    before = np.concatenate([np.zeros(1), np.cumsum(sizes)])
    reach = float((before[weights.indptr[1:]] - before[weights.indptr[:-1]]).max(initial=0))
    offset = float(np.abs(bias).max(initial=0))
    activation = activation_of(int(layer.activation), float(layer.clip))
    return (
        np.float32(reach * activation.gain * (1 + 1e-6)),
        np.float32(offset * activation.gain + activation.size_of_zero),
        np.float32(activation.largest(math.inf)),
    )


class HalfChain(ABC):
    """Consecutive layers, ready for up to `rows` rows; a `SparseChain`. All rows are computed in every layer.

    Two buffers of halves alternate between layers. `side` rows are laid out together; `row_bytes` has the bytes of a
    row before each layer; with `takes_halves`, rows of float16 stay that, and so do their outputs.
    """

    def __init__(
        self,
        device: int,
        name: str,
        layers: Sequence[DeviceLayer],
        rows: int,
        side: int,
        row_bytes: Sequence[int],
        takes_halves: bool,
        slices: int = 1,
    ) -> None:
        cp = cupy()
        self.capacity = rows
        self._device, self._name, self._side, self._takes_halves = device, name, side, takes_halves
        self._layers = tuple(layers)
        room = max(1, parts_of(rows, side)) * side
        self._buffers = [cp.empty(max(1, room * max(row_bytes[parity::2], default=0)), np.uint8) for parity in range(2)]
        self._exponents = cp.zeros((len(layers), room), np.int32)
        self._largest = cp.zeros((len(layers), room), np.int32)
        following = (*range(1, len(layers)), len(layers) - 1)
        self._facts = [
            tuple(array[at] for at in (number, after) for array in (self._exponents, self._largest))
            for number, after in enumerate(following)
        ]
        self._slices = RowSlices(rows, side, slices)
        self._order = StreamOrder()
        self._counted: tuple[LayerCounts, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return sum(int(array.nbytes) for array in (*self._buffers, self._exponents, self._largest))

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`."""
        with as_current(self._device):
            features = self.readable(features)
            if counting:
                return RowsLeft(self._run_counted(features, multiplicity))
            self._order.enter()
            self._counted = None
            return RowsLeft(self._queue(features))

    def _run_counted(self, features: Array, multiplicity: Array | None) -> Array:
        rows = features.shape[0]
        self._order.enter()
        with section("total"):
            outputs: Array = self._queue(features)
        stands_for = np.ones(rows, np.int64) if multiplicity is None else multiplicity
        copies, nonzeros = map(cupy().asnumpy, weigh_rows(as_rows(outputs, np.float32), self._layers[-1].copies))
        last = int(stands_for[nonzeros > 0].sum()), int((stands_for * copies).sum())
        edges = [rows * layer.weights.nnz for layer in self._layers]
        inner = [LayerCounts(self._name, rows, None, None, count) for count in edges[:-1]]
        self._counted = (*inner, LayerCounts(self._name, rows, *last, edges[-1]))
        return outputs

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer."""
        assert self._counted is not None, "the last run did not count"
        return self._counted

    def readable(self, features: Features) -> Array:
        """Return rows as a row-major matrix of float32, or of float16 where the kernel takes that."""
        dense = as_dense(features)
        kind = np.float16 if self._takes_halves and dense.dtype == np.float16 else np.float32
        readable: Array = as_rows(dense, kind)
        return readable

    def _queue(self, features: Array) -> Any:
        rows = features.shape[0]
        if rows:
            self._enter(features)
            if len(self._layers) > 1:
                self._slices.enqueue(rows, self._enqueue_slice)
        outputs: Array = self._leave(rows, features.dtype)
        return outputs

    @abstractmethod
    def _enter(self, features: Array) -> None:
        """Queue what lays a run's rows out in the first buffer, and writes how they are scaled."""

    @abstractmethod
    def _leave(self, rows: int, kind: np.dtype[Any]) -> Any:
        """Launch the last layer, whose outputs go to a matrix of their own, of a type; return that."""

    @abstractmethod
    def _launch(self, number: int, target: Any, first: int, last: int) -> None:
        """Launch a layer for rows `first` to `last`, if there are any; `target` begins at row 0."""

    def _enqueue_slice(self, first: int, last: int) -> None:
        for number in range(len(self._layers) - 1):
            self._launch(number, self._buffers[(number + 1) % 2], first, last)

    def _defines(self, number: int, target: Any) -> dict[str, int]:
        layer, last = self._layers[number], LAST_AS_HALVES if target.dtype == np.float16 else LAST
        return {
            "ACTIVATION": compiled_activation(int(layer.activation), bool(np.isfinite(layer.clip))),
            "LAST": last if number + 1 == len(self._layers) else 0,
        }


Made = Callable[[int, Sequence[DeviceLayer], int], HalfChain]  # makes a chain of a device, layers, and rows at most


def prepare_chain(made: Made, number_bytes: int, stack: Stack, problem: SparseProblem) -> HalfChain:
    """Pack the weights of a stack once, and make its layers ready; raises OutOfMemoryError for too many rows."""
    layers = stack.layers
    with as_current(stack.device), within_memory(named(layers), problem.rows, _row_bytes(layers, number_bytes)):
        return made(stack.device, layers, problem.rows)


def chain_kernel(
    name: str, made: Made, number_bytes: int, precision: str, seconds: Callable[..., float], **more: Any
) -> SparseKernel:
    """Describe the kernel of chains; its `seconds` take `row_bytes`, too: bytes of a number of the outer rows."""
    halves = precision == "float16"
    return SparseKernel(
        name=name,
        device="cuda",
        prepare=partial(prepare_chain, made, number_bytes),
        seconds=seconds,
        precision=precision,
        auto=True,
        fuses=True,
        drops_rows=False,
        own_outputs=True,
        half_rows=halves,
        **more,
    )


def _row_bytes(layers: Sequence[DeviceLayer], number_bytes: int) -> int:
    widths = [layers[0].inputs, *(layer.outputs for layer in layers)]
    return number_bytes * max(before + after for before, after in pairwise(widths)) + 4 * widths[-1]
