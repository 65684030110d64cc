"""How long layers take with the kernels that `auto` chooses among, if no row leaves: estimates, for choosing only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsenn.backends.cuda.sparse.tiling import estimated_clocks, shared_tilings
from sparsenn.backends.machine import H200, Machine
from sparsenn.layers import SparseLinear

__all__ = ["chunks_seconds", "resident_seconds"]

LAUNCH_SECONDS = 1e-4
"""A layer of `chunks` beside its kernel: counting, and what the host takes to start both."""

TILE_SECONDS = 2e-5
EDGE_SECONDS = 0.6e-12
OUTPUT_SECONDS = 8e-12
CROWDED_WIDTH = 4096
"""A layer of the resident kernels takes TILE_SECONDS, and for each row EDGE_SECONDS an edge and OUTPUT_SECONDS an
output, more in proportion to its width over CROWDED_WIDTH, as fewer rows share an edge. Fitted by eye to stacks of
four layers of 128 to 16384 neurons with 4, 32 and a tenth of them as edges an output, on an H200. Edges and outputs
are work of all its multiprocessors, in shared memory: others take longer by their number and clock."""

SAMPLED_LAYERS = 16
"""Layers that are looked at, evenly spread; the others take as long as these do on average."""


def chunks_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate what `chunks` takes."""

    def seconds(layer: SparseLinear) -> float:
        (tiling,) = shared_tilings(rows, [(layer.inputs, layer.outputs, layer.edges)], machine)
        size = (rows, layer.inputs, max(1, layer.outputs), layer.edges)
        return LAUNCH_SECONDS + estimated_clocks(tiling, *size, machine) / machine.clock

    return _over_all(layers, seconds)


def resident_seconds(machine: Machine, layers: Sequence[SparseLinear], rows: int) -> float:
    """Estimate what `resident` takes while rows are many."""
    slower = H200.multiprocessors * H200.clock / (machine.multiprocessors * machine.clock)

    def seconds(layer: SparseLinear) -> float:
        row = slower * (layer.edges * EDGE_SECONDS + layer.outputs * OUTPUT_SECONDS)
        return TILE_SECONDS + rows * row * (1 + max(layer.inputs, layer.outputs) / CROWDED_WIDTH)

    return _over_all(layers, seconds)


def _over_all(layers: Sequence[SparseLinear], seconds: Callable[[SparseLinear], float]) -> float:
    step = max(1, len(layers) // SAMPLED_LAYERS)
    sample = layers[::step]
    return sum(map(seconds, sample)) * len(layers) / max(1, len(sample))
