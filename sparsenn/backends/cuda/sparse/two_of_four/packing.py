"""Sparse weights for Hopper's tensor cores, which multiply two of four neighbours; `sparse/two_of_four.cu` reads them.

Weights of a group of four beyond the first two go into slabs of their own, so that any weights can be packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsenn.backends.cuda.runtime.precision import scaled_weights
from sparsenn.backends.cuda.sparse.two_of_four.input_order import FOUR, SLAB, UNIT, UNITS, padded
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import CSC, Array

GROUP = 64  # outputs that one instruction multiplies
PLACES_BYTES = 4 * 128  # where the weights of a slab and 64 outputs belong: a word a thread of a warpgroup


@dataclass(frozen=True, eq=False)
class Packed:
    """A layer's weights as the kernel multiplies them."""

    shape: tuple[int, int]  # (places of inputs, places of outputs), those that are none included
    neurons: int  # outputs of a tile, a multiple of `GROUP`
    planes: int  # 2 where numbers are split into a high and a low half, else 1
    image: Array  # uint8, slab by slab and tile by tile: for each `GROUP`, for each plane, the weights
    places: Array  # uint32, likewise for each `GROUP` a word for each thread of four warps
    starts: Array  # (tiles + 1,) int32, the first slab of each tile, and the end
    units: Array  # (slabs, `UNITS`) int32, the units of inputs that a slab multiplies
    scales: Array  # (places of outputs,) float32, powers of two by which sums are multiplied in the end
    extra: int  # slabs only for weights left over


def group_bytes(planes: int) -> int:
    """Return the bytes of a slab's weights for `GROUP` outputs."""
    return planes * GROUP * SLAB


def pack(weights: CSC, order: Array, outputs: Array, neurons: int, planes: int) -> Packed:
    """Pack a layer's weights, on the host; `order` and `outputs` have the input and the output at each place."""
    outputs = padded(outputs, neurons)
    tiles = outputs.size // neurons
    place, values, slot = _slots_of(weights, order, outputs)
    input_place, output_place = place
    tile, row = np.divmod(output_place, neurons)
    scaled, scales = scaled_weights(output_place, values, outputs.size)
    halves = _halves(scaled, planes)
    listed = _Slabs.of(tiles, order.size // UNIT, tile, input_place // UNIT, slot >= 2)
    slab, unit = listed.find(tile, input_place // UNIT, slot >= 2)
    groups = listed.units.shape[0], neurons // GROUP
    image = np.zeros((*groups, group_bytes(planes)), np.uint8)
    places = np.full((*groups, PLACES_BYTES), 0x44, np.uint8)  # any two that differ
    _write(image, places, slab, row, unit * UNIT + input_place % UNIT, slot % 2, halves)
    return Packed(
        (order.size, outputs.size),
        neurons,
        planes,
        image.reshape(-1),
        places.reshape(-1).view(np.uint32),
        listed.starts,
        listed.units,
        scales,
        listed.extra,
    )


def _slots_of(weights: CSC, order: Array, outputs: Array) -> tuple[tuple[Array, Array], Array, Array]:
    """Return the places of each weight's input and output, sorted; values; and which it is of its four."""
    place_of_input = np.zeros(weights.shape[0], np.int64)
    place_of_input[order[order >= 0]] = np.flatnonzero(order >= 0)
    place_of_output = np.zeros(weights.shape[1], np.int64)
    place_of_output[outputs[outputs >= 0]] = np.flatnonzero(outputs >= 0)
    column = np.repeat(np.arange(weights.shape[1]), np.diff(weights.indptr))
    key = place_of_output[column] * order.size + place_of_input[weights.indices]
    sorting = np.argsort(key, kind="stable")
    values = np.broadcast_to(weights.values, key.shape)[sorting].astype(np.float64)
    output_place, input_place = np.divmod(key[sorting], max(1, order.size))
    four = key[sorting] // FOUR
    begins = np.ones(four.size, bool)
    begins[1:] = four[1:] != four[:-1]
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1] if four.size else four
    return (input_place, output_place), values, np.arange(four.size) - first


def _halves(scaled: Array, planes: int) -> Array:
    high = scaled.astype(np.float16)
    return np.stack([high, (scaled - high.astype(np.float64)).astype(np.float16)][:planes])


@dataclass(frozen=True, eq=False)
class _Slabs:
    starts: Array
    units: Array
    extra: int
    slab: Array  # (tiles, 2, units of inputs) int64: of a unit, and of its weights left over
    unit: Array  # likewise, its place in the slab

    @classmethod
    def of(cls, tiles: int, all_units: int, tile: Array, unit: Array, left_over: Array) -> _Slabs:
        """List the units that weights have, then those of what was left over, eight a slab; the last may repeat."""
        present = np.zeros((tiles, 2, all_units), bool)
        present[tile, left_over.astype(np.int64), unit] = True
        slab, within = np.zeros(present.shape, np.int64), np.zeros(present.shape, np.int64)
        starts, listed, extra = np.zeros(tiles + 1, np.int32), [np.zeros((0, UNITS), np.int32)], 0
        for number, of_tile in enumerate(present):
            there = np.nonzero(of_tile)
            count = there[1].size
            slab[number][there] = starts[number] + np.arange(count) // UNITS
            within[number][there] = np.arange(count) % UNITS
            slabs = parts_of(count, UNITS)
            filled = np.full(slabs * UNITS, there[1][-1] if count else 0, np.int32)
            filled[:count] = there[1]
            listed.append(filled.reshape(slabs, UNITS))
            starts[number + 1] = starts[number] + slabs
            extra += slabs - parts_of(int(of_tile[0].sum()), UNITS)
        return cls(starts, np.concatenate(listed), extra, slab, within)

    def find(self, tile: Array, unit: Array, left_over: Array) -> tuple[Array, Array]:
        """Return each weight's slab, and its unit's place there."""
        which = tile, left_over.astype(np.int64), unit
        return self.slab[which], self.unit[which]


def _write(image: Array, places: Array, slab: Array, row: Array, depth: Array, number: Array, halves: Array) -> None:
    """Write weights, sorted so that those of one four are neighbours, and where they belong.

    `slab`, `row`, `depth` are of each weight: slab, output of the tile, input of the slab; `number`, 0 or 1, its place
    among those of its four; `halves` (planes, weights).
    """
    if not slab.size:
        return
    alone = np.ones(slab.size, bool)  # of its four
    second = np.flatnonzero(number == 1)
    partner = second - 1
    alone[second] = alone[partner] = False
    place = depth % FOUR
    slot = np.where(alone, place == FOUR - 1, number == 1).astype(np.int64)
    group, line = np.divmod(row, GROUP)
    column = depth // FOUR * 2 + slot
    at = (column // UNIT * GROUP + line) * 2 * UNIT + column % UNIT * 2
    words = image.view(np.uint16)
    for plane, numbers in enumerate(halves.view(np.uint16)):
        words[slab, group, (plane * GROUP * SLAB + at) // 2] = numbers
    nibble = np.where(place == FOUR - 1, place << 2, place | (FOUR - 1) << 2)  # where the other one is zero
    nibble[partner] = nibble[second] = place[partner] | place[second] << 2
    warp, line = np.divmod(line, 16)
    lower, g = np.divmod(line, 8)
    step, four = np.divmod(depth // FOUR, 8)
    half, four = np.divmod(four, 4)
    thread = warp * 32 + g * 4 + step * 2 + half
    where = slab, group, 4 * thread + 2 * lower + four // 2
    upper = four % 2 == 1
    for chosen, shift in ((~upper, 0), (upper, 4)):
        of_chosen = tuple(index[chosen] for index in where)
        kept = places[of_chosen] & (0xF0 if shift == 0 else 0x0F)
        places[of_chosen] = kept | (nibble[chosen] << shift).astype(np.uint8)
