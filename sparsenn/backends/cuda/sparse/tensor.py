"""Layers of any sparse weights on the tensor cores of compute capability 9.0, one launch of `two_of_four` a layer.

The kernel, `sparse/two_of_four.cu`, takes weights as `two_of_four.pack` makes them. Rows lie in halves from the first
layer to the last; `sparse/rows_to_units.cu` lays them out. The launches of a chain are captured once as a graph, which
finds the number of rows on the device.

What a number may be off by: `two_of_four_float32` splits numbers into two halves and keeps 22 bits of them, which is
float32's precision but for what is below 2**-18 of a bound of a row's numbers. `two_of_four_tf32` and its double
`two_of_four_float16` round weights and rows to 11 bits; rows are scaled, so that none is too large for a half. Sums
are float32, as are the rows that are taken and given; where they are float16, the latter takes and gives these. Any
output of a row with an infinity or NaN may be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.contract import (
    Features,
    LayerCounts,
    RowsLeft,
    SparseKernel,
    SparseProblem,
    StepInput,
    StepOutput,
)
from sparsenn.backends.cuda.activation import RELU, SIGMOID, TANH, compiled_activation
from sparsenn.backends.cuda.conv.warpgroup import GPU, why_no_warpgroups
from sparsenn.backends.cuda.device import cupy, current_machine
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.cuda.recorder import part
from sparsenn.backends.cuda.sparse.replay import NOTHING, Call, Turns, captured
from sparsenn.backends.cuda.sparse.rows import as_dense, take_rows, weigh_rows
from sparsenn.backends.cuda.sparse.stack import DeviceLayer, Stack
from sparsenn.backends.cuda.sparse.tensor_blocks import (
    LAST,
    LAST_AS_HALVES,
    PROGRAMS,
    SINGLE,
    SPLIT,
    BlockShape,
)
from sparsenn.backends.cuda.sparse.tensor_estimates import tensor_seconds
from sparsenn.backends.cuda.sparse.two_of_four import (
    GROUP,
    UNIT,
    Packed,
    order_inputs,
    pack,
)
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, CSR, Array
from sparsenn.network import Network

__all__ = ["KERNELS", "SINGLE", "SPLIT", "BlockShape", "TensorChain", "launch_layers", "prepare", "why_not"]

LAYING_THREADS, LAID_BYTES = 256, 72 << 10
"""Of a block that lays rows out, and the shared memory that its rows take at most, so that a multiprocessor has three
such blocks; a single row may take more."""

BANKS, FOUR = 32, 4
"""Of shared memory; and numbers that are moved at once."""


# ---- Layers, ready to be multiplied -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer on the device.

    Parameters
    ----------
    arrays : what the kernel takes of it: image, places, starts, units and scales, as `Packed` has them; and biases,
        (places of outputs,) float32.
    lists : tiles of outputs.
    row_units, width : units of a row of inputs; of a row of outputs, or, of the last layer, its outputs.
    bound : float32: what is known of outputs, as `Bound` in the kernel has it: sums of absolute weights at most,
        absolute biases at most, and what the activation lets through at most.
    """

    arrays: tuple[Any, ...]
    lists: int
    row_units: int
    width: int
    bound: tuple[np.float32, np.float32, np.float32]


@dataclass(frozen=True, eq=False)
class _Ready:
    """Layers of a chain, and the first one's order of inputs: int32, the number of inputs where there is none."""

    order: Any
    layers: tuple[_Layer, ...]


def _ready(layers: Sequence[DeviceLayer], shape: BlockShape) -> _Ready:
    """Return a chain's layers, packed; what is packed is kept with the first."""
    return kept(layers[0], ("two of four", shape, len(layers)), lambda: _packed(layers, shape))


def _packed(layers: Sequence[DeviceLayer], shape: BlockShape) -> _Ready:
    """Pack layers on the host; outputs of each are in the order in which the next one reads them."""
    cp = cupy()
    weights = [_on_host(layer.weights) for layer in layers]
    orders = [order_inputs(each) for each in weights]
    made, places = [], orders[0].size
    for number, (layer, of_layer) in enumerate(zip(layers, weights, strict=True)):
        last = number + 1 == len(layers)
        outputs = _last_order(layer.outputs, shape) if last else orders[number + 1]
        found = pack(of_layer, orders[number], outputs, shape.neurons, shape.planes)
        made.append(_placed(cp, layer, of_layer, found, outputs, places // UNIT, last))
        places = found.shape[1]
    order = np.where(orders[0] < 0, layers[0].inputs, orders[0]).astype(np.int32)
    return _Ready(cp.asarray(order), tuple(made))


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


def _on_host(weights: CSC) -> CSC:
    fetched = (cupy().asnumpy(array) for array in (weights.indptr, weights.indices, weights.values))
    return CSC(weights.shape, *fetched)


def _placed(
    cp: Any, layer: DeviceLayer, weights: CSC, packed: Packed, outputs: Array, row_units: int, last: bool
) -> _Layer:
    """Copy what was packed to the device, with what else the kernel needs to know of a layer."""
    bias = np.zeros(packed.shape[1], np.float32)
    given = np.asarray(cp.asnumpy(layer.bias))
    bias[np.flatnonzero(outputs >= 0)] = given[outputs[outputs >= 0]]
    column = np.repeat(np.arange(weights.shape[1]), np.diff(weights.indptr))
    sizes = np.abs(np.broadcast_to(weights.values, column.shape).astype(np.float64))
    reach = np.bincount(column, sizes, weights.shape[1]).max(initial=0.0)
    most = {RELU: layer.clip, SIGMOID: np.float32(1), TANH: np.float32(1)}
    return _Layer(
        tuple(
            cp.asarray(array)
            for array in (packed.image, packed.places, packed.starts, packed.units, packed.scales, bias)
        ),
        packed.starts.size - 1,
        row_units,
        layer.outputs if last else packed.shape[1] // UNIT,
        (
            np.float32(reach * (1 + 1e-6)),
            np.float32(np.abs(given).max(initial=0.0)),
            np.float32(most.get(int(layer.activation), np.inf)),
        ),
    )


# ---- A chain ----------------------------------------------------------------------------------------------------


class TensorChain:
    """Consecutive layers, ready for up to so many rows; a `SparseChain`. All rows are computed in every layer.

    Two buffers hold what layers read and write by turns, in halves; each run has a matrix of its own for the outputs,
    of the rows' type.

    Parameters
    ----------
    device : the current one.
    name : of the kernel.
    shape : of its blocks, one of `PROGRAMS`.
    layers : on the device.
    rows : of a run, at most.
    """

    def __init__(self, device: int, name: str, shape: BlockShape, layers: Sequence[DeviceLayer], rows: int) -> None:
        cp = cupy()
        self.capacity = rows
        self._device, self._name, self._shape = device, name, shape
        self._layers = tuple(layers)
        self._ready = _ready(layers, shape)
        room = max(1, parts_of(rows, shape.rows)) * shape.rows
        row_bytes = [16 * shape.planes * layer.row_units for layer in self._ready.layers]
        self._buffers = [cp.empty(max(1, room * max(row_bytes[parity::2], default=0)), np.uint8) for parity in range(2)]
        self._exponents = cp.zeros((len(layers), room), np.int32)
        self._largest = cp.zeros((len(layers), room), np.int32)
        self._call = Call()
        self._turns = Turns()
        self._graph: Any = None
        self._counted: tuple[LayerCounts, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return sum(int(array.nbytes) for array in (*self._buffers, self._exponents, self._largest))

    def capture(self) -> None:
        """Capture the launches of all layers but the last, which a run queues by itself: it has a matrix of its own."""
        self._call.begin(0, None)
        if len(self._layers) > 1:
            self._graph = captured(self._enqueue)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`. One that counts is queued launch by launch."""
        with cupy().cuda.Device(self._device):
            features = self.readable(features)
            if counting:
                return RowsLeft(self.run_counted(features, multiplicity)[0])
            stream = self._turns.take()
            self._counted = None
            self._enter(features)
            if self._graph is not None:
                self._call.begin(features.shape[0], None)
                self._graph.launch(stream)
            return RowsLeft(self._leave(features.shape[0], features.dtype))

    def run_counted(self, features: Array, multiplicity: Array | None) -> tuple[Array, Array]:
        """Queue a run that counts, launch by launch; return outputs, and which rows end with a non-zero, (rows,) bool.

        Parameters
        ----------
        multiplicity : (rows,) int64, inputs that each row stands for; None for one each.
        """
        cp, rows = cupy(), features.shape[0]
        self._turns.take()
        with part("total"):
            self._enter(features)
            self._call.begin(rows, None)
            self._enqueue()
            outputs = self._leave(rows, features.dtype)
        stands_for = cp.ones(rows, np.int64) if multiplicity is None else cp.asarray(multiplicity, np.int64)
        copies, nonzeros = weigh_rows(outputs.astype(np.float32, copy=False), self._layers[-1].copies)
        alive = nonzeros > 0
        last = int(stands_for[alive].sum()), int((stands_for * copies).sum())
        edges = [rows * layer.weights.nnz for layer in self._layers]
        inner = [LayerCounts(self._name, rows, None, None, count) for count in edges[:-1]]
        self._counted = (*inner, LayerCounts(self._name, rows, *last, edges[-1]))
        return outputs, alive

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer."""
        assert self._counted is not None, "the last run did not count"
        return self._counted

    def readable(self, features: Features) -> Array:
        """Return rows as a row-major matrix of float32, or of float16 where the kernel takes that."""
        dense = as_dense(features)
        kind = np.float16 if self._shape.planes == 1 and dense.dtype == np.float16 else np.float32
        readable: Array = cupy().ascontiguousarray(dense, dtype=kind)
        return readable

    def _enter(self, features: Array) -> None:
        """Queue what lays a run's rows out."""
        shape, (rows, inputs) = self._shape, features.shape
        if not rows:
            return
        taken, stride = _rows_taken(inputs)
        kind = "half_bits" if features.dtype == np.float16 else "float"
        kernel = PROGRAMS[shape][1].kernel("rows_to_units", TAKEN=taken, INPUT=kind)
        blocks = parts_of(rows, shape.rows) * shape.rows // taken
        room = np.int64(self._largest.shape[1])
        arrays = features, self._buffers[0], self._ready.order, self._exponents, self._largest
        sizes = (inputs, stride, self._ready.order.size // UNIT, len(self._layers))
        arguments = (*arrays, np.int64(rows), room, *map(np.int32, sizes))
        kernel((blocks,), (LAYING_THREADS,), arguments, shared_mem=4 * taken * stride)

    def _enqueue(self) -> None:
        """Launch all layers but the last on the current stream, for as many rows as the record says."""
        for number in range(len(self._layers) - 1):
            self._launch(number, self._buffers[(number + 1) % 2], self.capacity, self._call.record)

    def _leave(self, rows: int, kind: np.dtype[Any]) -> Any:
        """Launch the last layer, whose outputs go to a matrix of their own, of a type; return that."""
        outputs = cupy().empty((rows, self._layers[-1].outputs), kind)
        self._launch(len(self._layers) - 1, outputs, rows, NOTHING)
        return outputs

    def _launch(self, number: int, target: Any, rows: int, count: Any) -> None:
        """Launch a layer for as many rows as `count` says, at most `rows`."""
        shape, layer, ready = self._shape, self._layers[number], self._ready.layers[number]
        if not ready.lists or not rows:
            return
        last = number + 1 == len(self._layers)
        kernel = PROGRAMS[shape][0].kernel(
            "two_of_four",
            ACTIVATION=compiled_activation(int(layer.activation), bool(np.isfinite(layer.clip))),
            LAST=0 if not last else LAST_AS_HALVES if target.dtype == np.float16 else LAST,
        )
        following = number if last else number + 1
        facts = (array[at] for at in (number, following) for array in (self._exponents, self._largest))
        arguments = (
            *(self._buffers[number % 2], target, *ready.arrays, *facts, count),
            *map(np.int32, (rows, ready.row_units, ready.width, ready.lists)),
            *(*ready.bound, layer.clip),
        )
        blocks = min(current_machine().multiprocessors, ready.lists * parts_of(rows, shape.rows))
        kernel((blocks,), (shape.threads,), arguments, shared_mem=shape.shared_bytes)


def _rows_taken(inputs: int) -> tuple[int, int]:
    """Return how many rows a block lays out, and numbers from one to the next in shared memory: `FOUR` banks on."""
    stride = inputs + 1 + (FOUR - inputs - 1) % BANKS
    return next((taken for taken in (16, 8, 4, 2) if 4 * taken * stride <= LAID_BYTES), 1), stride


def prepare(name: str, shape: BlockShape, stack: Stack, problem: SparseProblem) -> TensorChain:
    """Make all layers of a stack ready; weights are packed once.

    Raises
    ------
    OutOfMemoryError
        The device's memory does not suffice for so many rows.
    """
    layers = stack.layers
    with cupy().cuda.Device(stack.device), within_memory(_named(layers), problem.rows, _row_bytes(layers, shape)):
        chain = TensorChain(stack.device, name, shape, layers, problem.rows)
        chain.capture()
        return chain


def launch_layers(name: str, shape: BlockShape, step: StepInput) -> StepOutput:
    """Run all layers of the step. All rows are computed in every layer, whether they have died or not; dense output."""
    cp, stack = cupy(), step.stack
    layers: Sequence[DeviceLayer] = stack.layers[step.first : step.last]
    rows = step.features.shape[0]
    with cp.cuda.Device(stack.device), within_memory(_named(layers), rows, _row_bytes(layers, shape)):
        chain = TensorChain(stack.device, name, shape, layers, rows)
        dense = cp.ascontiguousarray(as_dense(step.features), dtype=np.float32)
        outputs, alive = chain.run_counted(dense, step.multiplicity)
        living = cp.flatnonzero(alive).astype(np.int64)
        if step.last - 1 < step.droppable_from or living.size == rows:
            return StepOutput(outputs, np.arange(rows), chain.counts())
        return StepOutput(take_rows(outputs, living), cp.asnumpy(living), chain.counts())


def _named(layers: Sequence[DeviceLayer]) -> str:
    """Say in words which layers a launch takes."""
    if len(layers) == 1:
        return f"a layer of {layers[0].inputs:,} x {layers[0].outputs:,}"
    return f"{len(layers):,} layers of up to {max(layer.outputs for layer in layers):,} outputs"


def _row_bytes(layers: Sequence[DeviceLayer], shape: BlockShape) -> int:
    """Return about what a row takes: its two widest states in halves, and the outputs."""
    widths = [layers[0].inputs, *(layer.outputs for layer in layers)]
    return 2 * shape.planes * max(before + after for before, after in pairwise(widths)) + 4 * widths[-1]


def why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    """Return why the kernels cannot run a network; None if they can."""
    if reason := why_no_warpgroups(machine):
        return reason
    width, widest = inputs.shape[1], machine.block_bytes // 4 - 3 * BANKS
    return None if width <= widest else f"a row has {width:,} inputs; the kernel lays out up to {widest:,}"


def _kernel(name: str, shape: BlockShape, precision: str, summary: str) -> SparseKernel:
    seconds, halves = partial(tensor_seconds, shape.planes, shape.rows, shape.neurons), precision == "float16"
    return SparseKernel(
        name=name,
        device="cuda",
        summary=summary,
        launch=partial(launch_layers, name, shape),
        prepare=partial(prepare, name, shape),
        needs=(GPU,),
        why_not=why_not,
        seconds=seconds,
        precision=precision,
        auto=True,
        fuses=True,
        drops_rows=False,
        own_outputs=True,
        half_rows=halves,
        half_row_seconds=partial(seconds, row_bytes=2) if halves else None,
    )


_SUMMARY = "two of four neighbouring weights, on tensor cores that pass over the others"
KERNELS = (
    _kernel("two_of_four_float32", SPLIT, "float32", f"{_SUMMARY}; split numbers"),
    _kernel("two_of_four_tf32", SINGLE, "tf32", f"{_SUMMARY}; 11 bits"),
    _kernel("two_of_four_float16", SINGLE, "float16", f"{_SUMMARY}; 11 bits, any range"),
)
