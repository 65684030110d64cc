"""resident: the whole network resident on the device, run as one graph of launches, captured once.

Layers are cut into *stages*. A stage takes its rows through some layers in shared memory, drops those that died, and
groups those that became equal; counts stay on the device and the host waits for nothing until the end. While rows are
many they run in tiles (`tile_layers`), when few are left each has a block or a cluster of blocks to itself
(`row_layers`): both are launched, and each reads the count to see whether it is meant, so that one graph serves any
smaller number of inputs. Rows that are many and wide, or that do not fit into shared memory, run as in `chunks`
(`chunk_layers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features, LayerCounts, RowMap, RowsLeft, SparseProblem, SparseRows
from sparsenn.backends.cuda.runtime.availability import ANY_GPU
from sparsenn.backends.cuda.runtime.device import as_current, cupy, current_machine
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program, rehearsal
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.row_copies import as_rows
from sparsenn.backends.cuda.runtime.streams import StreamOrder, captured
from sparsenn.backends.cuda.sparse.conversion import INDEX_TYPES
from sparsenn.backends.cuda.sparse.priors import resident_seconds
from sparsenn.backends.cuda.sparse.resident.chunk_stages import ChunkStages, laid_out
from sparsenn.backends.cuda.sparse.resident.counted import count_inputs, counted_first, rows_for
from sparsenn.backends.cuda.sparse.resident.packed import PackedNetwork, bytes_of, pack_network
from sparsenn.backends.cuda.sparse.resident.stages import (
    CACHE_BYTES,
    CLUSTER,
    FIRST_STAGE,
    KERNEL_BYTES,
    TILED_LAYERS,
    TILED_WIDTH,
    WIDE,
    few_rows,
    fits_in_shared,
    rows_at_once,
    stage_lengths,
)
from sparsenn.backends.cuda.sparse.row_slices import NOTHING
from sparsenn.backends.cuda.sparse.rows import to_dense
from sparsenn.backends.cuda.sparse.stack import Stack
from sparsenn.backends.cuda.transfer.incoming import QueuedCheck, UncheckedCSR
from sparsenn.backends.kernel_records import SparseKernel
from sparsenn.backends.machine import WARP, Machine
from sparsenn.formats import CSR, Array, index_dtype
from sparsenn.network import Network

CALL_BYTES = 32  # size of a `Call` record in `sparse/resident.cuh`, in bytes

THREADS = 256
CACHE_LINE = 128  # bytes

_BEGIN = program("sparse/begin_run.cu")


class Call:
    """The `Call` record of a run, on the device; set `stages`, the first `Stage` record, before a run.

    `weights` share a block, in that order: launches are so short that they would wait for them. A run zeroes `tallies`.
    """

    stages: Any

    def __init__(self, weights: Sequence[Any], tallies: Any) -> None:
        self.record: Any = cupy().zeros(CALL_BYTES, np.uint8)
        self._kernel = _BEGIN.kernel("begin_run")
        every = int(weights[-1].data.ptr + weights[-1].nbytes - weights[0].data.ptr)
        size = every if every <= CACHE_BYTES else 0  # which a run begins by bringing into the L2 cache
        self._always = weights[0], np.int64(size), tallies, np.int32(tallies.size)
        self._grid = (max(1, -(-size // (CACHE_LINE * THREADS))),)

    def begin(self, rows: int, features: Any, weights: Any = None, faults: Any = None) -> None:
        """Queue what sets the record, on the current stream; wait for nothing.

        `weights`, int32, are inputs per row, for counting. If one of `faults`, uint64, is not 0, no row is taken.
        """
        entries: tuple[Any, ...] = (NOTHING, NOTHING, NOTHING)
        matrix: Any = NOTHING
        if isinstance(features, CSR):
            entries = features.indptr, features.indices, features.values if features.values.size else NOTHING
        elif features is not None:
            matrix = features
        stands_for = NOTHING if weights is None else weights
        found = (NOTHING, np.int32(0)) if faults is None else (faults, np.int32(faults.size))
        arguments = (self.record, self.stages, np.int32(rows), *entries, matrix, stands_for, *self._always, *found)
        self._kernel(self._grid, (THREADS,), arguments)


_POINTERS = (
    *("rows_in", "list_in", "count_in", "weights_in", "rows_out", "hashes_out", "weights_out", "next", "count_out"),
    *("kept", "index", "list", "list_count", "table", "counters"),
)
_STAGE = np.dtype(
    [(name, "u8") for name in _POINTERS] + [(name, "i4") for name in ("mask", "first", "last", "droppable_from")]
)

TILE_THREADS = (256, 512, 1024)  # of a block: the fewest that fill half of a multiprocessor

_TILES = program("sparse/tile_layers.cu", dynamic_shared=True, THREADS=TILE_THREADS, INDEX=INDEX_TYPES)
_ROWS = program("sparse/row_layers.cu", dynamic_shared=True, THREADS=(128, 256), CLUSTER=(1, CLUSTER))
_EQUAL = program("sparse/equal_rows.cu")


def tile_shape(widths: Sequence[int], inputs: int, room: int) -> tuple[int, int, int] | None:
    """Return (log2 of the tile's most rows, floats of a half, of both) in a block's shared memory; None if no row fits.

    `widths` are of all rows that the tile holds one by one; inputs that come in as bits share the second half.
    """
    for log_rows in range(5, -1, -1):
        stride = (1 << log_rows) + (log_rows > 0)
        half = (max(widths) + 1) * stride
        both = half + max(half, ((inputs << log_rows) >> 5) + 1)
        if 4 * both + KERNEL_BYTES <= room:
            return log_rows, half, both
    return None


def why_not(machine: Machine, network: Network, inputs: CSR) -> str | None:
    """Say why a network (as it is computed) and inputs cannot run resident; None if they can."""
    room, bits = machine.block_bytes, inputs.iso or not inputs.nnz
    if not bits or rows_for(network.inputs, room) is not None or tile_shape(network.sizes[1:], network.inputs, room):
        return None
    return f"the bits of {network.inputs:,} inputs do not fit into shared memory"


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
        return self.distinct or self.reads is _Reads.COUNTS


def _cuts(widths: tuple[int, ...], reads: _Reads, deduplicate: bool, at_once: bool) -> list[_Cut]:
    """Cut a network into stages; with `at_once`, dropping or grouping rows gains nothing."""
    layers = len(widths) - 1
    first = {_Reads.COUNTS: 1, _Reads.BITS: min(layers, FIRST_STAGE), _Reads.ROWS: 0}[reads]
    if at_once:
        lengths = [length for length in (first, layers - first) if length]
    else:
        lengths = [1, *stage_lengths(layers - 1)] if reads is _Reads.COUNTS else stage_lengths(layers)
    ends = list(accumulate(lengths))
    return [
        _Cut(
            first,
            last,
            widths[first : last + 1],
            deduplicate and not at_once and last > FIRST_STAGE,
            _Reads.ROWS if first else reads,
        )
        for first, last in zip([0, *ends], ends, strict=False)
    ]


def _reads(widths: tuple[int, ...], form: str, room: int) -> _Reads:
    if form != "iso":
        return _Reads.ROWS
    bits_fit = tile_shape(widths[1:], widths[0], room) is not None
    counts = rows_for(widths[0], room) is not None and (widths[1] >= WIDE or not bits_fit)
    return _Reads.COUNTS if counts else _Reads.BITS


def _apart(tallies: Any, layers: int) -> tuple[Any, Any]:
    """Return a chain's counters, (layers, 4) uint64, and of each cut, (cuts, 2) int32, rows left and distinct ones."""
    return tallies[: 4 * layers].reshape(layers, 4), tallies[4 * layers :].view(np.int32).reshape(-1, 2)


class ResidentChain:
    """All stages, captured as one CUDA graph; a `SparseChain`. Rows of one value come in as bits, others dense."""

    def __init__(self, device: int, network: PackedNetwork, problem: SparseProblem) -> None:
        machine = current_machine()
        self.network = network
        self.capacity = problem.rows
        self._device = device
        self._droppable_from = problem.droppable_from
        self._room, self._multiprocessors = machine.block_bytes, machine.multiprocessors
        self._threads = WARP * machine.warps
        self._few = few_rows(machine)
        self._index = np.dtype(index_dtype(network.widths[0]))
        self._reads = _reads(network.widths, problem.form, self._room)
        self._counted = counted_first(network, self._room) if self._reads is _Reads.COUNTS else None
        at_once = self.capacity <= rows_at_once(machine, CLUSTER)
        self._cuts = _cuts(network.widths, self._reads, problem.deduplicate, at_once)
        in_tiles = [number for number, cut in enumerate(self._cuts) if self._takes_tiles(cut)]
        ranges = [(self._cuts[number].first, self._cuts[number].last) for number in in_tiles]
        self._place_of = {number: place for place, number in enumerate(in_tiles)}
        self._chunks = ChunkStages(laid_out(network, ranges, self.capacity), self.capacity) if in_tiles else None
        self._allocate(problem.form)
        self._call = Call(network.arrays, self._tallies)
        records = self._records(self._call.record.data.ptr).tobytes()
        self._stages = self._call.stages = cupy().asarray(np.frombuffer(records, np.uint8))
        self._order = StreamOrder()
        self._call.begin(0, None)  # the launches before the capture have no rows to take
        with rehearsal():
            self._enqueue()
        self._graph = captured(self._enqueue)

    def _takes_tiles(self, cut: _Cut) -> bool:
        wide = max(cut.widths) >= TILED_WIDTH and cut.last <= TILED_LAYERS and self.capacity > self._few
        return cut.reads is _Reads.ROWS and (wide or not self._fits(cut))

    def _fits(self, cut: _Cut) -> bool:
        return fits_in_shared(max(cut.widths), self._room)

    def _allocate(self, form: str) -> None:
        cp = cupy()
        rows, count, layers = max(1, self.capacity), len(self._cuts), len(self.network.widths) - 1
        size = rows * max(cut.widths[-1] for cut in self._cuts)
        places = 1 << (2 * rows - 1).bit_length()
        self._buffers = [cp.empty(size, np.float32) for _ in range(min(2, count))]
        self._dense = cp.empty((rows, self.network.widths[0]) if form == "csr" else 0, np.float32)
        self._hashes = cp.empty(rows, np.uint64)
        self._weights = [cp.empty(rows, np.int32) for _ in range(2)]
        self._links = cp.empty((count, 4, rows), np.int32)  # next, kept, index, list
        self._tables = cp.empty((sum(cut.distinct for cut in self._cuts), places), np.int32)
        self._tallies = cp.zeros(4 * layers + count, np.uint64)
        self._counters, self._counts = _apart(self._tallies, layers)
        self._owner = cp.empty(rows, np.int32)
        cp.cuda.runtime.memsetAsync(self._owner.data.ptr, 255, self._owner.nbytes, cp.cuda.get_current_stream().ptr)
        last = self._buffers[(count - 1) % 2]
        self._left = last[: rows * self.network.widths[-1]].reshape(rows, self.network.widths[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        arrays = (
            *(*self._buffers, *self._weights, self._dense, self._hashes, self._links, self._tables, self._tallies),
            *(self._owner, self._stages),
        )
        return sum(int(array.nbytes) for array in arrays) + (self._chunks.nbytes if self._chunks else 0)

    def _records(self, count_in: int) -> Array:
        """Build the `Stage` records without the first one's inputs; the number of rows is at address `count_in`."""
        stages = np.zeros(len(self._cuts), _STAGE)
        tables = iter(self._tables)
        stages["mask"], stages["droppable_from"] = self._tables.shape[1] - 1, self._droppable_from
        stages["hashes_out"], stages["counters"] = self._hashes.data.ptr, self._counters.data.ptr
        stages["count_in"][0] = count_in
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

    def _enqueue(self) -> None:
        runtime, stream = cupy().cuda.runtime, cupy().cuda.get_current_stream()
        if self._tables.nbytes:
            runtime.memsetAsync(self._tables.data.ptr, 255, self._tables.nbytes, stream.ptr)
        if self._chunks:
            self._chunks.clear(stream)
        for number, cut in enumerate(self._cuts):
            stage = self._stages[number * _STAGE.itemsize :]
            if cut.reads is _Reads.ROWS:
                self._enqueue_rows(stage, cut, self._place_of.get(number))
            else:
                self._enqueue_inputs(stage, cut)
            if cut.distinct:
                blocks = min(-(-max(1, self.capacity) // 8), 8 * self._multiprocessors)
                _EQUAL.kernel("equal_rows")((blocks,), (256,), (stage, np.int32(cut.widths[-1])))
        follow = (self._stages, np.int32(len(self._cuts)), self._call.record, self._owner)
        _EQUAL.kernel("follow_rows")((-(-max(1, self.capacity) // 256),), (256,), follow)

    def _enqueue_inputs(self, stage: Any, cut: _Cut) -> None:
        index = INDEX_TYPES[0] if self._index == np.uint16 else INDEX_TYPES[1]
        common, call = (self.network.pointer, stage), self._call.record
        if self._counted:
            count_inputs(*common, self._counted, call, self.capacity, index, self._room)
        else:
            shape = tile_shape(cut.widths[1:], cut.widths[0], self._room)
            self._enqueue_tiles("tile_inputs", (*common, np.int32(self._few)), shape, (call,), index)

    def _enqueue_rows(self, stage: Any, cut: _Cut, chunked: int | None) -> None:
        few, common = np.int32(self._few), (self.network.pointer, stage)
        if chunked is not None and self._chunks and not self._fits(cut):
            self._chunks.enqueue(chunked, *common, 0)
            return
        if chunked is not None and self._chunks:
            self._chunks.enqueue(chunked, *common, self._few)
        elif self.capacity > self._few:
            self._enqueue_tiles("tile_rows", (*common, few), tile_shape(cut.widths, 0, self._room), ())
        length = max(cut.widths) + 1
        threads, cluster = (256, CLUSTER) if length > WIDE else (128, 1)
        kernel = _ROWS.kernel("few_rows", THREADS=threads, CLUSTER=cluster)
        blocks = cluster * max(1, min(self.capacity, rows_at_once(current_machine(), cluster)))
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
        memory = 4 * both
        tiles = max(1, self._room // (memory + KERNEL_BYTES))  # that a multiprocessor has room for
        threads = next((size for size in TILE_THREADS if 2 * size * tiles >= self._threads), TILE_THREADS[-1])
        kernel = _TILES.kernel(name, THREADS=threads, INDEX=index)
        resident = max(1, min(self._threads // threads, tiles))
        blocks = max(1, min(self.capacity, self._multiprocessors * resident))
        kernel((blocks,), (threads,), (*first, np.int32(log_rows), np.int32(half), *rest), shared_mem=memory)

    def run(self, features: Features, counting: bool, multiplicity: Array | None = None) -> RowsLeft:
        """Queue a run on the current stream; see `SparseChain.run`. It counts whether it is asked to or not."""
        rows = features.shape[0]
        assert rows <= self.capacity, f"{rows:,} rows are more than the {self.capacity:,} that this was made for"
        with as_current(self._device):
            stream = self._order.enter()
            stands_for = None if multiplicity is None else cupy().asarray(multiplicity, np.int32)
            faults = features.found if isinstance(features, UncheckedCSR) else None
            self._call.begin(rows, self._readable(features), stands_for, faults)
            if stream.is_capturing():  # where CUDA takes no graph
                self._enqueue()
            else:
                self._graph.launch(stream)
            return RowsLeft(self._left, RowMap(self._owner[:rows]))

    def _readable(self, features: Features) -> Features:
        if not isinstance(features, CSR):
            return as_rows(features, np.float32)
        if self._reads is _Reads.ROWS:
            return to_dense(features, self._dense[: features.shape[0]])
        assert features.values.size <= 1, "rows of many values are given to what was made for one"
        assert features.indices.dtype == self._index, "a check brings indices to their type"
        return features

    def counts(self) -> tuple[LayerCounts, ...]:
        """Return what the last run counted, layer by layer; waits for it."""
        with as_current(self._device):
            self._order.enter()
            counters, left = _apart(self._tallies.get(), len(self._counters))
        distinct = {cut.last - 1: int(found[1]) for cut, found in zip(self._cuts, left, strict=True) if cut.distinct}
        return tuple(
            LayerCounts("resident", rows, active, nonzeros, edges, distinct.get(layer))
            for layer, (rows, active, nonzeros, edges) in enumerate(counters.tolist())
        )


def prepare(stack: Stack, problem: SparseProblem) -> ResidentChain:
    """Make all layers of a stack ready, packed once for all problems; raises OutOfMemoryError for too many rows."""
    layers = stack.layers
    widest = max(layer.outputs for layer in layers)
    with as_current(stack.device), within_memory("the layers", problem.rows, bytes_of(1, widest)):
        packed = cache_on_device(stack, "packed", lambda: pack_network(layers))
        return ResidentChain(stack.device, packed, problem)


def _queue_check(rows: SparseRows) -> QueuedCheck:
    """Begin to check sparse rows that are on the current device."""
    with within_memory("the inputs", rows.shape[0], 16):
        return QueuedCheck(rows)


RESIDENT = SparseKernel(
    name="resident",
    device="cuda",
    summary="all layers in one graph, rows kept in shared memory, dropped and grouped on the device",
    prepare=prepare,
    needs=(ANY_GPU, "inputs whose bits fit into shared memory, where all entries have one value"),
    auto=True,
    why_not=why_not,
    seconds=resident_seconds,
    fuses=True,
    groups_rows=True,
    queue_check=_queue_check,
    reproducible=True,
)
