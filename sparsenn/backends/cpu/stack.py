"""Stack: the weights of consecutive layers, packed end to end so that one compiled call can run them all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sparsenn.backends.cpu.packed import pack
from sparsenn.backends.cpu.panel_layers import job_of
from sparsenn.backends.cpu.slices import SlicedLayers, slice_layers
from sparsenn.formats import Array, csc_to_csr, index_dtype
from sparsenn.formats.arrays import read_only
from sparsenn.layers import SparseLinear
from sparsenn.runtime.workers import thread_count


class ByRows(NamedTuple):
    """A layer's weights by input."""

    offsets: Array  # (inputs + 1,) int64, where each input's entries begin
    targets: Array  # (entries,) uint16 or int32, the output of each
    values: Array  # (entries,) float32


class StackSize(NamedTuple):
    """The widest of layers' inputs and outputs, the first one's inputs, the last one's outputs, and all weights."""

    widest: int
    inputs: int
    outputs: int
    edges: int


class Workspace(threading.local):
    """Two buffers for rows, used in turn: a launch reads the rows in one and writes those that are left to the other.

    They outlast runs: on many machines the first touch of fresh memory costs more than the arithmetic. Each thread has
    two of its own; in one thread, a run's rows hold until the next launch but one, of whichever run.
    """

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def next(self, rows: int, width: int) -> Array:
        """Return uninitialised float32 memory of shape (rows, width), in the buffer that was not used last."""
        self._buffers.reverse()
        if self._buffers[0].size < rows * width:
            self._buffers[0] = np.empty(rows * width, np.float32)
        return self._buffers[0][: rows * width].reshape(rows, width)

    def release(self) -> None:
        """Let go of both buffers of this thread."""
        self._buffers = [np.empty(0, np.float32), np.empty(0, np.float32)]


class Stack:
    """Layers in packed form; a layer also by rows once a kernel asks for it."""

    def __init__(self, layers: Sequence[SparseLinear], copies: Sequence[Array], workspace: Workspace) -> None:
        self.workspace = workspace
        self.layers = tuple(layers)
        self.copies = tuple(copies)
        self.packed = pack(self.layers, self.copies)
        self._job: Array | None = None
        offsets, indices = np.zeros(1, np.int64), np.zeros(0, index_dtype(self.layers[0].outputs))
        self.no_rows = ByRows(*map(read_only, (offsets, indices, np.zeros(0, np.float32))))
        """Empty arrays of the types that `by_rows` returns."""
        self._by_rows: dict[int, ByRows] = {}
        self._sizes: dict[tuple[int, int], StackSize] = {}

    @cached_property
    def slices(self) -> SlicedLayers:
        """All layers' weights by slices of outputs, converted on first use."""
        return slice_layers(self.layers, self.packed, thread_count(), gathers=False)

    @cached_property
    def gathered(self) -> SlicedLayers:
        """The same for inputs that are gathered."""
        return slice_layers(self.layers, self.packed, thread_count(), gathers=True)

    def job(self) -> Array:
        """Return a job for threads that share the layers of a panel."""
        if self._job is None:  # without a lock, which a child that is forked meanwhile would wait for
            self._job = job_of(self.packed)
        return self._job.copy()

    def size_of(self, first: int, last: int) -> StackSize:
        """Return what layers first to last need."""
        if (first, last) not in self._sizes:
            widths = self.packed.widths[first : last + 1]
            edges = sum(layer.edges for layer in self.layers[first:last])
            self._sizes[first, last] = StackSize(int(widths.max()), int(widths[0]), int(widths[-1]), edges)
        return self._sizes[first, last]

    def by_rows(self, layer: int) -> ByRows:
        """Return one layer's weights by input, converted on first use."""
        if layer not in self._by_rows:
            self._by_rows[layer] = _by_rows(self.layers[layer])
        return self._by_rows[layer]


def _by_rows(layer: SparseLinear) -> ByRows:
    rows = csc_to_csr(layer.weights)
    return ByRows(*map(read_only, (rows.indptr, rows.indices, rows.expanded_values())))
