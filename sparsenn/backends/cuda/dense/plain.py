"""The rungs of mlp in float32, from separate kernels to weights in registers, and a library's products beside them.

A launch takes a stack of dense layers and features, a CuPy array (rows, inputs) of float32 in row-major order, and
returns the outputs, a new CuPy array (rows, outputs) of float32. It queues its work on the current stream and does not
wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.cuda.dense.stack import DenseLayer, DenseStack, upload_dense
from sparsenn.backends.cuda.loader import Program, cupy, program
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.cuda.recorder import launch, part
from sparsenn.backends.cuda.sparse.stack import activation_code
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import Identity, Linear, ReLU

__all__ = [
    "GENERAL",
    "LIBRARY",
    "RUNGS",
    "STUDY_WIDTHS",
    "Rung",
    "described",
    "fits",
    "fits_any",
    "launch_cublas",
    "launch_fused_global",
    "launch_fused_shared",
    "launch_last_layer_cooperative",
    "launch_matmul_relu",
    "launch_shared_and_registers",
    "launch_whole_net_registers",
    "launch_whole_net_shared",
    "resident_blocks",
    "upload",
]

STUDY_WIDTHS = (72, 64, 64, 4)
"""The network that the specialised rungs are written for; as in `kernels/mlp/mlp.cuh`."""

SIDE = 16
"""Edge of the square of outputs that a block of matmul_relu computes."""

THREADS = 256
"""Of a block of every other kernel."""

ROWS, PAIRED_ROWS = 4, 2
"""Rows that a block takes at a time, with a thread and with two for each hidden output."""

_MATMUL_RELU = program("mlp/01_matmul_relu.cu", SIDE=(SIDE,), THREADS=(THREADS,))
_FUSED_GLOBAL = program("mlp/02_fused_global.cu", THREADS=(THREADS,))
_FUSED_SHARED = program("mlp/03_fused_shared.cu", THREADS=(THREADS,))
_WHOLE_NET_SHARED = program("mlp/04_whole_net_shared.cu", THREADS=(THREADS,))
_SHARED_AND_REGISTERS = program("mlp/05_shared_and_registers.cu", THREADS=(THREADS,))
_LAST_LAYER_COOPERATIVE = program("mlp/06_last_layer_cooperative.cu", THREADS=(THREADS,))
_WHOLE_NET_REGISTERS = program("mlp/07_whole_net_registers.cu", THREADS=(THREADS,))
_EPILOGUE = program("mlp/epilogue.cu", THREADS=(THREADS,))

_RELU, _IDENTITY = (activation_code(Linear(np.ones((1, 1)), None, kind()), 1)[0] for kind in (ReLU, Identity))

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

_tables: WeakKeyDictionary[DenseStack, Array] = WeakKeyDictionary()


def upload(device: int, layers: Sequence[Linear]) -> DenseStack:
    """Copy layers to the device `device`.

    Raises
    ------
    UsageError
        A layer has an activation that the kernels do not know.
    OutOfMemoryError
        The device's memory does not suffice.
    """
    size = sum(layer.weights.nbytes for layer in layers)
    with cupy().cuda.Device(device), within_memory(f"{size:,} bytes of weights", 0, 0):
        return upload_dense(device, layers)


def described(layers: Sequence[Linear]) -> DenseStack:
    """Return a stack whose arrays are on the host: enough to ask a rung whether layers fit, with no device."""
    made = (
        DenseLayer(layer.weights, layer.bias_vector(), *activation_code(layer, number))
        for number, layer in enumerate(layers, start=1)
    )
    return DenseStack(-1, tuple(made))


def fits(stack: DenseStack) -> str | None:
    """Return why a stack is not the network of the specialised rungs; None if it is.

    That network has the widths `STUDY_WIDTHS`, a ReLU without clip after each hidden layer and nothing after the last.
    """
    if stack.widths != STUDY_WIDTHS:
        return f"the network is {_dashed(stack.widths)}; the kernel is written for {_dashed(STUDY_WIDTHS)}"
    *hidden, last = stack.layers
    if any(layer.activation != _RELU or np.isfinite(layer.clip) for layer in hidden) or last.activation != _IDENTITY:
        return "the kernel is written for ReLU without clip after hidden layers, and no activation after the last"
    return None


def fits_any(stack: DenseStack) -> str | None:
    """Return None: every stack of dense layers fits."""
    return None


def _dashed(widths: Sequence[int]) -> str:
    return " - ".join(map(str, widths))


def launch_matmul_relu(stack: DenseStack, features: Array) -> Array:
    """Run any stack, a product and an activation in turn, each a kernel of its own."""
    cp = cupy()
    product, activate = _MATMUL_RELU.kernel("matmul"), _MATMUL_RELU.kernel("activate_all")
    rows = features.shape[0]
    for layer in stack.layers:
        sums = cp.empty((rows, layer.outputs), np.float32)
        column_blocks = _parts(layer.outputs, SIDE)
        sizes = np.int64(rows), np.int32(layer.inputs), np.int32(layer.outputs), np.int32(column_blocks)
        arrays = features, layer.weights, layer.bias, sums
        launch("mlp", product, (_parts(rows, SIDE) * column_blocks,), (SIDE, SIDE), *sizes, *arrays)
        if layer.activation != _IDENTITY:
            given = np.int64(sums.size), sums, layer.activation, layer.clip
            launch("mlp", activate, (_parts(sums.size, THREADS),), (THREADS,), *given)
        features = sums
    return features


def launch_fused_global(stack: DenseStack, features: Array) -> Array:
    """Run any stack in one kernel, intermediates in global memory."""
    cp = cupy()
    rows, widths = features.shape[0], stack.widths
    rows_per_block = max(1, THREADS // max(widths[1:]))
    scratch_width = max(widths[1:-1], default=0)
    scratch = [cp.empty((rows, scratch_width), np.float32) for _ in range(2)]
    outputs: Array = cp.empty((rows, widths[-1]), np.float32)
    if stack not in _tables:
        _tables[stack] = cp.asarray(np.array([_line(layer) for layer in stack.layers], _LAYER).view(np.uint8))
    sizes = np.int64(rows), np.int32(rows_per_block), np.int32(len(stack.layers)), np.int32(scratch_width)
    grid = (_parts(rows, rows_per_block),)
    launch("mlp", _FUSED_GLOBAL.kernel("mlp"), grid, (THREADS,), *sizes, _tables[stack], features, *scratch, outputs)
    return outputs


def _line(layer: DenseLayer) -> tuple[Any, ...]:
    pointers = (array.data.ptr for array in (layer.weights, layer.bias))  # type: ignore[attr-defined]
    return (*pointers, layer.inputs, layer.outputs, layer.activation, layer.clip)


def launch_fused_shared(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, a layer's weights at a time in shared memory."""
    return _run(_FUSED_SHARED, ROWS, False, stack, features)


def launch_whole_net_shared(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, all weights in shared memory, blocks taking many rows."""
    return _run(_WHOLE_NET_SHARED, ROWS, True, stack, features)


def launch_shared_and_registers(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, the second layer's weights in registers."""
    return _run(_SHARED_AND_REGISTERS, ROWS, True, stack, features)


def launch_last_layer_cooperative(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, 16 lanes sharing an output of the last layer."""
    return _run(_LAST_LAYER_COOPERATIVE, ROWS, True, stack, features)


def launch_whole_net_registers(stack: DenseStack, features: Array) -> Array:
    """Run the specialised network, all weights in registers, threads in pairs."""
    return _run(_WHOLE_NET_REGISTERS, PAIRED_ROWS, True, stack, features)


def launch_cublas(stack: DenseStack, features: Array) -> Array:
    """Run any stack: cuBLAS's product through CuPy, then a kernel for bias and activation."""
    cp = cupy()
    kernel = _EPILOGUE.kernel("add_bias_and_activate")
    for layer in stack.layers:
        with part("mlp"):
            sums = cp.matmul(features, layer.weights)
        given = np.int64(sums.size), np.int32(layer.outputs), sums, layer.bias, layer.activation, layer.clip
        launch("mlp", kernel, (_parts(sums.size, THREADS),), (THREADS,), *given)
        features = sums
    return features


def _run(source: Program, rows_at_a_time: int, loops: bool, stack: DenseStack, features: Array) -> Array:
    """Launch a rung for the specialised network; one that loops over rows gets as many blocks as run at a time."""
    reason = fits(stack)
    if reason is not None:
        raise UsageError(reason)
    rows = features.shape[0]
    outputs: Array = cupy().empty((rows, STUDY_WIDTHS[-1]), np.float32)
    kernel = source.kernel("mlp")
    blocks = _parts(rows, rows_at_a_time)
    if loops:
        blocks = min(blocks, resident_blocks(kernel, THREADS, stack.device))
    parameters = (array for layer in stack.layers for array in (layer.weights, layer.bias))
    launch("mlp", kernel, (blocks,), (THREADS,), np.int64(rows), features, *parameters, outputs)
    return outputs


def _parts(total: int, size: int) -> int:
    return -(-total // size)


@cache
def resident_blocks(kernel: Any, threads: int, device: int) -> int:
    """Return how many blocks of so many threads run at a time on a device, by what the kernel takes.

    Registers are given to warps in units of 256, and the system takes 1 KiB of shared memory of each block
    (CUDA C++ Programming Guide, compute capabilities 8.0 and 9.0).
    """
    found = cupy().cuda.runtime.getDeviceProperties(device)
    registers = _parts(32 * kernel.num_regs, 256) * 256 * _parts(threads, 32)
    limits = (
        found["regsPerMultiprocessor"] // registers,
        found["sharedMemPerMultiprocessor"] // (kernel.shared_size_bytes + (1 << 10)),
        found["maxThreadsPerMultiProcessor"] // threads,
    )
    return int(found["multiProcessorCount"] * max(1, min(limits)))


Rung = tuple[str, Callable[[DenseStack, Array], Array], str]

RUNGS: tuple[Rung, ...] = (
    ("matmul_relu", launch_matmul_relu, "a product and an activation in turn, each a kernel of its own"),
    ("fused_global", launch_fused_global, "all layers in one kernel, what lies between them in global memory"),
    ("fused_shared", launch_fused_shared, "intermediates, and a layer's weights at a time, in shared memory"),
    ("whole_net_shared", launch_whole_net_shared, "the whole network in shared memory, many rows a thread"),
    ("shared_and_registers", launch_shared_and_registers, "first and last layer in shared memory, second in registers"),
    ("last_layer_cooperative", launch_last_layer_cooperative, "as before; all threads work on the output layer"),
    ("whole_net_registers", launch_whole_net_registers, "all weights in registers, two threads a hidden output"),
)
"""Name, launch and summary of the float32 rungs, in the ladder's order."""

GENERAL = ("matmul_relu", "fused_global")
"""The rungs that take any stack; the others take what `fits`."""

LIBRARY: Rung = ("cublas", launch_cublas, "cuBLAS's products, and a kernel for bias and activation after each")
"""What a library does, for comparison."""
