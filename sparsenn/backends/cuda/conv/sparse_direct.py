"""The kernel of conv2d for pruned filters: no weight of zero is multiplied, and pixels come from shared memory.

The first launch of a layer and a power of two of images compiles a kernel for its tiling and lays the weights out.
Outputs of finite images have the bits of `conv_unrolled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, WHOLE, ConvLayer, Geometry, smallest, why_too_large
from sparsenn.backends.cuda.conv.kernel import activation_define, convolution, new_outputs, refuse
from sparsenn.backends.cuda.conv.sparse_plan import PAIR_BYTES, Places, Tiling, places_of, smallest_tiling, tilings
from sparsenn.backends.cuda.conv.warpgroup_plan import divisor
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, cache_on_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.memory import to_device
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.prior import WARPS, Prior
from sparsenn.backends.sizes import FLOAT_BYTES, parts_of
from sparsenn.formats import Array

SOURCE = "conv2d/sparse_direct.cu"

_PROGRAM = specialised(SOURCE, dynamic_shared=True, carveout=WHOLE)

MANY = 1 << 12  # images from which on their number makes no difference to the choice of a tiling
NO_WEIGHT = np.float32(-0.0).view(np.uint32)  # by which a zero is multiplied: the product changes no sum, even of -0.0


@cache
def fits(machine: Machine, geometry: Geometry) -> str | None:
    """Return why a machine cannot run a convolution with the kernel; None if it can."""
    if geometry.groups > 1:
        return f"{geometry.groups} groups; the kernel is written for one"
    if reason := why_too_large(geometry):
        return reason
    places = places_of(geometry)
    if places.of_image + places.reach > MOST_NUMBERS // 2:
        return (
            f"an image and its padding take {places.of_image:,} places; the kernel counts up to {MOST_NUMBERS // 2:,}"
        )
    least, room = smallest_tiling(), smallest(machine).block_bytes
    pairs = least.block_filters * parts_of(geometry.kernel[0] * geometry.kernel[1], 2)
    if least.shared_bytes(places, PAIR_BYTES * (pairs + _head(least) + 1)) > room:
        return (
            f"the pixels that a block of outputs sees, of {geometry.kernel[0]} x {geometry.kernel[1]} taps, stride "
            f"{geometry.stride} and dilation {geometry.dilation}, do not fit into the {room >> 10} KiB of shared "
            "memory that every device has"
        )
    return None


# ---- Weights in the kernel's order ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LaidOut:
    """Weights as the kernel reads them."""

    stream: Array  # (units, 4) uint32
    segments: Array  # (sets x chunks, 2) int32, the first unit of each, and how many
    order: Array  # (sets x filters of a block,) int32, -1 where there is no filter
    stage_bytes: int  # of the largest segment, and of what is read after it


def _weight_counts(weights: Array) -> Array:
    """Return the weights other than zero of each filter and channel, (filters, channels) int64."""
    return np.count_nonzero(weights.reshape(*weights.shape[:2], -1), axis=2)


def _head(tiling: Tiling) -> int:
    """Return the units of 16 bytes in which a segment says where each warp begins."""
    return parts_of(tiling.block_filters // tiling.filters, 4)


def _order(tiling: Tiling, counts: Array) -> Array:
    """Return filters by slot, (sets, filters of a block): sets and warps have about as many weights each."""
    filters = counts.shape[0]
    sets, warps = parts_of(filters, tiling.block_filters), tiling.block_filters // tiling.filters
    rank = np.arange(filters)
    within, place = rank // sets, rank // sets % warps
    number = within // warps
    place = np.where(number % 2, warps - 1 - place, place)
    order = np.full((sets, tiling.block_filters), -1, np.int32)
    order[rank % sets, place * tiling.filters + number] = np.argsort(-counts.sum(axis=1), kind="stable")
    return order


def _list_sizes(tiling: Tiling, counts: Array) -> Array:
    """Return the weights of each filter and chunk, (filters, chunks)."""
    return np.add.reduceat(counts, np.arange(0, counts.shape[1], tiling.chunk), axis=1)


def _list_pairs(sizes: Array, order: Array) -> Array:
    """Return the pairs of each list as the kernel meets them, (sets, chunks, filters of a block)."""
    pairs: Array = np.maximum(1, (sizes + 1) // 2).T[:, order].swapaxes(0, 1)
    return np.where(order[:, None] < 0, 1, pairs)


def stage_bytes(tiling: Tiling, counts: Array) -> int:
    """Return the bytes of weights that a stage has room for, given those of each filter and channel."""
    pairs = _list_pairs(_list_sizes(tiling, counts), _order(tiling, counts))
    return PAIR_BYTES * (int(pairs.sum(axis=2).max()) + _head(tiling) + 1)  # one pair is read too far


def laid_out(places: Places, tiling: Tiling, weights: Array) -> LaidOut:
    """Return weights in the order in which warps add their products."""
    counts = _weight_counts(weights)
    order, sizes = _order(tiling, counts), _list_sizes(tiling, counts)
    pairs, head, chunks = _list_pairs(sizes, order), _head(tiling), sizes.shape[1]
    ends = pairs.cumsum(axis=2)
    lengths = ends[:, :, -1].ravel() + head
    begins = lengths.cumsum() - lengths
    within = ends - pairs + head  # units from a segment's first
    stream = np.empty((int(lengths.sum()), 4), np.uint32)
    pitch = tiling.pitch(places)
    stream[:, 0::2], stream[:, 1::2] = FLOAT_BYTES * tiling.chunk * places.phases * pitch, NO_WEIGHT
    heads = np.zeros((lengths.size, 4 * head), np.uint32)
    heads[:, : tiling.block_filters // tiling.filters] = (
        PAIR_BYTES * within.reshape(lengths.size, -1)[:, :: tiling.filters]
    )
    stream[begins[:, None] + np.arange(head)] = heads.reshape(-1, head, 4)
    firsts = begins.reshape(*within.shape[:2], 1) + within
    own = np.empty((weights.shape[0], chunks), np.int64)  # where a filter's lists begin
    own[order[order >= 0]] = firsts.swapaxes(1, 2)[order >= 0]
    numbers = np.flatnonzero(weights)
    taps = places.distances(pitch)
    channels = np.arange(weights.shape[1]) % tiling.chunk * (places.phases * pitch)
    distances = (FLOAT_BYTES * np.add.outer(channels, taps)).astype(np.uint32).ravel()
    lists = sizes.ravel()
    starts = 4 * own.ravel() - 2 * (lists.cumsum() - lists)
    to = np.repeat(starts, lists) + 2 * np.arange(numbers.size)
    flat = stream.reshape(-1)
    flat[to] = distances[numbers % distances.size]
    flat[to + 1] = weights.reshape(-1)[numbers].view(np.uint32)
    stream[(firsts + pairs - 1).ravel(), 2] |= 1
    segments = np.stack([begins, lengths], axis=1).astype(np.int32)
    return LaidOut(stream, segments, order.ravel(), stage_bytes(tiling, counts))


# ---- Launching -----------------------------------------------------------------------------------------------------


def kernel_defines(places: Places, tiling: Tiling, activation: int, adds: bool = False) -> dict[str, int]:
    """Return what the kernel is compiled with: the activation as `activation_define` returns it; whether it adds."""
    return {
        "PIXELS": tiling.pixels,
        "FILTERS": tiling.filters,
        "WARPS": tiling.warps,
        "BLOCKS": tiling.blocks,
        "FOURS": int(places.has_one_tap and tiling.pixels % 4 == 0),
        "ACTIVATION": activation,
        "ADDS": int(adds),
    }


@lru_cache(maxsize=1024)
def numbers_of(places: Places, tiling: Tiling, weight_bytes: int, count: int) -> tuple[Any, ...]:
    """Return the kernel's last arguments for `count` images; `weight_bytes` are a stage's."""
    geometry, down, across = places.geometry, places.down, places.across
    pixels = tiling.pixel_bytes(places)
    found = (
        *(count * places.of_image, geometry.channels, geometry.height, geometry.width),
        *(geometry.filters, geometry.output_height, geometry.output_width, *geometry.stride),
        *(down.first_phase, across.first_phase, down.phase_count, across.phase_count),
        *(down.places, across.places, *divisor(places.of_image), *divisor(across.places)),
        *(places.reach, tiling.pitch(places), tiling.chunk, parts_of(geometry.channels, tiling.chunk)),
        *(parts_of(geometry.filters, tiling.block_filters), tiling.warps // tiling.shares, tiling.stages),
        *(pixels, pixels + weight_bytes, places.copies_fours, places.is_gapless),
    )
    return tuple(number if isinstance(number, np.generic) else np.int32(number) for number in found)


def _tiling_for(layer: ConvLayer, count: int) -> Tiling:
    """Return the tiling of the least estimated time for which a block has room."""
    machine, geometry, counts = machine_of(layer.device), layer.geometry, _weight_counts(layer.source.weights)
    places = places_of(geometry)
    for tiling in tilings(geometry, int(counts.sum()), count, machine):
        if tiling.shared_bytes(places, stage_bytes(tiling, counts)) <= machine.block_bytes:
            return tiling
    raise AssertionError("what fits has a tiling")


def _on_device(layer: ConvLayer, tiling: Tiling) -> LaidOut:
    made = laid_out(places_of(layer.geometry), tiling, layer.source.weights)
    stream, segments, order = to_device([made.stream, made.segments, made.order])
    return LaidOut(stream, segments, order, made.stage_bytes)


def launch_sparse_direct(layer: ConvLayer, images: Array, others: Array | None = None) -> Array:
    """Run a convolution that `fits`; `others`, of the outputs' shape, are added before the activation."""
    machine, geometry = machine_of(layer.device), layer.geometry
    refuse(fits(machine, geometry))
    outputs, places = new_outputs(layer, images), places_of(geometry)
    numbers = max(geometry.channels * geometry.height * geometry.width, outputs[:1].size, places.of_image)
    most = max(1, MOST_NUMBERS // (2 * numbers))
    for first in range(0, images.shape[0], most):
        some = slice(first, first + most)
        _launch(layer, machine, images[some], None if others is None else others[some], outputs[some])
    return outputs


def _launch(layer: ConvLayer, machine: Machine, images: Array, others: Array | None, outputs: Array) -> None:
    if places_of(layer.geometry).copies_fours:
        images = _aligned(images)
    others = None if others is None else _aligned(others)
    count, places = images.shape[0], places_of(layer.geometry)
    bucket = min(MANY, 1 << max(0, count - 1).bit_length())
    key = "sparse_direct", layer.geometry, bucket, machine
    tiling = cache_on_host(layer.source, key, partial(_tiling_for, layer, bucket))
    weights = cache_on_device(layer, tiling, lambda: _on_device(layer, tiling))
    kernel = _PROGRAM.kernel("conv2d", **kernel_defines(places, tiling, activation_define(layer), others is not None))
    sizes = numbers_of(places, tiling, weights.stage_bytes, count)
    added = outputs if others is None else others
    arrays = images, weights.stream, weights.segments, weights.order, layer.bias, layer.clip, added, outputs
    shared = tiling.shared_bytes(places, weights.stage_bytes)
    blocks = blocks_of(places, tiling, count, tiling.resident(shared, machine) * machine.multiprocessors)
    launch("conv2d", kernel, (blocks,), (WARP * tiling.warps,), *arrays, *sizes, shared_bytes=shared)


def _aligned(images: Array) -> Array:
    """Return images at an address from which four numbers can be read at once."""
    pointer: Any = images.data
    return images.copy() if pointer.ptr % (4 * FLOAT_BYTES) else images


def blocks_of(places: Places, tiling: Tiling, count: int, at_a_time: int) -> int:
    """Return the blocks of a launch, each of which has one set of filters and tile of places after the other."""
    sets = parts_of(places.geometry.filters, tiling.block_filters)
    return min(at_a_time, sets * parts_of(count * places.of_image, tiling.block_places))


SPARSE_DIRECT = convolution(
    "conv_sparse_direct",
    launch_sparse_direct,
    "weights other than zero only, times pixels in shared memory, sums of several filters in registers",
    fits,
    needs=("one group",),
    auto=True,
    prior=Prior(WARPS),
    skips_zeros=True,
    adds=True,
    reproducible=True,
)
