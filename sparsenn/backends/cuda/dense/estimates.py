"""Estimates of what kernels of mlp take: queueing, layers that wait for each other, bytes and multiply-adds.

Constants are seconds, or rates a second, of an H200. Those of arithmetic go with the machine's multiply-adds in the
precision, those of waiting with its clock, and bytes with its bandwidth. Where launches are not part of a graph, the
device begins when the first is queued, and goes on no faster than the host queues the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparsenn.backends.machine import H200, Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.layers import Linear

__all__ = [
    "CUBLAS",
    "FITTING",
    "FUSED",
    "LAUNCH",
    "OVERFLOWING",
    "QUEUE_FUSED",
    "WIDE",
    "FusedRates",
    "LibraryRates",
    "awaited",
    "fused_seconds",
    "library_awaited",
    "library_seconds",
    "padded_widths",
    "widths_of",
]

LAUNCH = 3.0e-6
"""From a launch to the end of a kernel that does next to nothing."""

# Seconds of the host for a launch; from 1 to 24 layers, queued while the device was idle.
QUEUE_FUSED = 10e-6  # of a kernel of ours
QUEUE_PRODUCT = 14.5e-6  # of a library's product

QUEUE_REPLAY = 12e-6  # of the host for a graph of products, with the copies before and after it
COPY = 1.5e-6  # of the device for a small copy of features or outputs

FITTING, OVERFLOWING, WIDE = range(3)
"""Weights find room beside rows that stay in registers; one of the two leaves its place; or both, in wide layers."""


@dataclass(frozen=True)
class FusedRates:
    """Of a kernel that takes tiles of rows through all layers.

    Parameters
    ----------
    layer : seconds for each layer, where a multiprocessor has but one tile, and
    multiply_add : for each multiply-add of a row.
    rate : multiply-adds a second, if there are many tiles.
    tile : rows that a multiprocessor takes at a time.
    precision : of the arithmetic, as machines know it.
    """

    layer: float
    multiply_add: float
    rate: float
    tile: int
    precision: str


FUSED = {
    "tensor_float32": (
        FusedRates(1.64e-7, 6.72e-10, 2.45e13, 32, "tf32"),
        FusedRates(2.05e-8, 7.12e-10, 2.02e13, 64, "tf32"),
        FusedRates(3.19e-6, 6.60e-10, 1.37e13, 32, "tf32"),
    ),
    "fused_fma": (
        FusedRates(3.77e-7, 4.03e-10, 1.36e13, 64, "float32"),
        FusedRates(2.08e-6, 3.76e-10, 1.74e13, 64, "float32"),
        FusedRates(5.96e-6, 2.38e-10, 1.69e13, 32, "float32"),
    ),
    "tensor_tf32": (
        FusedRates(1.53e-7, 2.51e-10, 5.55e13, 16, "tf32"),
        FusedRates(1.00e-8, 5.43e-10, 3.44e13, 32, "tf32"),
        FusedRates(5.83e-6, 4.25e-10, 1.95e13, 16, "tf32"),
    ),
    "tensor_half": (
        FusedRates(1.34e-7, 1.23e-10, 1.37e14, 128, "float16"),
        FusedRates(4.20e-6, 5.00e-12, 8.52e13, 64, "float16"),
        FusedRates(7.82e-6, 1.19e-10, 4.74e13, 32, "float16"),
    ),
}
"""By kernel: `FITTING`, `OVERFLOWING` and `WIDE`. Fitted to 1 to 19 layers, 32 to 256 wide, and 1 to 60,000 rows."""


@dataclass(frozen=True)
class LibraryRates:
    """Of a library's products, each followed by bias and activation.

    Parameters
    ----------
    layer : seconds of a layer that does next to nothing.
    depth : seconds of a tile of `LIBRARY_TILES[0]` x `LIBRARY_TILES[0]` sums for each of their terms.
    rate : multiply-adds a second of a large product.
    number_bytes : of what is multiplied.
    """

    layer: float
    depth: float
    rate: float
    number_bytes: int


CUBLAS = {
    "float32": LibraryRates(2.6e-6, 7.0e-8, 2.4e13, 4),
    "tf32": LibraryRates(3.6e-6, 1.5e-8, 1.9e14, 4),
    "float16": LibraryRates(2.25e-6, 6.0e-9, 3.4e14, 2),
}
"""By precision; fitted to 1 to 24 layers of 10 to 16384 outputs, and 1 to 60,000 rows. Half of the estimates are off by
less than 15 %; single rows take up to a third of theirs."""

# A smaller tile takes less in proportion to its side: it reads as many more numbers for each of its sums.
LIBRARY_TILES = (128, 64, 32)  # rows and columns of a tile of sums
SPLIT_DEPTH = 512  # the least depth of a slice of a tile, where several multiprocessors share one

# Of the bandwidth of copies.
WEIGHT_SHARE = 0.85  # for a product's weights
LIBRARY_SHARE = 0.62  # for the rows that a product reads and writes
ROUNDED_SHARE = 0.3  # for rows that are rounded to halves or padded before it, or cut after it

PADDED_BYTES = 16
"""What rows of inputs and of outputs must be multiples of, lest a library's product on tensor cores take up to six
times as long: on an H100, 10,000 rows of 2,047 inputs and 3,001 outputs take 985 us in half precision, and 152 padded;
1,037 and 334 in TF32. In float32, it makes no difference."""

# The least from which on padding rows and cutting outputs, by copies, costs less time than it saves.
PADDED_WORK = 5e8  # multiply-adds of a product
PADDED_SIDE = 64  # inputs and outputs


def widths_of(layers: Sequence[Linear]) -> tuple[int, ...]:
    """Return the inputs of the first layer, then the outputs of each."""
    return (layers[0].inputs, *(layer.outputs for layer in layers))


def padded_widths(precision: str, widths: Sequence[int], rows: int) -> tuple[int, ...]:
    """Return the widths that a library's products are to have: padded with zeros where that saves time.

    Between layers, it costs nothing. Rows that are given, and outputs, have to be copied.
    """
    if precision == "float32":
        return tuple(widths)
    grain = PADDED_BYTES // CUBLAS[precision].number_bytes
    padded = [parts_of(width, grain) * grain for width in widths]
    for end, other in ((0, 1), (-1, -2)):
        if rows * widths[end] * widths[other] < PADDED_WORK or min(widths[end], widths[other]) < PADDED_SIDE:
            padded[end] = widths[end]
    return tuple(padded)


def _copies(precision: str, widths: Sequence[int], rows: int, row_bytes: int) -> tuple[bool, bool]:
    """Return whether features are rounded or padded before a library's products, and whether outputs are cut after.

    Parameters
    ----------
    row_bytes : of a number of the features.
    """
    padded = padded_widths(precision, widths, rows)
    return CUBLAS[precision].number_bytes != row_bytes or padded[0] != widths[0], padded[-1] != widths[-1]


def fused_seconds(given: FusedRates, machine: Machine, widths: Sequence[int], rows: int) -> float:
    """Estimate a launch of a kernel that takes tiles of rows through all layers."""
    products = sum(before * after for before, after in pairwise(widths))
    share = machine.multiply_adds(given.precision) / H200.multiply_adds(given.precision)
    alone = (len(widths) - 1) * given.layer * H200.clock / machine.clock
    alone += products * given.multiply_add * machine.multiprocessors / (H200.multiprocessors * share)
    rounds = parts_of(parts_of(rows, given.tile), machine.multiprocessors)
    counted = max(rows, rounds * given.tile * machine.multiprocessors if rounds > 1 else 0)
    moved = 4 * rows * (widths[0] + widths[-1]) / machine.copy_bandwidth
    return LAUNCH + max(alone, products * counted / (given.rate * share), moved)


def library_seconds(
    given: LibraryRates, precision: str, machine: Machine, widths: Sequence[int], rows: int, row_bytes: int
) -> float:
    """Estimate a library's products of all layers, and the passes that round or pad features and cut outputs.

    Parameters
    ----------
    row_bytes : of a number of the rows, and of one of the outputs.
    """
    share = machine.multiply_adds(precision) / H200.multiply_adds(precision)
    bandwidth = machine.copy_bandwidth
    entering, leaving = _copies(precision, widths, rows, row_bytes)
    total = 0.0
    if entering:
        total += LAUNCH + (row_bytes + given.number_bytes) * rows * widths[0] / (ROUNDED_SHARE * bandwidth)
    if leaving:
        total += LAUNCH + 2 * row_bytes * rows * widths[-1] / (ROUNDED_SHARE * bandwidth)
    for number, (inputs, outputs) in enumerate(pairwise(padded_widths(precision, widths, rows)), start=2):
        left = row_bytes if number == len(widths) else given.number_bytes
        weights = given.number_bytes * inputs * outputs
        moved = weights / WEIGHT_SHARE + rows * (given.number_bytes * inputs + left * outputs) / LIBRARY_SHARE
        total += given.layer * H200.clock / machine.clock + max(
            rows * inputs * outputs / (given.rate * share),
            _tiled_seconds(given, precision, machine, rows, inputs, outputs),
            moved / bandwidth,
        )
    return total


def _tiled_seconds(
    given: LibraryRates, precision: str, machine: Machine, rows: int, inputs: int, outputs: int
) -> float:
    """Estimate a product by the tiles that a multiprocessor takes in turn, of the size that takes the least."""

    def seconds(side: int) -> float:
        tiles = parts_of(rows, side) * parts_of(outputs, side)
        parts = max(1, min(machine.multiprocessors // max(1, tiles), inputs // SPLIT_DEPTH))
        rounds = parts_of(tiles * parts, machine.multiprocessors)
        return rounds * side / LIBRARY_TILES[0] * inputs / parts * given.depth

    return min(map(seconds, LIBRARY_TILES)) / machine.share(precision)


def library_awaited(precision: str, machine: Machine, widths: Sequence[int], rows: int, row_bytes: int) -> float:
    """Estimate a library's products of all layers until the last is done, in seconds.

    Launch by launch, they take no less than the host takes to queue them; for a graph, which an executable replays
    where that is faster, features and outputs are copied.
    """
    rates = CUBLAS[precision]
    device = library_seconds(rates, precision, machine, widths, rows, row_bytes)
    launches = len(widths) - 1 + sum(_copies(precision, widths, rows, row_bytes))
    copied = 2 * COPY + 2 * row_bytes * rows * (widths[0] + widths[-1]) / machine.copy_bandwidth
    queued = awaited(device, launches, QUEUE_PRODUCT)
    return min(QUEUE_REPLAY + copied + device, queued) if launches > 1 else queued


def awaited(device: float, launches: int, queue: float) -> float:
    """Return the seconds from the first of some launches to the end of the last.

    Parameters
    ----------
    device : what all take on the device, in seconds.
    queue : what the host takes for each, in seconds.
    """
    return queue + max(device, (launches - 1) * queue + device / launches)
