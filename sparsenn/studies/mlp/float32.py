"""The rungs of mlp in float32, from separate kernels to weights in registers.

A launch takes a stack of dense layers and features, a CuPy array (rows, inputs) of float32 in row-major order, and
returns the outputs, a new CuPy array (rows, outputs) of float32. It queues its work on the current stream and does not
wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.fused import blocks_at_once
from sparsenn.backends.cuda.dense.kernel import dense_kernel
from sparsenn.backends.cuda.dense.stack import DenseLayer, DenseStack, StackShape
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import Program, program
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

STUDY_WIDTHS = (72, 64, 64, 4)
"""The network that the specialised rungs are written for; as in `kernels/mlp.cuh`."""

NEEDS = ("layers 72 - 64 - 64 - 4, ReLU between them",)  # the same in words

SIDE = 16
"""Edge of the square of outputs that a block of matmul_relu computes."""

THREADS = 256  # of a block of every other kernel

ROWS = 4  # of a block at a time, with one thread for each hidden output
PAIRED_ROWS = 2  # of a block at a time, with two threads for each hidden output

_MATMUL_RELU = program("studies/mlp/kernels/01_matmul_relu.cu", SIDE=(SIDE,), THREADS=(THREADS,))
_FUSED_GLOBAL = program("studies/mlp/kernels/02_fused_global.cu", THREADS=(THREADS,))
_FUSED_SHARED = program("studies/mlp/kernels/03_fused_shared.cu", THREADS=(THREADS,))
_WHOLE_NET_SHARED = program("studies/mlp/kernels/04_whole_net_shared.cu", THREADS=(THREADS,))
_SHARED_AND_REGISTERS = program("studies/mlp/kernels/05_shared_and_registers.cu", THREADS=(THREADS,))
_LAST_LAYER_COOPERATIVE = program("studies/mlp/kernels/06_last_layer_cooperative.cu", THREADS=(THREADS,))
_WHOLE_NET_REGISTERS = program("studies/mlp/kernels/07_whole_net_registers.cu", THREADS=(THREADS,))

_LAYER = np.dtype(
    [
        ("weights", np.uint64),
        ("bias", np.uint64),
        ("inputs", np.int32),
        ("outputs", np.int32),
        ("activation", np.int32),
        ("clip", np.float32),
    ]
)
"""A line of the table that fused_global reads: `struct Layer` in its source."""


def fits(machine: Machine, shape: StackShape) -> str | None:
    """Return why a stack is not the network of the specialised rungs; None if it is.

    That network has the widths `STUDY_WIDTHS`, a ReLU without clip after each hidden layer and nothing after the last.
    """
    if shape.widths != STUDY_WIDTHS:
        return f"the network is {_dashed(shape.widths)}; the kernel is written for {_dashed(STUDY_WIDTHS)}"
    *hidden, last = shape.activations
    if any(code != (RELU, False) for code in hidden) or last[0] != IDENTITY:
        return "the kernel is written for ReLU without clip after hidden layers, and no activation after the last"
    return None


def _dashed(widths: Sequence[int]) -> str:
    return " - ".join(map(str, widths))


def _launch_matmul_relu(stack: DenseStack, features: Array) -> Array:
    cp = cupy()
    product, activate = _MATMUL_RELU.kernel("matmul"), _MATMUL_RELU.kernel("activate_all")
    rows = features.shape[0]
    for layer in stack.layers:
        sums = cp.empty((rows, layer.outputs), np.float32)
        column_blocks = parts_of(layer.outputs, SIDE)
        sizes = np.int64(rows), np.int32(layer.inputs), np.int32(layer.outputs), np.int32(column_blocks)
        arrays = features, layer.weights, layer.bias, sums
        launch("mlp", product, (parts_of(rows, SIDE) * column_blocks,), (SIDE, SIDE), *sizes, *arrays)
        if layer.activation != IDENTITY:
            given = np.int64(sums.size), sums, layer.activation, layer.clip
            launch("mlp", activate, (parts_of(sums.size, THREADS),), (THREADS,), *given)
        features = sums
    return features


def _launch_fused_global(stack: DenseStack, features: Array) -> Array:
    cp = cupy()
    rows, widths = features.shape[0], stack.widths
    rows_per_block = max(1, THREADS // max(widths[1:]))
    scratch_width = max(widths[1:-1], default=0)
    scratch = [cp.empty((rows, scratch_width), np.float32) for _ in range(2)]
    outputs: Array = cp.empty((rows, widths[-1]), np.float32)
    table = cache_on_device(stack, "fused_global", lambda: _table(stack))
    sizes = np.int64(rows), np.int32(rows_per_block), np.int32(len(stack.layers)), np.int32(scratch_width)
    grid = (parts_of(rows, rows_per_block),)
    launch("mlp", _FUSED_GLOBAL.kernel("mlp"), grid, (THREADS,), *sizes, table, features, *scratch, outputs)
    return outputs


def _table(stack: DenseStack) -> Array:
    return cupy().asarray(np.array([_line(layer) for layer in stack.layers], _LAYER).view(np.uint8))


def _line(layer: DenseLayer) -> tuple[Any, ...]:
    pointers = (array.data.ptr for array in (layer.weights, layer.bias))  # type: ignore[attr-defined]
    return (*pointers, layer.inputs, layer.outputs, layer.activation, layer.clip)


def run_specialised(
    source: Program, tile: int, loops: bool, stack: DenseStack, features: Array, weights: Sequence[Any] | None = None
) -> Array:
    """Launch a rung for the specialised network: a block for each tile of rows, or, if it loops, as many as fit.

    `weights` are in another order than the layers'.
    """
    rows = features.shape[0]
    outputs: Array = cupy().empty((rows, STUDY_WIDTHS[-1]), np.float32)
    kernel = source.kernel("mlp")
    blocks = parts_of(rows, tile)
    if loops:
        blocks = min(blocks, resident_blocks(kernel, THREADS, stack.device))
    own = [layer.weights for layer in stack.layers] if weights is None else weights
    parameters = (array for pair in zip(own, stack.layers, strict=True) for array in (pair[0], pair[1].bias))
    launch("mlp", kernel, (blocks,), (THREADS,), np.int64(rows), features, *parameters, outputs)
    return outputs


def resident_blocks(kernel: Any, threads: int, device: int) -> int:
    """Return how many blocks of so many threads, whole warps, run at a time on a device, by what the kernel takes."""
    return machine_of(device).multiprocessors * blocks_at_once(kernel, threads, 0, device)


_specialised = partial(dense_kernel, fits=fits, needs=NEEDS)

KERNELS = (
    dense_kernel("matmul_relu", _launch_matmul_relu, "a product and an activation in turn, each a kernel of its own"),
    dense_kernel(
        "fused_global", _launch_fused_global, "all layers in one kernel, what lies between them in global memory"
    ),
    _specialised(
        "fused_shared",
        partial(run_specialised, _FUSED_SHARED, ROWS, False),
        "intermediates, and a layer's weights at a time, in shared memory",
    ),
    _specialised(
        "whole_net_shared",
        partial(run_specialised, _WHOLE_NET_SHARED, ROWS, True),
        "the whole network in shared memory, many rows per thread",
    ),
    _specialised(
        "shared_and_registers",
        partial(run_specialised, _SHARED_AND_REGISTERS, ROWS, True),
        "first and last layer in shared memory, second in registers",
    ),
    _specialised(
        "last_layer_cooperative",
        partial(run_specialised, _LAST_LAYER_COOPERATIVE, ROWS, True),
        "as before; all threads work on the output layer",
    ),
    _specialised(
        "whole_net_registers",
        partial(run_specialised, _WHOLE_NET_REGISTERS, PAIRED_ROWS, True),
        "all weights in registers, two threads per hidden output",
    ),
)
"""In the ladder's order."""
