"""Chains of sparse layers that are queued without a wait: how a run begins, and how its layers are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cuda.runtime.device import as_current, cupy
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import section
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.streams import StreamOrder
from sparsenn.backends.cuda.sparse.rows import as_dense, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, Stack, named
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.formats import Array


class QueuedChain(ABC):
    """Consecutive layers, ready for up to `capacity` rows; a `SparseChain`. All rows are computed in every layer.

    A run that counts takes rows out of each layer. With `takes_halves`, rows of float16 stay that, and so do their
    outputs.
    """

    _buffers: Sequence[Any]  # of the rows between layers

    def __init__(
        self, name: str, device: int, layers: Sequence[DeviceLayer], rows: int, takes_halves: bool = False
    ) -> None:
        self.capacity = rows
        self._name, self._device, self._layers, self._takes_halves = name, device, tuple(layers), takes_halves
        self._order = StreamOrder()
        self._counted: tuple[LayerCounts, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return sum(int(buffer.nbytes) for buffer in self._buffers)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`."""
        with as_current(self._device):
            rows = self._readable(features)
            self._order.enter()
            if counting:
                return RowsLeft(self._run_counted(rows, multiplicity))
            self._counted = None
            return RowsLeft(self._queue(0, len(self._layers), rows))

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer."""
        assert self._counted is not None, "the last run did not count"
        return self._counted

    def _readable(self, features: Features) -> Any:
        """Return rows as a row-major matrix of float32, or of float16 where the kernel takes that."""
        dense = as_dense(features)
        return as_rows(dense, np.float16 if self._takes_halves and dense.dtype == np.float16 else np.float32)

    def _run_counted(self, rows: Any, multiplicity: Array | None) -> Array:
        counts, count = [], rows.shape[0]
        for first, last in self._counted_ranges():
            with section("total"):
                rows = self._queue(first, last, rows)
            edges = [count * layer.weights.nnz for layer in self._layers[first:last]]
            counts += [LayerCounts(self._name, count, None, None, each) for each in edges[:-1]]
            copies, nonzeros = map(cupy().asnumpy, weigh_rows(as_rows(rows, np.float32), self._layers[last - 1].copies))
            stands_for = np.ones(count, np.int64) if multiplicity is None else multiplicity
            found = int(stands_for[nonzeros > 0].sum()), int((stands_for * copies).sum())
            counts.append(LayerCounts(self._name, count, *found, edges[-1]))
        self._counted = tuple(counts)
        return rows

    def _counted_ranges(self) -> Sequence[tuple[int, int]]:
        """Return the layers that are run together where outputs are counted, of each range those of the last."""
        return [(number, number + 1) for number in range(len(self._layers))]

    @abstractmethod
    def _queue(self, first: int, last: int, rows: Any) -> Any:
        """Queue layers `first` to `last` for rows; return their outputs, a new row-major matrix."""


Made = Callable[[int, Sequence[DeviceLayer], int], QueuedChain]  # makes a chain of a device, layers, and rows at most


def prepare_chain(made: Made, number_bytes: int, stack: Stack, problem: SparseProblem) -> QueuedChain:
    """Lay the weights of a stack out once, and make its layers ready.

    Raises OutOfMemoryError for too many rows, and ResourceError for a layer of more than 32 GiB in chunks.
    """
    layers = stack.layers
    widths = [layers[0].inputs, *(layer.outputs for layer in layers)]
    row_bytes = number_bytes * max(before + after for before, after in pairwise(widths)) + 4 * widths[-1]
    with as_current(stack.device), within_memory(named(layers), problem.rows, row_bytes):
        return made(stack.device, layers, problem.rows)


def chain_kernel(
    name: str, made: Made, number_bytes: int, seconds: Callable[..., float], *, precision: str = "float32", **more: Any
) -> SparseKernel:
    """Describe the kernel of chains, with `number_bytes` for a number of the rows between layers.

    In half precision, its `seconds` also take `row_bytes`: bytes of a number of the outer rows.
    """
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
        half_rows=precision == "float16",
        **more,
    )
