"""How long layers take with `two_of_four`: an estimate from what is multiplied and moved, fitted on an H200."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsenn.backends.cuda.sparse.two_of_four.input_order import SLAB
from sparsenn.backends.machine import H200, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import SparseLinear

__all__ = ["LISTS_AT_ONCE", "extra_slabs", "tensor_seconds"]

RUN_SECONDS = 26e-6  # of a run beside its layers
LAUNCH_SECONDS = 2.5e-6  # of a launch of a graph beside its kernel
LAYING_SECONDS = 5e-6  # of a launch that lays rows out

SPARSE_FACTOR = 2
"""Products that tensor cores pass over, and those they compute, in parts of what they compute of dense weights."""

REACHED = 0.635
"""Of the most multiply-adds, what shared memory lets through: at full speed instructions would read 150 to 160 bytes of
it a clock, and copies write 44 to 56; it has 128."""

FINISHING_CLOCKS = {2: 4000, 1: 7000}
"""By planes: from a tile's last products until its outputs are stored, while nothing is multiplied."""

LISTS_AT_ONCE = 16
"""As in the kernel: tiles of outputs that are computed for all rows before the next ones, which read the rows anew."""

LAID_SHARE = 0.95
"""Of the bandwidth of copies, what rows reach that are laid out."""

MENDED = 8.0
"""Outputs with three weights in a group of four that a better order of inputs avoids; with so many more, every unit of
inputs has some that are left over."""


def extra_slabs(layer: SparseLinear) -> float:
    """Estimate the slabs for weights that are left over, in parts of the others, of weights at random places."""
    share = layer.edges / max(1, layer.inputs * layer.outputs)
    conflicts = layer.outputs * (4 * share**3 * (1 - share) + share**4)
    return min(1.0, max(0.0, conflicts - MENDED) / MENDED)


def tensor_seconds(
    planes: int,
    rows_at_once: int,
    neurons: int,
    machine: Machine,
    layers: Sequence[SparseLinear],
    rows: int,
    row_bytes: int = 4,
) -> float:
    """Estimate what `two_of_four` takes, in seconds.

    Parameters
    ----------
    planes, rows_at_once, neurons : of a block.
    rows : of a run.
    row_bytes : of a number of the rows, and of one of the outputs.
    """
    products = 3 if planes == 2 else 1
    rate = SPARSE_FACTOR * REACHED * machine.multiply_adds("float16") / machine.multiprocessors
    width, bandwidth = layers[0].inputs, LAID_SHARE * machine.copy_bandwidth
    total = RUN_SECONDS + LAYING_SECONDS + rows * width * (row_bytes + 2 * planes) / bandwidth
    for number, layer in enumerate(layers, start=1):
        slabs = parts_of(layer.inputs, SLAB) * (1 + extra_slabs(layer))
        tile = slabs * SLAB * neurons * rows_at_once * products / rate
        tile += FINISHING_CLOCKS[planes] / machine.clock
        lists = parts_of(layer.outputs, neurons)
        tiles = parts_of(rows, rows_at_once) * lists
        left = row_bytes if number == len(layers) else 2 * planes
        read = rows * 2 * planes * layer.inputs
        moved = read + rows * left * layer.outputs
        rounds = tiles / machine.multiprocessors
        if number == len(layers) or rounds <= 1:  # else two slices of the rows fill each other's last rounds
            rounds = math.ceil(rounds)
        again = max(0, parts_of(lists, LISTS_AT_ONCE) - 1) * read / machine.copy_bandwidth
        computed = rounds * tile + again
        total += LAUNCH_SECONDS * H200.clock / machine.clock + max(computed, moved / machine.copy_bandwidth)
    return total
