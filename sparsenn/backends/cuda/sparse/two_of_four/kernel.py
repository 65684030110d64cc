"""Layers of any sparse weights on the tensor cores of compute capability 9.0, one launch of `two_of_four` a layer.

Rows lie in halves from the first layer to the last; `sparse/rows_to_units.cu` lays them out.

`two_of_four_float32` splits numbers into two halves, 22 bits: float32's precision but for what is below 2**-18 of a
bound of a row's numbers. `two_of_four_tf32` and `two_of_four_float16`, which takes and returns float16, round weights
and scaled rows to 11 bits. Sums are float32. Any output of a row with an infinity or NaN may be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE, GPU, why_no_warpgroups
from sparsenn.backends.cuda.runtime.activation import ACTIVATIONS
from sparsenn.backends.cuda.runtime.device import cupy, current_machine
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, cache_on_host
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.runtime.row_scan import taken_scan
from sparsenn.backends.cuda.sparse.half_chain import LAST, LAST_AS_HALVES, Bound, HalfChain, bound_of
from sparsenn.backends.cuda.sparse.priors import two_of_four_seconds
from sparsenn.backends.cuda.sparse.queued_chain import chain_kernel
from sparsenn.backends.cuda.sparse.row_slices import SLICES
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.cuda.sparse.two_of_four.input_order import RUNS, UNIT, UNITS, order_in_runs, order_inputs
from sparsenn.backends.cuda.sparse.two_of_four.packing import GROUP, Packed, group_bytes, pack
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSR, Array
from sparsenn.network import Network

WARPGROUP = 128  # threads that carry out an instruction together
TURNED_BYTES = 2 * 2 * 16 * 16  # of shared memory for each warp and plane: 16 outputs of 16 rows, twice
OUTPUT_BYTES = 2 * 4 * 16  # likewise for each warp and tile: scales and biases of 16 outputs


@dataclass(frozen=True)
class BlockShape:
    """The outputs that a block computes at a time."""

    planes: int  # 2 where numbers are split into two halves, else 1
    rows: int  # at a time
    stages: int  # slabs in shared memory
    groups: int = 2  # warpgroups
    tiles: int = 2  # 64 outputs of each warpgroup

    @property
    def neurons(self) -> int:
        """Outputs of a block's tile."""
        return GROUP * self.groups * self.tiles

    @property
    def threads(self) -> int:
        """Threads of a block; a further warpgroup copies."""
        return WARPGROUP * (self.groups + 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        weights = group_bytes(self.planes) * self.groups * self.tiles
        stage = weights + self.planes * UNITS * 16 * self.rows
        scales = 8 * self.rows + OUTPUT_BYTES * self.tiles
        own = self.groups * WARPGROUP // WARP * (self.planes * TURNED_BYTES + scales)
        return self.stages * stage + own + 16 * self.stages

    def programs(self) -> tuple[Program, Program]:
        """Declare the kernels for blocks of this shape: the one that multiplies, and the one that lays rows out."""
        multiplying = program(
            "sparse/two_of_four.cu",
            ARCHITECTURE,
            dynamic_shared=True,
            PLANES=(self.planes,),
            ROWS=(self.rows,),
            STAGES=(self.stages,),
            GROUPS=(self.groups,),
            TILES=(self.tiles,),
            ACTIVATION=tuple(range(len(ACTIVATIONS) + 1)),
            LAST=(0, LAST) if self.planes == 2 else (0, LAST, LAST_AS_HALVES),
        )
        laying_out = program(
            "sparse/rows_to_units.cu",
            dynamic_shared=True,
            PLANES=(self.planes,),
            ROWS=(self.rows,),
            TAKEN=(16, 8, 4, 2, 1),
            RUN=RUNS,
            INPUT=("float",) if self.planes == 2 else ("float", "half_bits"),
        )
        return multiplying, laying_out


SPLIT = BlockShape(2, 128, 3)  # for numbers that are split
SINGLE = BlockShape(1, 192, 4)  # for numbers that are not

PROGRAMS = {shape: shape.programs() for shape in (SPLIT, SINGLE)}


__all__ = ["KERNELS", "SINGLE", "SPLIT", "BlockShape", "TensorChain", "why_not"]

LAYING_THREADS = 512  # of a block that lays rows out
LAID_BYTES = (
    72 << 10
)  # shared memory of its rows, at most: a multiprocessor has three such blocks; one row may take more

BANKS = 32  # of shared memory
BANK_BYTES = 4  # of a bank
FOUR = 4  # numbers that are moved at once


# ---- Layers, ready to be multiplied -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Layer:
    arrays: tuple[Any, ...]  # image, places, starts, units, scales, and biases, (places of outputs,) float32
    lists: int  # tiles of outputs
    row_units: int  # units that a row of inputs has room for
    width: int  # units that a row of outputs has room for; outputs of the last layer
    bound: Bound


@dataclass(frozen=True, eq=False)
class _Ready:
    run: int  # neighbours
    order: Any  # int32, first input of each run, or the first multiple of `run` not below all of them
    layers: tuple[_Layer, ...]


@dataclass(frozen=True, eq=False)
class _PackedLayer:
    weights: Packed
    outputs: Array  # the output at each place, -1 where there is none
    row_units: int
    width: int

    def placed(self, layer: DeviceLayer) -> _Layer:
        weights, there = self.weights, self.outputs >= 0
        bias = np.zeros(weights.shape[1], np.float32)
        bias[np.flatnonzero(there)] = layer.host.bias[self.outputs[there]]
        arrays = weights.image, weights.places, weights.starts, weights.units, weights.scales, bias
        lists = weights.starts.size - 1
        return _Layer(tuple(to_device(arrays)), lists, self.row_units, self.width, bound_of(layer))


def _ready(layers: Sequence[DeviceLayer], shape: BlockShape) -> _Ready:
    """Return a chain's layers, packed: on the host once for all devices; what is on this one is kept with the first."""
    sources = [layer.source for layer in layers]

    def ready() -> _Ready:
        chain = tuple(map(ref, sources))
        run, order, packed = cache_on_host(sources[0], ("two of four", shape), lambda: _packed(layers, shape), chain)
        made = (each.placed(layer) for each, layer in zip(packed, layers, strict=True))
        return _Ready(run, cupy().asarray(order), tuple(made))

    return cache_on_device(layers[0], ("two of four", shape, len(layers)), ready)


def _packed(layers: Sequence[DeviceLayer], shape: BlockShape) -> tuple[int, Array, tuple[_PackedLayer, ...]]:
    """Pack layers on the host; outputs of each are in the order in which the next one reads them.

    In each of the two buffers a row has the same place for all layers: slices of the rows are not in the same layer.
    """
    weights = [layer.host.weights for layer in layers]
    run, first = order_in_runs(weights[0], shape.neurons)
    orders = [first, *map(order_inputs, weights[1:])]
    outputs = [*orders[1:], _last_order(layers[-1].outputs, shape)]
    packed = [pack(*given, shape.neurons, shape.planes) for given in zip(weights, orders, outputs, strict=True)]
    units = [orders[0].size // UNIT, *(each.shape[1] // UNIT for each in packed[:-1])]
    room = [max(units[parity::2], default=0) for parity in range(2)]
    widths = [*(room[number % 2] for number in range(1, len(layers))), layers[-1].outputs]
    made = tuple(
        _PackedLayer(found, order, room[number % 2], width)
        for number, (found, order, width) in enumerate(zip(packed, outputs, widths, strict=True))
    )
    none = parts_of(layers[0].inputs, run) * run
    return run, np.where(first < 0, none, first)[::run].astype(np.int32), made


def _last_order(outputs: int, shape: BlockShape) -> Array:
    """Return the output at each place of a chain's last layer, -1 where there is none.

    A thread has a row of each eight of a warpgroup's 64 outputs a warp; its outputs are neighbours.
    """
    tile, among = np.divmod(np.arange(parts_of(outputs, shape.neurons) * shape.neurons), shape.tiles * GROUP)
    tile_of_group, row = np.divmod(among, GROUP)
    warp, row = np.divmod(row, 16)
    half, line = np.divmod(row, 8)
    order = tile * shape.tiles * GROUP + ((warp * 8 + line) * shape.tiles + tile_of_group) * 2 + half
    return np.where(order < outputs, order, -1)


# ---- A chain ----------------------------------------------------------------------------------------------------


class TensorChain(HalfChain):
    """Consecutive layers by `two_of_four`."""

    def __init__(self, name: str, shape: BlockShape, device: int, layers: Sequence[DeviceLayer], rows: int) -> None:
        self._shape, self._ready = shape, _ready(layers, shape)
        row_bytes = [16 * shape.planes * layer.row_units for layer in self._ready.layers]
        tiles = parts_of(rows, shape.rows) * max(layer.lists for layer in self._ready.layers)
        slices = SLICES if tiles > current_machine().multiprocessors else 1
        super().__init__(device, name, layers, rows, shape.rows, row_bytes, shape.planes == 1, slices)

    def _enter(self, features: Array) -> None:
        shape, ready, kind, (rows, inputs) = self._shape, self._ready, features.dtype, features.shape
        taken, stride = _rows_taken(inputs, kind.itemsize)
        name = "half_bits" if kind == np.float16 else "float"
        kernel = PROGRAMS[shape][1].kernel("rows_to_units", TAKEN=taken, RUN=ready.run, INPUT=name)
        blocks, shared_bytes = parts_of(rows, shape.rows) * shape.rows // taken, kind.itemsize * taken * stride
        arrays = features, self._buffers[0], ready.order, self._exponents, self._largest, taken_scan(features)
        units = ready.order.size * ready.run // UNIT
        sizes = (inputs, stride, units, ready.layers[0].row_units, len(self._layers))
        arguments = (*arrays, np.int64(rows), np.int64(self._largest.shape[1]), *map(np.int32, sizes))
        kernel((blocks,), (LAYING_THREADS,), arguments, shared_mem=shared_bytes)

    def _leave(self, rows: int, kind: np.dtype[Any]) -> Any:
        outputs = cupy().empty((rows, self._layers[-1].outputs), kind)
        self._launch(len(self._layers) - 1, outputs, 0, rows)
        return outputs

    def _launch(self, number: int, target: Any, first: int, last: int) -> None:
        if not self._ready.layers[number].lists or last <= first:
            return
        shape, layer, ready = self._shape, self._layers[number], self._ready.layers[number]
        kernel = PROGRAMS[shape][0].kernel("two_of_four", **self._defines(number, target))
        blocks = min(current_machine().multiprocessors, ready.lists * parts_of(last - first, shape.rows))
        arguments = (
            *(self._buffers[number % 2], target, *ready.arrays, *self._facts[number]),
            *map(np.int32, (first, last, ready.row_units, ready.width, ready.lists)),
            *(*ready.bound, layer.clip),
        )
        kernel((blocks,), (shape.threads,), arguments, shared_mem=shape.shared_bytes)


def _rows_taken(inputs: int, number_bytes: int) -> tuple[int, int]:
    """Return how many rows a block lays out, and numbers from one to the next in shared memory: `FOUR` banks on."""
    of_bank, least = BANK_BYTES // number_bytes, inputs + 2 * max(RUNS)
    stride = least + (FOUR * of_bank - least) % (BANKS * of_bank)
    return next((taken for taken in (16, 8, 4, 2) if number_bytes * taken * stride <= LAID_BYTES), 1), stride


def why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    """Return why the kernels cannot run a network; None if they can."""
    if reason := why_no_warpgroups(machine):
        return reason
    width, widest = inputs.shape[1], machine.block_bytes // 4 - 3 * BANKS
    return None if width <= widest else f"a row has {width:,} inputs; the kernel lays out up to {widest:,}"


def _kernel(name: str, shape: BlockShape, precision: str, summary: str) -> SparseKernel:
    return chain_kernel(
        name,
        partial(TensorChain, name, shape),
        2 * shape.planes,
        partial(two_of_four_seconds, shape.planes, shape.rows, shape.neurons),
        precision=precision,
        summary=summary,
        needs=(GPU,),
        why_not=why_not,
        stores_zeros=True,
    )


_SUMMARY = "two of four neighbouring weights, on tensor cores that pass over the others"
KERNELS = (
    _kernel("two_of_four_float32", SPLIT, "float32", f"{_SUMMARY}; split numbers"),
    _kernel("two_of_four_tf32", SINGLE, "tf32", f"{_SUMMARY}; 11 bits"),
    _kernel("two_of_four_float16", SINGLE, "float16", f"{_SUMMARY}; 11 bits, any range"),
)
