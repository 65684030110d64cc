"""few_rows: chains of sparse layers for few rows, all layers in one launch, in order of the inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowsLeft, SparseProblem
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current, cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import to_device, within_memory
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.streams import StreamOrder
from sparsenn.backends.cuda.sparse.few_rows.weights import STEPS, SlicedWeights, on_device, slice_weights
from sparsenn.backends.cuda.sparse.priors import few_rows_seconds
from sparsenn.backends.cuda.sparse.row_slices import NOTHING
from sparsenn.backends.cuda.sparse.rows import as_dense, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, Stack, named
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR, Array
from sparsenn.network import Network

GROUP = 4  # rows that a thread has sums of, where there is more than one row
WIDEST = 65_535  # inputs of a layer, as places have 16 bits
CLUSTER = 8  # blocks of a cluster
CLUSTER_BYTES = 1 << 20  # of a layer's weights, up to which a cluster reads them as fast as the whole device

_RECORD = np.dtype(
    [("arrays", "u8", 4)]
    + [(name, "i4") for name in ("inputs", "outputs", "slices", "activation")]
    + [("clip", "f4"), ("rest", "i4", 3)]
)
EDGE_BYTES = 6  # a weight and its place
_CHUNK_BYTES = STEPS * WARP * EDGE_BYTES

_PROGRAMS = {
    (warps, depth, cluster): program(
        "sparse/few_rows.cu",
        dynamic_shared=True,
        ROWS=(1, GROUP),
        WARPS=(warps,),
        DEPTH=(depth,),
        CLUSTER=(cluster,),
    )
    for warps, depth, cluster in ((4, 16, 1), (8, 8, 1), (4, 8, 1), (8, 8, CLUSTER))
}


@dataclass(frozen=True)
class Shape:
    """How a launch is cut."""

    rows: int  # of a group
    warps: int  # of a block
    depth: int  # chunks in a warp's ring
    cluster: int  # blocks of a cluster; 1 where all blocks of the launch run at once instead
    blocks: int  # of a group
    groups: int  # of a launch, at most

    def shared_bytes(self, layers: int, inputs: int) -> int:
        """Return the dynamic shared memory of a block."""
        ring = self.warps * self.depth * _CHUNK_BYTES
        return ring + layers * _RECORD.itemsize + 16 * parts_of(4 * self.rows * (inputs + 1), 16)


def shape_for(machine: Machine, layers: Sequence[Any], rows: int) -> Shape | None:
    """Return how layers with `inputs`, `outputs` and `edges` are launched for rows; None where a row does not fit."""
    widest = max(layer.inputs for layer in layers)
    largest = EDGE_BYTES * max(layer.edges for layer in layers)
    together = machine.capability >= 90 and largest <= CLUSTER_BYTES
    for group in (GROUP, 1) if rows > 1 else (1,):
        groups = max(1, parts_of(rows, group))
        if together:
            shapes = [Shape(group, 8, 8, CLUSTER, CLUSTER, groups)]
        else:
            groups = min(groups, machine.multiprocessors)
            blocks = machine.multiprocessors // groups
            few = max(layer.outputs for layer in layers) <= 4 * WARP * blocks
            cuts = ((4, 16), (4, 8)) if few else ((8, 8), (4, 8))
            shapes = [Shape(group, warps, depth, 1, blocks, groups) for warps, depth in cuts]
        for shape in shapes:
            if shape.shared_bytes(len(layers), widest) <= machine.block_bytes:
                return shape
    return None


class CountedChain(ABC):
    """Consecutive layers, ready for up to `rows` rows; a `SparseChain`. All rows are computed in every layer.

    A run that counts launches layer by layer. With `takes_halves`, rows of float16 stay that, and so do their outputs.
    """

    def __init__(self, name: str, device: int, layers: Sequence[DeviceLayer], rows: int, takes_halves: bool) -> None:
        self.capacity = rows
        self._name, self._device, self._layers, self._takes_halves = name, device, tuple(layers), takes_halves
        self._order = StreamOrder()
        self._counted: tuple[LayerCounts, ...] | None = None

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`."""
        with as_current(self._device):
            dense = as_dense(features)
            kind = np.float16 if self._takes_halves and dense.dtype == np.float16 else np.float32
            rows = as_rows(dense, kind)
            self._order.enter()
            if counting:
                return RowsLeft(self._run_counted(rows, multiplicity))
            self._counted = None
            return RowsLeft(self._launch(0, len(self._layers), rows))

    def _run_counted(self, features: Array, multiplicity: Array | None) -> Array:
        stands_for = np.ones(features.shape[0], np.int64) if multiplicity is None else multiplicity
        counts = []
        for number, layer in enumerate(self._layers):
            features = self._launch(number, number + 1, features)
            copies, nonzeros = map(cupy().asnumpy, weigh_rows(as_rows(features, np.float32), layer.copies))
            found = int(stands_for[nonzeros > 0].sum()), int((stands_for * copies).sum())
            counts.append(LayerCounts(self._name, features.shape[0], *found, features.shape[0] * layer.weights.nnz))
        self._counted = tuple(counts)
        return features

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer."""
        assert self._counted is not None, "the last run did not count"
        return self._counted

    @abstractmethod
    def _launch(self, first: int, last: int, features: Array) -> Array:
        """Queue layers `first` to `last` for rows, row-major; return their outputs, new and of the same type."""


class FewRowsChain(CountedChain):
    """A chain whose layers are one launch."""

    def __init__(self, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        super().__init__("few_rows", device, layers, rows, takes_halves=False)
        cp = cupy()
        shape = shape_for(current_machine(), [layer.source for layer in layers], rows)
        assert shape is not None, "why_not has said so"
        self._shape, self._weights = shape, on_device(layers, "few rows", slice_weights, SlicedWeights)
        (self._records,) = to_device([_records(layers, self._weights).view(np.uint8)])
        self._widest = max(layer.inputs for layer in layers)
        self._room = 4 * parts_of(max(layer.outputs for layer in layers), 4)
        self._between = cp.empty(2 * shape.groups * self._room * shape.rows, np.float32)
        self._arrived = cp.zeros(shape.groups, np.uint64)
        self._kernel = _PROGRAMS[shape.warps, shape.depth, shape.cluster].kernel("few_rows", ROWS=shape.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows between layers."""
        return int(self._between.nbytes)

    def _launch(self, first: int, last: int, features: Array) -> Any:
        rows, shape = features.shape[0], self._shape
        outputs = cupy().empty((rows, self._layers[last - 1].outputs), np.float32)
        records = self._records[first * _RECORD.itemsize :]
        shared_bytes = shape.shared_bytes(last - first, self._widest)
        at_once = shape.rows * shape.groups
        for begin in range(0, rows if outputs.size else 0, at_once):
            taken = min(at_once, rows - begin)
            arguments = (
                *(records, np.int32(last - first), features[begin:], outputs[begin:], np.int32(taken)),
                *(self._between, np.int32(self._room), self._arrived, np.int32(shape.blocks)),
            )
            grid = (shape.blocks * (parts_of(taken, shape.rows) if shape.cluster > 1 else shape.groups),)
            together = shape.cluster == 1 and last > first + 1
            launch(
                *("spmspm", self._kernel, grid, (shape.warps * WARP,), *arguments),
                shared_bytes=shared_bytes,
                all_at_once=together,
            )
        return outputs


def _records(layers: Sequence[DeviceLayer], weights: Sequence[SlicedWeights]) -> Array:
    records = np.zeros(len(layers), _RECORD)
    for record, layer, laid in zip(records, layers, weights, strict=True):
        arrays: Sequence[Any] = laid.arrays
        record["arrays"] = [array.data.ptr if array.size else NOTHING for array in arrays]
        for name in ("inputs", "outputs", "activation", "clip"):
            record[name] = getattr(layer, name)
        record["slices"] = laid.slices
    return records


def _prepare(stack: Stack, problem: SparseProblem) -> FewRowsChain:
    """Make all layers of a stack ready; raises OutOfMemoryError for too many rows."""
    width = max(max(layer.inputs, layer.outputs) for layer in stack.layers)
    with as_current(stack.device), within_memory(named(stack.layers), problem.rows, 12 * width):
        return FewRowsChain(stack.device, stack.layers, problem.rows)


def too_wide(layers: Sequence[Any], most: int) -> str | None:
    """Return why layers have too many inputs for a kernel that takes `most`; None if they do not."""
    widest = max(layer.inputs for layer in layers)
    return f"a layer has {widest:,} inputs; the kernel takes up to {most:,}" if widest > most else None


def _why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    layers: Sequence[Any] = network.layers
    if reason := too_wide(layers, WIDEST):
        return reason
    if shape_for(machine, layers, inputs.shape[0]) is None:
        widest = max(layer.inputs for layer in layers)
        return f"a row of {widest:,} numbers does not fit into a multiprocessor's shared memory"
    return None


FEW_ROWS = SparseKernel(
    name="few_rows",
    device="cuda",
    summary="all layers in one launch, weights read without a pause",
    prepare=_prepare,
    needs=(ANY_GPU,),
    why_not=_why_not,
    seconds=partial(few_rows_seconds, GROUP, EDGE_BYTES, 4),
    auto=True,
    fuses=True,
    drops_rows=False,
    own_outputs=True,
    reproducible=True,
)
