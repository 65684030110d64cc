"""The first story's rung for images that are on the host: copied and computed piece by piece, one beside the other.

The batch is cut into pieces. Each travels to the device, is computed and travels back on one of a few streams, so that
while one piece is computed another arrives and a third leaves: the copies in both directions and the computation go on
at the same time. What counts is the time from images on the host to outputs on the host; the kernel is the same.

Copies only go on by themselves from and to pinned memory. Arrays that lie there, such as `pinned` makes, are copied as
they are; others through pinned pieces, which threads of the host fill and empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv import register_tiled
from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import convolution, everywhere, new_outputs, outputs_shape
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.memory import pinned_array, within_memory
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.studies.conv2d.direct.float32 import compute_baseline

STREAMS = 3
"""Pieces under way at a time: one arrives, one is computed, one leaves."""

PIECES = 8  # into which images on the device are cut

PIECE_BYTES = 32 << 20
"""Of inputs or outputs, whichever are more: enough that starting a copy costs little beside it."""

MULTIPLE = 4
"""Images that a piece is a multiple of, so that each begins at a multiple of 16 bytes."""

COPIERS = 8  # most threads that fill and empty pinned pieces


def _kernel(layer: ConvLayer) -> Callable[[ConvLayer, Array, Array], None]:
    """Return the fastest kernel of plain float32 that takes a convolution."""
    if register_tiled.fits(machine_of(layer.device), layer.geometry) is None:
        return register_tiled.compute_register_tiled
    return compute_baseline


# ---- Pieces -------------------------------------------------------------------------------------------------------


def bounds(images: int, pieces: int) -> list[tuple[int, int]]:
    """Return the first image and the one after the last of each piece; pieces are equal but for the last."""
    if pieces < 1:
        raise UsageError(f"images cannot be cut into {pieces} pieces; give 1 or more")
    size = max(1, parts_of(parts_of(images, pieces), MULTIPLE)) * MULTIPLE
    return [(first, min(images, first + size)) for first in range(0, images, size)]


def pieces_for(geometry: Geometry, images: int) -> int:
    """Return into how many pieces images on the host should be cut."""
    given = geometry.channels * geometry.height * geometry.width
    made = geometry.filters * geometry.output_height * geometry.output_width
    return max(1, parts_of(4 * images * max(given, made), PIECE_BYTES))


def launch_streamed(layer: ConvLayer, images: Array) -> Array:
    """Run any convolution in pieces.

    Parameters
    ----------
    images : (images, channels, height, width) float32 in row-major order; on the device, or a NumPy array.

    Returns
    -------
    (images, filters, output height, output width) float32, where the images are. Work on device arrays is queued on the
    current stream and not waited for.
    """
    if type(images) is np.ndarray:
        return run_streamed(layer, images)
    outputs = new_outputs(layer, images)
    compute = _kernel(layer)
    for first, end in bounds(images.shape[0], PIECES):
        compute(layer, images[first:end], outputs[first:end])
    return outputs


# ---- Pinned memory ------------------------------------------------------------------------------------------------


def pinned(shape: tuple[int, ...]) -> Array:
    """Return a host array of float32 in pinned memory: copies from and to it go on beside computation."""
    return pinned_array(shape, np.dtype(np.float32))


def is_pinned(array: Array) -> bool:
    """Return whether a host array lies in pinned memory that CuPy has given out."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, cupy().cuda.PinnedMemoryPointer)


# ---- From host to host --------------------------------------------------------------------------------------------


@dataclass
class _Slot:
    """Room for one piece: a stream, device arrays, and pinned arrays where host arrays are not pinned themselves."""

    stream: Any
    images: Array
    outputs: Array
    pinned_images: Array | None
    pinned_outputs: Array | None
    piece: tuple[int, int] | None = None


def run_streamed(layer: ConvLayer, images: Array, pieces: int | None = None, outputs: Array | None = None) -> Array:
    """Run any convolution from host to host, copies and computation side by side. Returns when the outputs are there.

    Parameters
    ----------
    images : (images, channels, height, width) float32, a NumPy array in row-major order.
    pieces : into which the images are cut; as `pieces_for` unless given.
    outputs : where the outputs go, (images, filters, output height, output width) float32; a new array unless given.

    Returns
    -------
    `outputs`.
    """
    outputs = _checked(layer, images, outputs)
    count = images.shape[0]
    given = layer.geometry
    cut = bounds(count, pieces_for(given, count) if pieces is None else pieces)
    if not cut:
        return outputs
    cp = cupy()
    most = cut[0][1]
    compute = _kernel(layer)
    row = 4 * (prod(images.shape[1:]) + prod(outputs.shape[1:]))
    with cp.cuda.Device(layer.device), within_memory("a piece of the images", most, STREAMS * row):
        ready = cp.cuda.get_current_stream().record()
        slots = [_slot(most, images, outputs) for _ in range(min(STREAMS, len(cut)))]
        with ThreadPoolExecutor(min(COPIERS, os.cpu_count() or 1)) as copiers:
            try:
                for number, piece in enumerate(cut):
                    slot = slots[number % len(slots)]
                    _empty(slot, outputs, copiers)
                    slot.stream.wait_event(ready)
                    _send(slot, piece, images, copiers)
                    with slot.stream:
                        there = piece[1] - piece[0]
                        compute(layer, slot.images[:there], slot.outputs[:there])
                    _fetch(slot, outputs)
                for number in range(len(cut), len(cut) + len(slots)):
                    _empty(slots[number % len(slots)], outputs, copiers)
            finally:
                for slot in slots:
                    slot.stream.synchronize()
    return outputs


def _checked(layer: ConvLayer, images: Array, outputs: Array | None) -> Array:
    shape = outputs_shape(layer, images)
    if outputs is None:
        return np.empty(shape, np.float32)
    if outputs.shape != shape or outputs.dtype != np.float32 or not outputs.flags.c_contiguous:
        raise ShapeError(
            f"the array for the outputs is {outputs.dtype} of shape {outputs.shape}; give float32 of shape {shape} in "
            "row-major order"
        )
    return outputs


def _slot(most: int, images: Array, outputs: Array) -> _Slot:
    cp = cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    shapes = (most, *images.shape[1:]), (most, *outputs.shape[1:])
    with stream:
        placed = [cp.empty(shape, np.float32) for shape in shapes]
    staged = [
        None if is_pinned(array) else pinned(shape) for array, shape in zip((images, outputs), shapes, strict=True)
    ]
    return _Slot(stream, placed[0], placed[1], staged[0], staged[1])


def _send(slot: _Slot, piece: tuple[int, int], images: Array, copiers: Executor) -> None:
    slot.piece = piece
    source = images[piece[0] : piece[1]]
    if slot.pinned_images is not None:
        staged = slot.pinned_images[: len(source)]
        _copy(source, staged, copiers)
        source = staged
    _transfer(slot, slot.images, source, cupy().cuda.runtime.memcpyHostToDevice)


def _fetch(slot: _Slot, outputs: Array) -> None:
    assert slot.piece is not None
    first, end = slot.piece
    target = outputs[first:end] if slot.pinned_outputs is None else slot.pinned_outputs[: end - first]
    _transfer(slot, target, slot.outputs[: end - first], cupy().cuda.runtime.memcpyDeviceToHost)


def _transfer(slot: _Slot, to: Array, source: Array, kind: int) -> None:
    """Copy a piece on the slot's stream; the smaller of the arrays says how much."""
    cupy().cuda.runtime.memcpyAsync(_address(to), _address(source), source.nbytes, kind, slot.stream.ptr)


def _address(array: Any) -> int:
    return int(array.ctypes.data if type(array) is np.ndarray else array.data.ptr)


def _empty(slot: _Slot, outputs: Array, copiers: Executor) -> None:
    """Wait for the slot's piece, and put its outputs where they belong."""
    if slot.piece is None:
        return
    slot.stream.synchronize()
    first, end = slot.piece
    slot.piece = None
    if slot.pinned_outputs is not None:
        _copy(slot.pinned_outputs[: end - first], outputs[first:end], copiers)


def _copy(source: Array, to: Array, copiers: Executor) -> None:
    """Copy images by several threads."""
    step = max(1, parts_of(len(source), COPIERS))
    ranges = (slice(first, first + step) for first in range(0, len(source), step))
    done, _ = wait([copiers.submit(np.copyto, to[part], source[part]) for part in ranges])
    for task in done:
        task.result()


STREAMED = convolution(
    "conv_streamed",
    launch_streamed,
    "the fastest kernel in pieces; on images on the host, copies and computation overlap",
    everywhere(why_too_large),
)
