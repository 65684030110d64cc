"""How a chain of dense layers is cut for `kernels/mlp/warpgroup.cu`, and its weights in the order of the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparsenn.backends.cuda.clocks import RESERVED_BYTES
from sparsenn.backends.cuda.dense.stack import DenseLayer
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.cuda.runtime.precision import split_tf32
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, TF32, Kind
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

NEURONS = 64  # that an instruction computes
WARPGROUP = 128  # threads that carry out an instruction together
LEAST_ROWS = 16  # of a block, and what its rows are a multiple of

UNIT = 16  # bytes that lie together
STEP = 32  # bytes of each row and neuron in a step of the depth

AHEAD = 4  # panels that are asked for beyond the last
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
    """The share of a block at a time; the kernel is compiled for each."""

    kind: Kind  # what numbers are multiplied in
    rows: int  # a multiple of `LEAST_ROWS`
    warpgroups: int  # of 64 neurons each, but for the last ones
    steps: int  # of 32 bytes of depth, in a slab of weights
    idle: int = 0  # warpgroups that multiply nothing, and help to bring rows in

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

    def waves(self, rows: int, machine: Machine) -> int:
        """Return how many blocks, one after another, the busiest place of a multiprocessor computes."""
        at_once = min(MOST_BLOCKS, machine.multiprocessor_bytes // (self.shared_bytes(machine) + RESERVED_BYTES))
        return parts_of(parts_of(rows, self.rows), machine.multiprocessors * at_once)

    def defines(self, machine: Machine) -> dict[str, int | str]:
        """Return the constants that the kernel is compiled with."""
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


LEAST_STAGES = 3
"""Slabs of weights in shared memory: with two of 64 KiB, products take 1.2 times as long as with five of 32 KiB."""

MOST_BLOCKS = 2  # of a multiprocessor that registers suffice for, where shared memory does


def tiles(kind: Kind, widest: int, machine: Machine) -> Iterator[Tile]:
    """Yield the tiles whose registers and shared memory suffice."""
    groups = parts_of(widest, NEURONS)
    for (precision, steps), most in MOST_ROWS.items():
        for warpgroups in {groups, max(groups, 2)}:
            for rows in range(LEAST_ROWS, most.get(warpgroups, 0) + 1, LEAST_ROWS):
                tile = Tile(kind, rows, warpgroups, steps, warpgroups - groups)
                if precision is kind and tile.stages(machine) >= LEAST_STAGES:
                    yield tile


@lru_cache(1 << 10)
def plan(kind: Kind, widest: int, rows: int, machine: Machine) -> Tile:
    """Return the tile of the fewest waves, which cost much; of those, of the deepest slabs, then of the fewest rows."""

    def order(tile: Tile) -> tuple[int, int, int, int]:
        return tile.waves(rows, machine), -tile.steps, tile.rows, tile.warpgroups

    return min(tiles(kind, widest, machine), key=order)


# ---- The image ------------------------------------------------------------------------------------------------------


def terms_of(kind: Kind) -> int:
    """Return how many inputs make a unit."""
    return UNIT // kind.factor_bytes


def units_read(kind: Kind, weights: Array) -> Array:
    """Return which units of the first layer's inputs have a weight, ascending, (units,) int64; only these are read."""
    terms = terms_of(kind)
    read = np.zeros(parts_of(len(weights), terms), bool)
    read[np.flatnonzero(weights.any(axis=1)) // terms] = True
    return np.flatnonzero(read)


def unit_list(tile: Tile, inputs: int, units: Array) -> Array:
    """Return the units that a thread of a block asks for, panel by panel, int32, filled up with one that is missing."""
    terms = terms_of(tile.kind)
    panel = tile.depth // terms
    size = panel * (max(1, parts_of(units.size, panel)) + AHEAD)
    listed: Array = np.full(size, parts_of(inputs, terms), np.int32)
    listed[: units.size] = units
    return listed


def arranged(tile: Tile, layers: Sequence[DenseLayer], units: Array) -> Array:
    """Return what the kernel reads of a chain, as bytes: what layers are like, their biases, their weights."""
    terms = terms_of(tile.kind)
    widths = [units.size * terms, *(layer.outputs for layer in layers)]
    records = np.zeros((len(layers), 4), np.int32)
    biases = np.zeros((len(layers), tile.neurons), np.float32)
    parts = []
    for number, (layer, slabs) in enumerate(zip(layers, slabs_of(tile, widths), strict=True)):
        records[number, :3] = slabs, layer.outputs, layer.activation
        records[number, 3:] = np.array([layer.clip], np.float32).view(np.int32)
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
        [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in (records, biases, *parts)]
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
