"""few_rows: chains of sparse layers for few rows, all layers in one launch, in order of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.sparse.few_rows.weights import STEPS, SlicedWeights, on_device, slice_weights
from sparsenn.backends.cuda.sparse.priors import few_rows_seconds
from sparsenn.backends.cuda.sparse.queued_chain import QueuedChain, chain_kernel
from sparsenn.backends.cuda.sparse.row_slices import NOTHING
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
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


class FewRowsChain(QueuedChain):
    """A chain whose layers are one launch."""

    def __init__(self, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        super().__init__("few_rows", device, layers, rows)
        cp = cupy()
        shape = shape_for(current_machine(), [layer.source for layer in layers], rows)
        assert shape is not None, "why_not has said so"
        self._shape, self._weights = shape, on_device(layers, "few rows", slice_weights)
        (self._records,) = to_device([_records(layers, self._weights).view(np.uint8)])
        self._widest = max(layer.inputs for layer in layers)
        self._room = 4 * parts_of(max(layer.outputs for layer in layers), 4)
        self._buffers = [cp.empty(2 * shape.groups * self._room * shape.rows, np.float32)]
        self._arrived = cp.zeros(shape.groups, np.uint64)
        self._kernel = _PROGRAMS[shape.warps, shape.depth, shape.cluster].kernel("few_rows", ROWS=shape.rows)

    def _queue(self, first: int, last: int, rows: Any) -> Any:
        count, shape = rows.shape[0], self._shape
        outputs = cupy().empty((count, self._layers[last - 1].outputs), np.float32)
        records = self._records[first * _RECORD.itemsize :]
        shared_bytes = shape.shared_bytes(last - first, self._widest)
        at_once = shape.rows * shape.groups
        for begin in range(0, count if outputs.size else 0, at_once):
            taken = min(at_once, count - begin)
            arguments = (
                *(records, np.int32(last - first), rows[begin:], outputs[begin:], np.int32(taken)),
                *(*self._buffers, np.int32(self._room), self._arrived, np.int32(shape.blocks)),
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
        arrays: Sequence[Any] = laid
        record["arrays"] = [array.data.ptr if array.size else NOTHING for array in arrays]
        for name in ("inputs", "outputs", "activation", "clip"):
            record[name] = getattr(layer, name)
        record["slices"] = laid.slices
    return records


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


FEW_ROWS = chain_kernel(
    "few_rows",
    FewRowsChain,
    4,
    partial(few_rows_seconds, GROUP, EDGE_BYTES, 4),
    summary="all layers in one launch, weights read without a pause",
    needs=(ANY_GPU,),
    why_not=_why_not,
    reproducible=True,
)
