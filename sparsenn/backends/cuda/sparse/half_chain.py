"""Chains of layers whose rows are in half precision, each scaled by a power of two so that no number is too large.

The scale comes from a bound: the layer's largest sum of absolute weights times the largest input, plus its largest
bias.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.activation import activation_of, compiled_activation
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.sparse.queued_chain import QueuedChain
from sparsenn.backends.cuda.sparse.row_slices import RowSlices
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
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


class HalfChain(QueuedChain):
    """Consecutive layers, ready for up to `rows` rows; outputs of the last are counted.

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
        super().__init__(name, device, layers, rows, takes_halves)
        cp = cupy()
        self._side = side
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

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return super().nbytes + int(self._exponents.nbytes + self._largest.nbytes)

    def _counted_ranges(self) -> Sequence[tuple[int, int]]:
        return [(0, len(self._layers))]

    def _queue(self, first: int, last: int, rows: Any) -> Any:
        assert (first, last) == (0, len(self._layers)), "scales of rows are known before the first layer"
        count = rows.shape[0]
        if count:
            self._enter(rows)
            if len(self._layers) > 1:
                self._slices.enqueue(count, self._enqueue_slice)
        return self._leave(count, rows.dtype)

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
