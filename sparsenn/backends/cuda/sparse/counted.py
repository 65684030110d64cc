"""count_inputs on the host side: laying the first layer's weights out by value, and launching.

The kernel, `sparse/count_inputs.cu`, takes inputs that all have one value, as CSR rows. For each weight of
an output it counts the active inputs of 32, 16 or 8 rows at a time, and multiplies once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenn.backends.cuda.device import cupy
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import program
from sparsenn.backends.cuda.sparse.conversion import index_type, running_sum
from sparsenn.backends.cuda.sparse.packed import PackedNetwork
from sparsenn.backends.cuda.sparse.stack import DeviceLayer
from sparsenn.backends.machine import WARP
from sparsenn.formats import CSC

__all__ = [
    "CountedLayer",
    "block_threads",
    "count_inputs",
    "counted_first",
    "has_finite_products",
    "pack_counted",
    "rows_for",
    "word_bytes",
]

QUAD = 4
"""Edges that a lane reads at a time."""

STATIC_BYTES = 1 << 10
"""Shared memory that the kernel declares itself and that the system takes of a block, rounded up."""

MOST_INDEX = 0xFFFF
"""Largest index that 16 bits hold."""

_MOST_THREADS = {32: 512, 16: 1024, 8: 1024}
"""Threads of a block by the rows of a tile, as in the kernel: each takes up to 128 or 64 registers."""

_LEAST_THREADS = 128

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

    Parameters
    ----------
    shape : (inputs, outputs).
    slices : (slices, 2) int32, the first of `quads` and of `runs` of each slice.
    run_counts : (32 * slices,) int32, runs of each output; 0 behind the last output.
    runs : (runs, 32, 2) int32; in `runs[slice's first + k, output % 32]` the number, among the output's quads, that
        follows the last of its k-th run, and the bits of the float32 weight. The first is the complement where the
        run is a single edge.
    quads : (quads, 32, 4) uint16 or int32; in `quads[slice's first + k, output % 32]` the inputs of the output's k-th
        four edges. Runs are filled up to whole quads with `inputs`, which is always zero; the kernel does not read
        what fills up a single edge or an output that has fewer quads than its neighbours.
    pointer : device array that holds one `Counted` record; None on the host.
    """

    shape: tuple[int, int]
    slices: Any
    run_counts: Any
    runs: Any
    quads: Any
    pointer: Any = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the four arrays."""
        return sum(int(array.nbytes) for array in (self.slices, self.run_counts, self.runs, self.quads))


# ---- Laying out the weights -------------------------------------------------------------------------------------


def pack_counted(layer: DeviceLayer) -> CountedLayer:
    """Lay out a layer's weights where they are: on the current device or, for looking at them, on the host.

    Weights are told apart by their bits, so that 0.0 and -0.0 are different.

    Parameters
    ----------
    layer : its weights over CuPy or NumPy arrays.
    """
    weights = layer.weights
    xp: Any = np if isinstance(weights.indptr, np.ndarray) else cupy()
    inputs, outputs = weights.shape
    slices = -(-outputs // WARP)
    column = xp.searchsorted(weights.indptr, xp.arange(weights.nnz), side="right") - 1
    bits = xp.ascontiguousarray(xp.broadcast_to(weights.values.astype(np.float32), (weights.nnz,))).view(np.uint32)
    keys = column.astype(np.int64) << 32 | bits.astype(np.int64)
    order = xp.lexsort(xp.stack([weights.indices.astype(np.int64), keys]))
    keys, column, indices = keys[order], column[order], weights.indices[order].astype(np.int64)

    begins = xp.ones(weights.nnz, bool)
    begins[1:] = keys[1:] != keys[:-1]
    run_of = xp.cumsum(begins) - 1
    start = xp.flatnonzero(begins)
    length = xp.diff(xp.append(start, weights.nnz))
    size = (length + QUAD - 1) // QUAD
    owner = column[start]
    first_run = xp.searchsorted(owner, xp.arange(slices * WARP + 1))
    run_counts, quads_before = xp.diff(first_run), running_sum(xp, size)
    quad_counts = xp.diff(quads_before[first_run])
    begin = quads_before[:-1] - quads_before[first_run[owner]]

    quad_starts = running_sum(xp, quad_counts.reshape(slices, WARP).max(axis=1))
    run_starts = running_sum(xp, run_counts.reshape(slices, WARP).max(axis=1))
    runs = xp.zeros((int(run_starts[-1]), WARP, 2), np.int32)
    line = run_starts[owner // WARP] + xp.arange(start.size) - first_run[owner]
    last = begin + size
    runs[line, owner % WARP, 0] = xp.where(length == 1, ~last, last).astype(np.int32)
    runs[line, owner % WARP, 1] = (keys[start] & 0xFFFFFFFF).astype(np.uint32).view(np.int32)

    filled = bool(((length % QUAD != 0) & (length > 1)).any())
    narrow = inputs <= MOST_INDEX or (inputs == MOST_INDEX + 1 and not filled)
    quads = xp.full(
        (int(quad_starts[-1]), WARP, QUAD),
        inputs if not narrow or inputs <= MOST_INDEX else 0,
        np.uint16 if narrow else np.int32,
    )
    place = xp.arange(weights.nnz) - start[run_of]
    line = quad_starts[column // WARP] + begin[run_of] + place // QUAD
    quads[line, column % WARP, place % QUAD] = indices.astype(quads.dtype)

    bounds = xp.stack([quad_starts[:-1], run_starts[:-1]], axis=1).astype(np.int32)
    arrays = (bounds, run_counts.astype(np.int32), runs, quads)
    pointer = None if xp is np else xp.asarray(np.array([array.data.ptr for array in arrays], np.uint64))
    return CountedLayer((inputs, outputs), *arrays, pointer)


# ---- On the device ----------------------------------------------------------------------------------------------


def has_finite_products(weights: CSC, one: np.float32) -> bool:
    """Return whether every weight times the inputs' one value is a float32 number."""
    if not weights.nnz:
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(float(abs(weights.values).max())) * one))


def counted_first(network: PackedNetwork, one: np.float32, room: int) -> CountedLayer | None:
    """Return a network's first layer laid out for counting, kept for later calls; None if it cannot be counted.

    That is where not even 8 rows of inputs fit into shared memory, or where a weight times the inputs' one value is
    not finite: a count of zero times that would be no number.

    Parameters
    ----------
    one : the inputs' one value.
    room : shared memory that a block can have, in bytes.
    """
    weights = network.layers[0].weights
    if rows_for(weights.shape[0], room) is None or not has_finite_products(weights, one):
        return None
    return kept(network, "counted", lambda: pack_counted(network.layers[0]))


def word_bytes(inputs: int, rows: int) -> int:
    """Return the dynamic shared memory of a block: a word of `rows` bits for each input and one of zeros, in bytes."""
    return 4 * (inputs * rows // 32 + 1)


def rows_for(inputs: int, room: int) -> int | None:
    """Return the rows of a tile: as many of 32, 16 and 8 as fit, or None if not even 8 do.

    Parameters
    ----------
    inputs : width of the inputs.
    room : shared memory that a block can have, in bytes.
    """
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
    indptr: Any,
    indices: Any,
    one: np.float32,
    room: int,
    rows: int | None = None,
) -> None:
    """Launch a stage of one layer on the current stream; allocates nothing and waits for nothing.

    Row r of the inputs becomes row r of the stage's `rows_out`. Its `list`, `list_count`, `next`, `weights_out` and
    `counters` are written too, but no hashes; `list_count` and `counters` are added to.

    Parameters
    ----------
    network, stage : device arrays that begin with the `Network` and with the `Stage` record; stage's `first` is 0, its
        `last` 1, and `list_in` is null.
    layer : the network's first, over device arrays.
    indptr, indices : the inputs, CSR on the device; indices uint16 or int32.
    one : the inputs' one value. Its product with a weight must be finite.
    room : shared memory that a block can have, in bytes.
    rows : of a tile; `rows_for` chooses if None.
    """
    inputs = layer.shape[0]
    rows = rows_for(inputs, room) if rows is None else rows
    assert rows is not None, "`rows_for` tells what does not fit"
    kernel = _PROGRAMS[index_type(indices), index_type(layer.quads)].kernel("count_inputs", ROWS=rows)
    blocks = max(1, -(-(indptr.size - 1) // rows))  # one a tile: the device hands them out as others end
    threads = block_threads(inputs, rows, room)
    kernel(
        (blocks,),
        (threads,),
        (network, stage, layer.pointer, indptr, indices, one),
        shared_mem=word_bytes(inputs, rows),
    )
