"""How a chain of dense layers is cut for `kernels/mlp/warpgroup.cuh`, what it takes, and its weights in that order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparsenn.backends.cuda.dense.stack import DenseLayer
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

__all__ = [
    "CLOCKS",
    "MOST_ROWS",
    "NEURONS",
    "Clocks",
    "Tile",
    "arranged",
    "clocks",
    "is_curved",
    "plan",
    "slabs_of",
    "terms_of",
    "tiles",
    "unit_list",
    "units_read",
]

NEURONS = 64  # that an instruction computes
WARPGROUP = 128  # threads that carry out an instruction together

UNIT = 16  # bytes that lie together
STEP = 32  # bytes of each row and neuron in a step of the depth

AHEAD = 4
"""Panels that are asked for beyond the last."""

PANELS = 3  # slices of the first layer's rows in shared memory
MOST_STAGES = 8  # slabs of weights in shared memory, at most

MOST_ROWS = {
    (FLOAT32, 4): {1: 64, 2: 96, 3: 48, 4: 32},
    (TF32, 4): {1: 64, 2: 128, 3: 128, 4: 96},
    (HALF, 4): {1: 64, 2: 128, 3: 96, 4: 64},
    (FLOAT32, 2): {2: 128, 3: 80, 4: 48},
    (HALF, 2): {3: 128},
}
"""By precision and steps of a slab, and by warpgroups: the most rows of a block for which there are registers."""


@dataclass(frozen=True)
class Tile:
    """What a block computes at a time; the kernel is compiled for each.

    Parameters
    ----------
    kind : what numbers are multiplied in.
    rows : a multiple of 16.
    warpgroups : of 64 neurons each, but for the last ones.
    steps : of 32 bytes of depth, in a slab of weights.
    idle : warpgroups that multiply nothing, and help to bring rows in.
    """

    kind: Kind
    rows: int
    warpgroups: int
    steps: int
    idle: int = 0

    @property
    def neurons(self) -> int:
        """Of the widest layer, at most."""
        return NEURONS * (self.warpgroups - self.idle)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP * self.warpgroups

    @property
    def pieces(self) -> int:
        """Numbers that each is split into."""
        return 2 if self.kind is FLOAT32 else 1

    @property
    def depth(self) -> int:
        """Terms of a slab."""
        return self.steps * STEP // self.kind.factor_bytes

    @property
    def slab_bytes(self) -> int:
        """Weights of a slab, of all the block's neurons."""
        return self.pieces * self.neurons * self.steps * STEP

    @property
    def _fixed_bytes(self) -> int:
        units = max(self.neurons * self.kind.factor_bytes, PANELS * self.steps * STEP) // UNIT
        return self.pieces * units * UNIT * (self.rows + 1) + 8 + 4 * self.rows

    def stages(self, machine: Machine) -> int:
        """Return how many slabs shared memory has room for, beside the rows."""
        return min(MOST_STAGES, (machine.block_bytes - self._fixed_bytes) // (self.slab_bytes + 16))

    def shared_bytes(self, machine: Machine) -> int:
        """Return the shared memory of a block: slabs, rows, barriers, and a word a row."""
        return self._fixed_bytes + self.stages(machine) * (self.slab_bytes + 16)

    def defines(self, machine: Machine) -> dict[str, int | str]:
        """Return what of this the kernel is compiled for."""
        return {
            "KIND": self.kind.define,
            "ROWS": self.rows,
            "WARPGROUPS": self.warpgroups,
            "IDLE": self.idle,
            "STEPS": self.steps,
            "STAGES": self.stages(machine),
        }


def slabs_of(tile: Tile, widths: Sequence[int]) -> list[int]:
    """Return the slabs of each layer, at least one, given the inputs of the first that are read, and all outputs."""
    return [max(1, parts_of(width, tile.depth)) for width in widths[:-1]]


# ---- Which tile -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clocks:
    """What the parts of a block's work take, in clocks of an H200.

    Fitted to 244 times of it: 2 to 20 layers of 32 to 256 outputs, 1 to 60,000 rows, and each number of rows that a
    block may have. Half of the estimates are off by less than 8 %, most by less than 20 %.

    Parameters
    ----------
    cache_bytes : that come to a multiprocessor in a clock from the cache that all share.
    memory_bytes : of the first layer's rows, that come to it in a clock from the device's memory.
    trip : from asking for a slab of weights to its first bytes.
    product : part of the instructions' highest rate that is reached.
    instruction : an instruction at least, however few its rows.
    slab, first_slab : for a slab, besides; of the first layer, where all warps wait for each other after each.
    row, split_row : for a row of a layer's outputs on their way into the next, and where they are split in two.
    block_row : for a row of the block, from its beginning to the first product and from the last to its end.
    beside : part of its time that a second block on a multiprocessor adds to the first one's.
    """

    cache_bytes: float = 67.0
    memory_bytes: float = 19.5
    trip: float = 1360.0
    product: float = 0.82
    instruction: float = 64.0
    slab: float = 390.0
    first_slab: float = 230.0
    row: float = 5.0
    split_row: float = 25.0
    block_row: float = 70.0
    beside: float = 0.2


CLOCKS = Clocks()
"""The estimates' constants; fit them here."""

MOST_BLOCKS = 2  # of a multiprocessor that registers suffice for, where shared memory does
RESERVED_BYTES = 1 << 10  # of shared memory that the system takes for each block


def tiles(kind: Kind, widest: int, machine: Machine) -> Iterator[Tile]:
    """Yield what a block may compute, given the outputs of the widest layer."""
    groups = parts_of(widest, NEURONS)
    for (precision, steps), most in MOST_ROWS.items():
        for warpgroups in {groups, max(groups, 2)}:
            for rows in range(16, most.get(warpgroups, 0) + 1, 16):
                tile = Tile(kind, rows, warpgroups, steps, warpgroups - groups)
                if precision is kind and tile.stages(machine) >= 2:
                    yield tile


def clocks(tile: Tile, widths: Sequence[int], input_bytes: int, machine: Machine, given: Clocks = CLOCKS) -> float:
    """Estimate the clocks of a block, if all multiprocessors have one.

    Parameters
    ----------
    widths : inputs of the first layer, then outputs of each.
    input_bytes : of a number of the features.
    """
    rate = machine.multiply_adds("tf32" if tile.kind is FLOAT32 else tile.kind.name)
    a_clock = given.product * rate / (machine.multiprocessors * machine.clock)
    terms = STEP // tile.kind.factor_bytes
    copied = tile.slab_bytes / given.cache_bytes
    copied = max(copied, (copied + given.trip) / (tile.stages(machine) - 1))
    row = given.split_row if tile.kind is FLOAT32 else given.row
    total = given.block_row * tile.rows
    for number, (slabs, outputs) in enumerate(zip(slabs_of(tile, widths), widths[1:], strict=True)):
        step = max(parts_of(outputs, NEURONS) * tile.rows * NEURONS * terms / a_clock, given.instruction)
        products = tile.kind.products * tile.steps * step
        if number == 0:
            products += tile.rows * tile.depth * input_bytes / given.memory_bytes
        total += slabs * (max(products, copied) + (given.slab if number else given.first_slab))
        total += row * tile.rows
    return total


@lru_cache(1 << 10)
def plan(kind: Kind, widths: tuple[int, ...], rows: int, input_bytes: int, machine: Machine) -> tuple[Tile, float]:
    """Return what blocks compute at a time for so many rows, and the seconds that the device takes for all."""

    def seconds(tile: Tile) -> float:
        shares = parts_of(parts_of(rows, tile.rows), machine.multiprocessors)
        room = machine.multiprocessor_bytes // (tile.shared_bytes(machine) + RESERVED_BYTES)
        blocks = max(1, min(shares, room, MOST_BLOCKS))
        together = clocks(tile, widths, input_bytes, machine) * (1 + CLOCKS.beside * (blocks - 1))
        return parts_of(shares, blocks) * together / machine.clock

    best = min(tiles(kind, max(widths[1:]), machine), key=seconds)
    return best, seconds(best)


# ---- The image ------------------------------------------------------------------------------------------------------


def terms_of(kind: Kind) -> int:
    """Return how many inputs make a unit."""
    return UNIT // kind.factor_bytes


def units_read(kind: Kind, weights: Array) -> Array:
    """Return which units of the first layer's inputs have a weight, ascending, (units,) int64; only these are read.

    Parameters
    ----------
    weights : (inputs, outputs) float32.
    """
    terms = terms_of(kind)
    read = np.zeros(parts_of(len(weights), terms), bool)
    read[np.flatnonzero(weights.any(axis=1)) // terms] = True
    return np.flatnonzero(read)


def unit_list(tile: Tile, inputs: int, units: Array) -> Array:
    """Return the units that a thread of a block asks for, panel by panel, int32.

    The last panel, and `AHEAD` more that are asked for before the end is known, are filled up with a unit that is not
    there.
    """
    terms = terms_of(tile.kind)
    panel = tile.depth // terms
    size = panel * (max(1, parts_of(units.size, panel)) + AHEAD)
    listed: Array = np.full(size, parts_of(inputs, terms), np.int32)
    listed[: units.size] = units
    return listed


def arranged(tile: Tile, layers: Sequence[DenseLayer], units: Array) -> Array:
    """Return what the kernel reads of a chain, as bytes: what layers are like, their biases, their weights.

    Parameters
    ----------
    units : of the first layer's inputs, those that are read.
    """
    terms = terms_of(tile.kind)
    widths = [units.size * terms, *(layer.outputs for layer in layers)]
    told = np.zeros((len(layers), 4), np.int32)
    biases = np.zeros((len(layers), tile.neurons), np.float32)
    parts = []
    for number, (layer, slabs) in enumerate(zip(layers, slabs_of(tile, widths), strict=True)):
        told[number, :3] = slabs, layer.outputs, layer.activation
        told[number, 3:] = np.array([layer.clip], np.float32).view(np.int32)
        biases[number, : layer.outputs] = layer.bias
        weights = np.zeros((slabs * tile.depth, tile.neurons), np.float32)
        if number == 0:
            read = (terms * units[:, None] + np.arange(terms)).ravel()
            there = read < layer.inputs
            weights[: read.size][there, : layer.outputs] = layer.weights[read[there]]
        else:
            weights[: layer.inputs, : layer.outputs] = layer.weights
        units = weights.reshape(slabs, tile.depth // terms, terms, tile.neurons // NEURONS, NEURONS).transpose(
            0, 3, 1, 4, 2
        )
        parts.append(np.stack(_pieces(tile.kind, np.ascontiguousarray(units)), axis=2))
    found: Array = np.concatenate(
        [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in (told, biases, *parts)]
    )
    return found


def _pieces(kind: Kind, weights: Array) -> tuple[Array, ...]:
    if kind is HALF:
        return (weights.astype(np.float16),)
    split = split_tf32(weights)
    return split if kind is FLOAT32 else split[:1]


def is_curved(activations: Sequence[tuple[int, bool]]) -> bool:
    """Return whether a layer has an activation that is neither ReLU nor the identity."""
    return any(code not in (RELU, IDENTITY) for code, _ in activations)
