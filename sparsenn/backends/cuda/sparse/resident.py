"""resident: the whole network resident on the device, run as one graph of launches.

Layers are cut into *stages*. A stage takes its rows through some layers in shared memory, drops those that died, and
groups those that became equal; counts stay on the device and the host waits for nothing until the end. While rows are
many they run in tiles (`tile_layers`), when few are left each has a block or a cluster of blocks to itself
(`row_layers`): both are launched, and each looks at the count to see whether it is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sparsenn.backends.contract import Features, LayerCounts, SparseKernel, StepInput, StepOutput
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.device import cupy, current_machine
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import program
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.cuda.sparse.chunk_stages import ChunkStages, laid_out
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES, index_type
from sparsenn.backends.cuda.sparse.counted import count_inputs, counted_first, has_finite_products, rows_for
from sparsenn.backends.cuda.sparse.estimates import resident_seconds
from sparsenn.backends.cuda.sparse.packed import PackedNetwork, bytes_of, pack_network
from sparsenn.backends.cuda.sparse.rows import as_dense
from sparsenn.backends.cuda.sparse.stack import Stack
from sparsenn.backends.machine import WARP, Machine
from sparsenn.formats import CSR, Array
from sparsenn.network import Network

__all__ = ["RESIDENT", "ResidentRun", "launch_resident", "stage_lengths", "tile_shape", "why_not"]

KERNEL_BYTES = 1 << 10
"""Shared memory that the kernels declare themselves, rounded up."""

WIDE = 128
"""Width from which on a row is shared by a cluster of blocks: 8 of them then take 1 to 6 microseconds a layer, one
block 3 to 40 (4096 to 65536 neurons, merged)."""

FEW_ROWS = 2
"""Rows of a multiprocessor up to which each has a block to itself, all at once."""

FIRST_STAGES = (3, 3, 3, 3, 6, 6)
"""Layers of the first stages; later ones double. Rows go fastest at the start, and a stage costs some ten
microseconds; (2, 2, 2, 2, 4, …) and (4, 4, 4, …) took 4 to 20 % longer on 1024 x 120."""

COUNTED_WIDTH = 128
"""Outputs of the first layer from which on the inputs are counted in a stage of their own; fewer are computed with the
layers behind them, by testing bits. 64 outputs took 8 % longer in all by counting (1024 x 120), 256 took 23 % less."""

TILED_WIDTH = 1024
"""Width from which on stages with many rows are computed in tiles that pass through the L2 cache. Rows of 64, 256, 1024
and 4096 (the challenge's networks, merged) took 0.35, 0.20 more, 0.09 and 0.37 less of the time that way."""

TILED_LAYERS = 30
"""Layers up to which that is done: laying weights out for it takes milliseconds a layer."""

DISTINCT_FROM = 4
"""Layers after which equal rows are looked for."""

_POINTERS = (
    *("rows_in", "list_in", "count_in", "weights_in", "rows_out", "hashes_out", "weights_out", "next", "count_out"),
    *("kept", "index", "list", "list_count", "table", "counters"),
)
_STAGE = np.dtype(
    [(name, "u8") for name in _POINTERS] + [(name, "i4") for name in ("mask", "first", "last", "droppable_from")]
)

_TILES = program("sparse/tile_layers.cu", dynamic_shared=True, THREADS=(256, 512, 1024), INDEX=INDEX_TYPES)
_ROWS = program("sparse/row_layers.cu", dynamic_shared=True, THREADS=(256, 512), GROUP=(4,), CLUSTER=(1, 8))
_EQUAL = program("sparse/equal_rows.cu")


def stage_lengths(layers: int) -> list[int]:
    """Cut the layers into stages: short ones first, then ever longer ones."""
    lengths: list[int] = []
    while sum(lengths) < layers:
        at = len(lengths)
        wanted = FIRST_STAGES[at] if at < len(FIRST_STAGES) else 2 * lengths[-1]
        lengths.append(min(wanted, layers - sum(lengths)))
    return lengths


def tile_shape(widths: Sequence[int], inputs: int, room: int) -> tuple[int, int, int] | None:
    """Return how a block lays out its shared memory: (log2 of the tile's most rows, floats of a half, of both).

    widths : of all rows that the tile holds in turn.
    inputs : width of the inputs that come in as bits, which then share the second half.
    room : shared memory that a block can have, in bytes.
    None is returned if not even a single row fits.
    """
    for log_rows in range(5, -1, -1):
        stride = (1 << log_rows) + (log_rows > 0)
        half = (max(widths) + 1) * stride
        both = half + max(half, ((inputs << log_rows) >> 5) + 1)
        if 4 * both + KERNEL_BYTES <= room:
            return log_rows, half, both
    return None


def _threads(half: int) -> int:
    """Threads of a block for a tile of so many floats: enough of them on a multiprocessor, whatever the tile."""
    return 256 if half <= 3000 else 512 if half <= 12000 else 1024


def why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    """Say why a network (as it is computed) and inputs cannot run resident; None if they can."""
    widths, room = list(network.sizes[1:]), machine.block_bytes
    if inputs.iso or not inputs.nnz:
        one = np.float32(inputs.values[0] if inputs.nnz else 0)
        weights = network.sparse_layers()[0].weights
        counted = rows_for(network.inputs, room) is not None and has_finite_products(weights, one)
        fits = tile_shape(widths, 0 if counted else network.inputs, room)
    else:
        fits = tile_shape([network.inputs, *widths], 0, room)
    if not fits:
        return f"rows of {max(widths):,} outputs, or {network.inputs:,} inputs, do not fit into shared memory"
    return None


class _Reads(Enum):
    """What a stage reads: the inputs' bits, counted or tested one by one, or rows."""

    COUNTS = "counts"
    BITS = "bits"
    ROWS = "rows"


@dataclass(frozen=True)
class _Cut:
    """One stage: its layers, the widths of all rows in it, and whether equal rows are looked for at its end."""

    first: int
    last: int
    widths: tuple[int, ...]
    distinct: bool
    reads: _Reads

    @property
    def lists(self) -> bool:
        """Whether a list says which of the rows it leaves are meant."""
        return self.distinct or self.reads is _Reads.COUNTS


def _cuts(widths: tuple[int, ...], reads: _Reads, deduplicate: bool) -> list[_Cut]:
    """Cut a network of these widths into stages, of which the first reads the inputs."""
    layers = len(widths) - 1
    lengths = [1, *stage_lengths(layers - 1)] if reads is _Reads.COUNTS else stage_lengths(layers)
    ends = list(accumulate(lengths))
    return [
        _Cut(
            first,
            last,
            widths[first : last + 1],
            deduplicate and last >= DISTINCT_FROM,
            _Reads.ROWS if first else reads,
        )
        for first, last in zip([0, *ends], ends, strict=False)
    ]


class ResidentRun:
    """All stages for given inputs, captured as one CUDA graph that can be launched again and again.

    Parameters
    ----------
    network : from `pack_network`.
    inputs : on the device; CSR whose entries all have one value, which come in as bits, or dense float32 rows.
    multiplicity : (rows,) int64 on the host, how many inputs each row stands for; used for counting only.
    droppable_from : layer after which rows of zeros may be dropped.
    deduplicate : whether equal rows are computed once.
    """

    def __init__(
        self,
        network: PackedNetwork,
        inputs: Features,
        multiplicity: Array,
        droppable_from: int,
        deduplicate: bool,
    ) -> None:
        cp = cupy()
        self.network = network
        self.inputs: Any = inputs
        self.rows = inputs.shape[0]
        self._multiplicity = cp.asarray(multiplicity, np.int32)
        self._one = np.float32(inputs.values[0].item() if isinstance(inputs, CSR) and inputs.nnz else 0)
        self._droppable_from = droppable_from
        machine = current_machine()
        self._room, self._multiprocessors = machine.block_bytes, machine.multiprocessors
        self._threads = WARP * machine.warps
        self._few = FEW_ROWS * machine.multiprocessors
        bits_fit = tile_shape(network.widths[1:], network.widths[0], self._room) is not None
        counts = isinstance(inputs, CSR) and (network.widths[1] >= COUNTED_WIDTH or not bits_fit)
        self._counted = counted_first(network, self._one, self._room) if counts else None
        reads = _Reads.ROWS if not isinstance(inputs, CSR) else _Reads.COUNTS if self._counted else _Reads.BITS
        self._cuts = _cuts(network.widths, reads, deduplicate)
        in_tiles = [number for number, cut in enumerate(self._cuts) if self._takes_tiles(cut)]
        ranges = [(self._cuts[number].first, self._cuts[number].last) for number in in_tiles]
        self._place_of = {number: place for place, number in enumerate(in_tiles)}
        self._chunks = ChunkStages(laid_out(network, ranges, self.rows), self.rows) if in_tiles else None
        self.stream = cp.cuda.Stream(non_blocking=True)
        self._allocate()
        self._graph = self._capture()

    def _takes_tiles(self, cut: _Cut) -> bool:
        """Whether a stage is computed by `ChunkStages` while rows are many."""
        wide = max(cut.widths) >= TILED_WIDTH
        return cut.reads is _Reads.ROWS and wide and cut.last <= TILED_LAYERS and self.rows > self._few

    def _allocate(self) -> None:
        cp = cupy()
        rows, count = max(1, self.rows), len(self._cuts)
        size = rows * max(cut.widths[-1] for cut in self._cuts)
        places = 1 << (2 * rows - 1).bit_length()
        self._buffers = [cp.empty(size, np.float32) for _ in range(min(2, count))]
        self._hashes = cp.empty(rows, np.uint64)
        self._weights = [cp.empty(rows, np.int32) for _ in range(2)]
        self._links = cp.empty((count, 4, rows), np.int32)  # next, kept, index, list
        self._tables = cp.empty((sum(cut.distinct for cut in self._cuts), places), np.int32)
        self._counters = cp.zeros((len(self.network.widths) - 1, 4), np.uint64)
        self._counts = cp.zeros((count, 2), np.int32)  # rows left, and distinct ones
        self._start = cp.asarray([self.rows], np.int32)
        self._owner = cp.empty(rows, np.int32)
        self._host_owner = np.frombuffer(cp.cuda.alloc_pinned_memory(4 * rows), np.int32, rows)
        self._stages = cp.asarray(np.frombuffer(self._records(places).tobytes(), np.uint8))

    def _records(self, places: int) -> Array:
        """Build the `Stage` records of `sparse/resident.cuh`."""
        stages = np.zeros(len(self._cuts), _STAGE)
        tables = iter(self._tables)
        stages["mask"], stages["droppable_from"] = places - 1, self._droppable_from
        stages["hashes_out"], stages["counters"] = self._hashes.data.ptr, self._counters.data.ptr
        stages["count_in"][0], stages["weights_in"][0] = self._start.data.ptr, self._multiplicity.data.ptr
        if not isinstance(self.inputs, CSR):
            stages["rows_in"][0] = self.inputs.data.ptr
        for number, (stage, cut) in enumerate(zip(stages, self._cuts, strict=True)):
            stage["first"], stage["last"] = cut.first, cut.last
            stage["rows_out"] = self._buffers[number % 2].data.ptr
            stage["weights_out"] = self._weights[number % 2].data.ptr
            stage["count_out"] = self._counts[number].data.ptr
            stage["next"] = self._links[number, 0].data.ptr
            if cut.lists:
                stage["list_count"] = self._counts[number, 1:].data.ptr
                stage["list"] = self._links[number, 3].data.ptr
            if cut.distinct:
                stage["table"] = next(tables).data.ptr
                stage["kept"], stage["index"] = (self._links[number, column].data.ptr for column in (1, 2))
        for before, after in pairwise(stages):
            after["rows_in"], after["weights_in"] = before["rows_out"], before["weights_out"]
            after["list_in"] = before["list"]
            after["count_in"] = before["list_count"] or before["count_out"]
        return stages

    def _capture(self) -> Any:
        """Record one run as a graph."""
        cupy().cuda.get_current_stream().synchronize()  # what was copied and cleared there is read on `stream`
        with self.stream:
            self._enqueue()  # outside of the capture first: kernels are compiled and shared memory is granted
            self.stream.synchronize()
            self.stream.begin_capture()
            self._enqueue()
            return self.stream.end_capture()

    def _enqueue(self) -> None:
        runtime = cupy().cuda.runtime
        for array, value in ((self._counters, 0), (self._counts, 0), (self._tables, 255)):
            if array.nbytes:
                runtime.memsetAsync(array.data.ptr, value, array.nbytes, self.stream.ptr)
        if self._chunks:
            self._chunks.clear(self.stream)
        for number, cut in enumerate(self._cuts):
            stage = self._stages[number * _STAGE.itemsize :]
            if cut.reads is _Reads.ROWS:
                self._enqueue_rows(stage, cut, self._place_of.get(number))
            else:
                self._enqueue_inputs(stage, cut, self.inputs)
            if cut.distinct:
                blocks = min(-(-max(1, self.rows) // 8), 8 * self._multiprocessors)
                _EQUAL.kernel("equal_rows")((blocks,), (256,), (stage, np.int32(cut.widths[-1])))
        follow = (self._stages, np.int32(len(self._cuts)), np.int32(self.rows), self._owner)
        _EQUAL.kernel("follow_rows")((-(-max(1, self.rows) // 256),), (256,), follow)
        size, kind = self._owner.nbytes, runtime.memcpyDeviceToHost
        runtime.memcpyAsync(self._host_owner.ctypes.data, self._owner.data.ptr, size, kind, self.stream.ptr)

    def _enqueue_inputs(self, stage: Any, cut: _Cut, inputs: CSR) -> None:
        entries = (inputs.indptr, inputs.indices, self._one)
        if self._counted:
            count_inputs(self.network.pointer, stage, self._counted, *entries, self._room)
        else:
            shape = tile_shape(cut.widths[1:], cut.widths[0], self._room)
            self._enqueue_tiles(
                "tile_inputs", (self.network.pointer, stage), shape, entries, index_type(inputs.indices)
            )

    def _enqueue_rows(self, stage: Any, cut: _Cut, chunked: int | None) -> None:
        few, common = np.int32(self._few), (self.network.pointer, stage)
        if chunked is not None and self._chunks:
            self._chunks.enqueue(chunked, *common, self._few)
        else:
            self._enqueue_tiles("tile_rows", (*common, few), tile_shape(cut.widths, 0, self._room), ())
        length = max(cut.widths) + 1
        threads, cluster = (512, 8) if length > WIDE else (256, 1)
        kernel = _ROWS.kernel("few_rows", THREADS=threads, CLUSTER=cluster)
        blocks = cluster * max(1, min(self.rows, self._few))
        kernel((blocks,), (threads,), (*common, few, np.int32(length)), shared_mem=8 * length)

    def _enqueue_tiles(
        self,
        name: str,
        first: tuple[Any, ...],
        shape: tuple[int, int, int] | None,
        rest: tuple[Any, ...],
        index: str = INDEX_TYPES[0],
    ) -> None:
        """Launch as many blocks as the device holds; they take the tiles in turn."""
        assert shape is not None, "`why_not` refuses what does not fit"
        log_rows, half, both = shape
        threads, memory = _threads(half), 4 * both
        kernel = _TILES.kernel(name, THREADS=threads, INDEX=index)
        resident = max(1, min(self._threads // threads, self._room // (memory + KERNEL_BYTES)))
        blocks = max(1, min(self.rows, self._multiprocessors * resident))
        kernel((blocks,), (threads,), (*first, np.int32(log_rows), np.int32(half), *rest), shared_mem=memory)

    def launch(self) -> None:
        """Start a run on `stream`, from inputs and weights on the device to `owners` on the host; wait for nothing."""
        self._graph.launch(self.stream)

    def owners(self) -> Array:
        """Wait for the run; return for each input the row of `features` that it has, -1 if it died: (rows,) int32."""
        self.stream.synchronize()
        return self._host_owner[: self.rows].copy()

    def features(self) -> Any:
        """Return the rows at the end, on the device, (rows left, outputs) float32."""
        number, cut = len(self._cuts) - 1, self._cuts[-1]
        left = int(self._counts[number, int(cut.lists)])
        width = cut.widths[-1]
        rows = self._buffers[number % 2][: self.rows * width].reshape(self.rows, width)
        return rows[self._links[number, 3, :left]] if cut.lists else rows[:left].copy()

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer."""
        distinct = {
            cut.last - 1: int(left[1]) for cut, left in zip(self._cuts, self._counts.get(), strict=True) if cut.distinct
        }
        return tuple(
            LayerCounts("resident", rows, active, nonzeros, edges, distinct.get(layer))
            for layer, (rows, active, nonzeros, edges) in enumerate(self._counters.get().tolist())
        )


def _as_bits(features: Features) -> bool:
    return isinstance(features, CSR) and (features.iso or not features.nnz)


def launch_resident(step: StepInput) -> StepOutput:
    """Run layers at once, to the stack's last; rows that die or become equal are dealt with on the device."""
    stack: Stack = step.stack
    cp = cupy()
    layers = stack.layers[step.first : step.last]
    rows, widest = step.features.shape[0], max(layer.outputs for layer in layers)
    with cp.cuda.Device(stack.device), within_memory("the layers", rows, bytes_of(1, widest)):
        packed = kept(stack, ("packed", step.first, step.last), lambda: pack_network(layers))
        features = step.features if _as_bits(step.features) else cp.ascontiguousarray(as_dense(step.features))
        droppable_from = max(0, step.droppable_from - step.first)
        run = ResidentRun(packed, features, step.multiplicity, droppable_from, step.deduplicate)
        run.launch()
        owner = run.owners().astype(np.int64)
        return StepOutput(run.features(), np.zeros(0, np.int64), run.counts(), owner)


RESIDENT = SparseKernel(
    name="resident",
    device="cuda",
    summary="all layers in one graph, rows kept in shared memory, dropped and grouped on the device",
    launch=launch_resident,
    needs=(ANY_GPU, "rows that fit into shared memory"),
    auto=True,
    why_not=why_not,
    seconds=resident_seconds,
    fuses=True,
    groups_rows=True,
)
