"""Sums over the lines of a panel: each output's in registers, with the bias, ReLU and counts; others after the sums.

Every sum takes one fused multiply-add after the other, inputs ascending, and then the bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from numba.core import types

from sparsenn.backends.cpu.activation import IDENTITY, RELU, activate_line
from sparsenn.backends.cpu.packed import WINDOW, Packed
from sparsenn.backends.cpu.slices import pointer_of
from sparsenn.backends.cpu.tiles import GROUP, TILE, VECTOR, four_vectors, one_vector, three_vectors, two_vectors
from sparsenn.formats import Array
from sparsenn.runtime.jit import address_of, compiled

__all__ = [
    "ARRAYS",
    "COUNTS",
    "JOB",
    "LAYER",
    "SLICES",
    "SOURCE",
    "TARGET",
    "VECTORS",
    "finish_line",
    "gather_layer",
    "gather_slice",
    "job_of",
    "windows_of",
]

ARRAYS = len(Packed._fields)
IS_WIDE, LAYER, SLICES, SOURCE, TARGET, VECTORS, COUNTS, JOB = range(ARRAYS + 1, ARRAYS + 9)
# Numbers of a job behind the addresses of `gather_slice` and of `Packed`: whether inputs have 32 bits; the layer, and
# slices of it; addresses of the panels that it reads and writes, and their vectors; the address of counts, `TILE` for
# each slice; then how many numbers a job has.


def job_of(packed: Packed) -> Array:
    """Return a job for layers."""
    job = np.zeros(JOB, np.int64)
    job[: ARRAYS + 1] = [address_of(gather_slice, types.int64, types.int64), *(array.ctypes.data for array in packed)]
    job[IS_WIDE] = packed.inputs.dtype != np.uint16
    return job


@compiled
def finish_line(kind: int, clip: float, bias: float, copies: int, line: Array, base: int, lanes: int,
                 counts: Array) -> None:  # fmt: skip
    """Add the bias to the sums of a panel line, activate, and count its non-zeros as often as the output has copies."""
    zero, top = np.float32(0), np.float32(clip)
    start, many, shift = np.uintp(base), np.int32(copies), np.float32(bias)
    if kind == RELU:
        for lane in range(np.uintp(lanes)):
            z = line[start + lane] + shift
            z = zero if z < zero else z
            z = top if z > top else z
            line[start + lane] = z
            counts[lane] += many if z != zero else np.int32(0)
        return
    for lane in range(np.uintp(lanes)):
        line[start + lane] += shift
    if kind != IDENTITY:
        activate_line(kind, line, base, lanes, top)
    for lane in range(np.uintp(lanes)):
        counts[lane] += many if line[start + lane] != zero else np.int32(0)


@compiled
def windows_of(outputs: int) -> int:
    """Return how many windows some outputs are."""
    windows: int = (outputs + WINDOW - 1) // WINDOW
    return windows


@compiled
def gather_layer(packed: Any, layer: int, source: Array, target: Array, vectors: int, counts: Array, start: int,
                  stop: int) -> None:  # fmt: skip
    """Compute windows start to stop of the outputs of a layer of a panel of 1 to 4 vectors from `source` into `target`.

    The sums of a group stay in registers; where the layer is cut, a block's lines of the source stay in the first-level
    cache while each group adds up its products with them.
    """
    width, blocks, offsets, lines = packed.widths[layer + 1], packed.blocks[layer], packed.offsets, packed.inputs
    biases, copies, values, outputs = packed.bias, packed.copies, packed.values, packed.outputs
    slot, groups = packed.starts[layer], (width + GROUP - 1) // GROUP
    v, step = packed.value_starts[layer], packed.value_strides[layer]
    kind, clip, across = packed.activations[layer], packed.clips[layer], vectors * VECTOR
    begin, end = start * WINDOW // GROUP, min(groups, stop * WINDOW // GROUP)
    counts[:across] = 0
    for block in range(blocks):
        first, fresh, finish = packed.firsts[layer] + block * groups, block == 0, kind == RELU and block == blocks - 1
        for at in range(first + begin, first + end):
            entry, last, group = offsets[at], offsets[at + 1], at * GROUP
            if vectors == 4:
                four_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, clip, copies,
                             counts, outputs, group, target)  # fmt: skip
            elif vectors == 3:
                three_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, clip, copies,
                              counts, outputs, group, target)  # fmt: skip
            elif vectors == 2:
                two_vectors(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, clip, copies,
                            counts, outputs, group, target)  # fmt: skip
            else:
                one_vector(source, lines, entry, last, values, v, step, fresh, finish, biases, slot, clip, copies,
                           counts, outputs, group, target)  # fmt: skip
    if kind != RELU:
        for output in range(start * WINDOW, min(width, stop * WINDOW)):
            bias = slot + output
            finish_line(kind, clip, biases[bias], copies[bias], target, output * across, across, counts)


@compiled
def gather_slice(address: int, number: int) -> None:
    """Compute a slice of the outputs of the layer of the job at an address, with counts of its own."""
    job = carray(pointer_of(address), 1, np.int64)
    if job[IS_WIDE] != 0:
        _gather_slice(job, number, carray(pointer_of(job[8]), 1, np.int32))
    else:
        _gather_slice(job, number, carray(pointer_of(job[8]), 1, np.uint16))


@compiled
def _gather_slice(job: Array, number: int, inputs: Array) -> None:
    packed = Packed(
        carray(pointer_of(job[1]), 1, np.int64), carray(pointer_of(job[2]), 1, np.int64),
        carray(pointer_of(job[3]), 1, np.int64), carray(pointer_of(job[4]), 1, np.int64),
        carray(pointer_of(job[5]), 1, np.int64), carray(pointer_of(job[6]), 1, np.int64),
        carray(pointer_of(job[7]), 1, np.int32), inputs, carray(pointer_of(job[9]), 1, np.float32),
        carray(pointer_of(job[10]), 1, np.int64), carray(pointer_of(job[11]), 1, np.int64),
        carray(pointer_of(job[12]), 1, np.float32), carray(pointer_of(job[13]), 1, np.int32),
        carray(pointer_of(job[14]), 1, np.int64), carray(pointer_of(job[15]), 1, np.float32),
    )  # fmt: skip
    layer, slices = job[LAYER], job[SLICES]
    windows = windows_of(packed.widths[layer + 1])
    source, target = carray(pointer_of(job[SOURCE]), 1, np.float32), carray(pointer_of(job[TARGET]), 1, np.float32)
    counts = carray(pointer_of(job[COUNTS] + 4 * TILE * number), TILE, np.int32)
    start, stop = windows * number // slices, windows * (number + 1) // slices
    gather_layer(packed, layer, source, target, job[VECTORS], counts, start, stop)
