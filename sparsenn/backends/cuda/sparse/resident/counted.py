"""count_inputs on the host side: laying the first layer's weights out by value, and launching.

For each weight of an output, `sparse/count_inputs.cu` counts the active inputs of many rows at a time, and multiplies
once, wherever the sums are exact in any order; elsewhere it adds edge by edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.sparse.conversion import index_type
from sparsenn.backends.cuda.sparse.resident.packed import PackedNetwork
from sparsenn.backends.machine import WARP
from sparsenn.formats import CSC, Array
from sparsenn.formats.conversion import scan

QUAD = 4  # edges that a lane reads at a time
STATIC_BYTES = 1 << 10  # shared memory that the kernel declares itself and that the system takes of a block, rounded up
MOST_INDEX = 0xFFFF  # largest index that 16 bits hold
_MOST_THREADS = {32: 512, 16: 1024, 8: 1024}  # of a block by rows of a tile, as in the kernel: 128 or 64 registers each

_LEAST_THREADS = 128

# Powers of a float32, as its bits have them.
MOST_POWER = 255  # of a number that is not finite
SCALE = 150  # at which the digits are an integer

MOST_UNITS = 1 << 25  # at most: from half of that on, sums of integers need not be float32 numbers

_COUNTED = np.dtype([("arrays", "u8", (4,)), ("units", "f4"), ("exponent", "i4")])

# Tiles of 32 rows are for narrow inputs only: 65,536 words of 32 bits are more shared memory than any block has.
_PROGRAMS = {
    (index, edge): program("sparse/count_inputs.cu", dynamic_shared=True, INDEX=(index,), EDGE=(edge,), ROWS=rows)
    for index, edge, rows in (
        ("index16", "index16", (32, 16, 8)),
        ("index16", "index32", (16, 8)),
        ("index32", "index32", (16, 8)),
    )
}


@dataclass(frozen=True, eq=False)
class CountedLayer:
    """A layer's weights as the kernel reads them. Slice s holds the outputs 32·s to 32·s + 31.

    `slices` has the first of `quads` and of `runs` of each slice. `runs[slice's first + k, output % 32]` is the number,
    among the output's quads, that follows the last of its k-th run (the complement for a single edge), and the bits of
    the weight; `quads`, uint16 or int32, the inputs of four edges, filled up with `inputs`, which is always zero. All
    weights are multiples of 2^exponent; `units` is the largest sum of the sizes of an output's weights in such units,
    at most 2^25, or infinity where a weight is not finite.
    """

    shape: tuple[int, int]  # (inputs, outputs)
    slices: Any  # (slices, 2) int32
    run_counts: Any  # (32 * slices,) int32, runs of each output; 0 behind the last output
    runs: Any  # (runs, 32, 2) int32
    quads: Any  # (quads, 32, 4)
    units: np.float32
    exponent: int
    pointer: Any = field(default=None, repr=False)  # device array of one `Counted` record

    @property
    def nbytes(self) -> int:
        """Bytes of the four arrays."""
        return sum(int(array.nbytes) for array in (self.slices, self.run_counts, self.runs, self.quads))


# ---- Laying out the weights -------------------------------------------------------------------------------------


def pack_counted(weights: CSC) -> CountedLayer:
    """Lay out a layer's weights on the host, distinguished by their bits: 0.0 and -0.0 are different."""
    inputs, outputs = weights.shape
    slices = -(-outputs // WARP)
    column = np.searchsorted(weights.indptr, np.arange(weights.nnz), side="right") - 1
    bits = np.ascontiguousarray(np.broadcast_to(weights.values.astype(np.float32), (weights.nnz,))).view(np.uint32)
    keys = column.astype(np.int64) << 32 | bits.astype(np.int64)
    order = np.lexsort(np.stack([weights.indices.astype(np.int64), keys]))
    keys, column, indices = keys[order], column[order], weights.indices[order].astype(np.int64)

    begins = np.ones(weights.nnz, bool)
    begins[1:] = keys[1:] != keys[:-1]
    run_of = np.cumsum(begins) - 1
    start = np.flatnonzero(begins)
    length = np.diff(np.append(start, weights.nnz))
    size = (length + QUAD - 1) // QUAD
    owner = column[start]
    first_run = np.searchsorted(owner, np.arange(slices * WARP + 1))
    run_counts, quads_before = np.diff(first_run), scan(size)
    quad_counts = np.diff(quads_before[first_run])
    begin = quads_before[:-1] - quads_before[first_run[owner]]

    quad_starts = scan(quad_counts.reshape(slices, WARP).max(axis=1))
    run_starts = scan(run_counts.reshape(slices, WARP).max(axis=1))
    runs = np.zeros((int(run_starts[-1]), WARP, 2), np.int32)
    line = run_starts[owner // WARP] + np.arange(start.size) - first_run[owner]
    last = begin + size
    runs[line, owner % WARP, 0] = np.where(length == 1, ~last, last).astype(np.int32)
    runs[line, owner % WARP, 1] = (keys[start] & 0xFFFFFFFF).astype(np.uint32).view(np.int32)

    filled = bool(((length % QUAD != 0) & (length > 1)).any())
    narrow = inputs <= MOST_INDEX or (inputs == MOST_INDEX + 1 and not filled)
    quads = np.full(
        (int(quad_starts[-1]), WARP, QUAD),
        inputs if not narrow or inputs <= MOST_INDEX else 0,
        np.uint16 if narrow else np.int32,
    )
    place = np.arange(weights.nnz) - start[run_of]
    line = quad_starts[column // WARP] + begin[run_of] + place // QUAD
    quads[line, column % WARP, place % QUAD] = indices.astype(quads.dtype)

    bounds = np.stack([quad_starts[:-1], run_starts[:-1]], axis=1).astype(np.int32)
    arrays = (bounds, run_counts.astype(np.int32), runs, quads)
    units, exponent = _in_units(keys & 0xFFFFFFFF, column, outputs)
    return CountedLayer((inputs, outputs), *arrays, units, exponent)


def _in_units(bits: Array, column: Array, outputs: int) -> tuple[np.float32, int]:
    """Return `units` and `exponent` of a layer; `bits` (int64) are those of its weights, `column` their outputs."""
    power, digits = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if not digits.size or not bool(((power > 0) | (digits > 0)).any()):
        return np.float32(0), 0
    if bool((power == MOST_POWER).any()):
        return np.float32(np.inf), 0
    digits = np.where(power > 0, digits | 1 << 23, digits)
    power = np.maximum(power, 1) - SCALE  # a weight is digits * 2^power
    lowest = np.where(digits > 0, digits & -digits, 1 << 24)
    zeros = np.searchsorted(1 << np.arange(25), lowest)
    exponent = int((power + zeros)[digits > 0].min())
    sizes = np.ldexp(digits.astype(np.float64), (power - exponent).astype(np.int32))
    most = float(np.bincount(column, weights=sizes, minlength=outputs).max())
    return np.float32(min(most, MOST_UNITS)), exponent


def _record(arrays: Sequence[Any], units: np.float32, exponent: int) -> Any:
    record = np.zeros(1, _COUNTED)
    record["arrays"] = [array.data.ptr for array in arrays]
    record["units"], record["exponent"] = units, exponent
    return np.frombuffer(record.tobytes(), np.uint8)


# ---- On the device ----------------------------------------------------------------------------------------------


def counted_first(network: PackedNetwork, room: int) -> CountedLayer | None:
    """Return a network's first layer laid out for counting, cached; None if not even 8 rows of inputs fit."""
    if rows_for(network.widths[0], room) is None:
        return None
    return cache_on_device(network, "counted", lambda: _copied(pack_counted(network.layers[0].host.weights)))


def _copied(layer: CountedLayer) -> CountedLayer:
    slices, run_counts, runs, quads = arrays = to_device([layer.slices, layer.run_counts, layer.runs, layer.quads])
    (pointer,) = to_device([_record(arrays, layer.units, layer.exponent)])
    return replace(layer, slices=slices, run_counts=run_counts, runs=runs, quads=quads, pointer=pointer)


def word_bytes(inputs: int, rows: int) -> int:
    """Return the dynamic shared memory of a block: a word of `rows` bits for each input and one of zeros, in bytes."""
    return 4 * (inputs * rows // 32 + 1)


def rows_for(inputs: int, room: int) -> int | None:
    """Return the rows of a tile: as many of 32, 16 and 8 as fit, or None if not even 8 do."""
    choices = (32, 16, 8) if inputs <= MOST_INDEX else (16, 8)
    return next((rows for rows in choices if word_bytes(inputs, rows) + STATIC_BYTES <= room), None)


def block_threads(inputs: int, rows: int, room: int) -> int:
    """Return the threads of a block, a power of two: enough on a multiprocessor with the blocks that fit there."""
    most = _MOST_THREADS[rows]
    fit = max(1, room // (word_bytes(inputs, rows) + STATIC_BYTES))
    needed = -(-most // fit)
    return max(_LEAST_THREADS, min(most, 1 << (needed - 1).bit_length()))


def count_inputs(
    network: Any,
    stage: Any,
    layer: CountedLayer,
    call: Any,
    capacity: int,
    index: str,
    room: int,
    rows: int | None = None,
) -> None:
    """Launch a stage of the first layer on the current stream; allocates nothing and waits for nothing.

    Row r of the inputs, CSR of one value, becomes row r of the stage's `rows_out`. Its `list`, `list_count`, `next`,
    `weights_out` and `counters` are written, too, but no hashes; `list_count` and `counters` are added to.
    """
    inputs = layer.shape[0]
    rows = rows_for(inputs, room) if rows is None else rows
    assert rows is not None, "`rows_for` tells what does not fit"
    kernel = _PROGRAMS[index, index_type(layer.quads)].kernel("count_inputs", ROWS=rows)
    blocks = max(1, -(-capacity // rows))  # one a tile: the device hands them out as others end
    threads = block_threads(inputs, rows, room)
    kernel((blocks,), (threads,), (network, stage, layer.pointer, call), shared_mem=word_bytes(inputs, rows))
