"""The rungs of mlp that run any narrow stack in one kernel: rows are read once, outputs written once.

A launch takes a stack of dense layers and features, a CuPy array (rows, inputs) of float32 in row-major order, and
returns the outputs, a new CuPy array (rows, outputs) of float32. It queues its work on the current stream and does not
wait for it, but for the first launch of a stack, which compiles a kernel for its widths and lays its weights out.
`launch_tensor_half` takes features of float16 too, and then returns float16.

What a number may be off by: `fused_fma` and `tensor_float32` keep float32's precision, infinities and NaN included,
but denormal numbers count as zero. `tensor_tf32` rounds what it multiplies to 11 bits. So does `tensor_half`, whose
inputs and intermediates become infinite beyond 65,504; weights must not exceed that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.image import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    Kind,
    fma_floats,
    fma_image,
    image,
    tiles_of,
)
from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import cupy, module, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.tiling import WARP, Limits, device_limits
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.layers import Linear

__all__ = [
    "PRECISIONS",
    "RUNGS",
    "WIDEST",
    "Plan",
    "Rung",
    "fits",
    "fma_seconds",
    "launch_fused_fma",
    "launch_tensor_float32",
    "launch_tensor_half",
    "launch_tensor_tf32",
    "plan",
    "rows_of_block",
    "tensor_float32_seconds",
]

Launch = Callable[[DenseStack, Array], Array]
Rung = tuple[str, Launch, str]

WIDEST = 256
"""Most inputs or outputs of a layer."""

IN_REGISTERS = 128
"""The widest layer whose inputs and outputs stay in registers."""

TWO_ROW_TILES = 17
"""Most tiles of 8 columns that inputs and outputs of a layer may be together, for a warp to take 32 rows at a time."""

LEAST_WARPS = 4
"""Warps that must find room beside weights in shared memory; weights stay in global memory otherwise."""

HALF_MAX = 65_504.0
"""The largest number of half precision."""

FMA_THREADS, FMA_ROWS = 256, (128, 64, 32)
"""fused_fma: threads of a block, and the rows that it may take."""

FMA_RATE, TENSOR_FLOAT32_RATE, WIDE_TENSOR_FLOAT32_RATE = 1.6e13, 3.0e13, 1.25e13
"""Multiply-adds a second of fused_fma and tensor_float32, the latter with rows in registers and in shared memory: each
measured on an H200, with stacks of layers 64 to 256 wide."""

RELU, RELU_CLIPPED = 0, 4
"""Activations as the kernels are compiled for them; sigmoid, tanh and identity are as in `kernels/common.cuh`."""


# ---- Which networks, and how they are cut -----------------------------------------------------------------------


def fits(stack: DenseStack) -> str | None:
    """Return why the kernels cannot run a stack; None if they can: inputs and outputs of all layers up to `WIDEST`."""
    if max(stack.widths) <= WIDEST:
        return None
    return f"a layer has {max(stack.widths):,} inputs or outputs; the fused kernels take up to {WIDEST}"


@dataclass(frozen=True)
class Plan:
    """How a tensor-core kernel is compiled and launched.

    Parameters
    ----------
    row_tiles : 16 rows each, that a warp takes at a time.
    most_warps : of a block, which the kernel is compiled for.
    warps : of a block, which it is launched with.
    staged : weights are copied to shared memory.
    wide : inputs and outputs of a layer lie in shared memory.
    shared_bytes : of a block.
    tiles : of rows.
    """

    row_tiles: int
    most_warps: int
    warps: int
    staged: bool
    wide: bool
    shared_bytes: int
    tiles: int


def plan(kind: Kind, widths: tuple[int, ...], rows: int, limits: Limits) -> Plan:
    """Choose how a network of given widths is run on so many rows.

    With few rows, tiles are small and blocks have few warps, so that all multiprocessors have something to do.
    """
    sizes = [tiles_of(width) for width in widths]
    vectors = 4 * (8 * sum(sizes[1:]) + len(widths) - 1)
    held = -(-vectors // 16) * 16 + kind.weight_bytes * sum(before * after for before, after in pairwise(sizes))
    scratch = kind.scratch * max(widths)
    own = scratch + 256 * kind.registers * max(sizes)
    wide = max(widths) > IN_REGISTERS or held + kind.warps * scratch > limits.block_bytes
    staged = not wide or held + LEAST_WARPS * own <= limits.block_bytes
    most = min(kind.warps, (limits.block_bytes - held * staged) // own) if wide else kind.warps
    together = max(before + after for before, after in pairwise(sizes))
    many = not wide and together <= TWO_ROW_TILES and rows > 32 * most * limits.multiprocessors
    row_tiles = kind.row_tiles if many else 1
    tiles = -(-rows // (16 * row_tiles))
    warps = max(1, min(most, -(-tiles // limits.multiprocessors)))
    shared = held * staged + warps * (own if wide else scratch)
    return Plan(row_tiles, kind.warps, warps, staged, wide, shared, tiles)


def rows_of_block(widths: tuple[int, ...], rows: int, limits: Limits) -> tuple[int, bool, int]:
    """Return the rows of a block of fused_fma, whether weights are staged, and its bytes of shared memory.

    Two blocks should find room on a multiprocessor, and each should find work.
    """
    held = 4 * fma_floats(widths)
    room = limits.multiprocessor_bytes // 2 - 1024
    enough = [size for size in FMA_ROWS if -(-rows // size) >= 2 * limits.multiprocessors] or [FMA_ROWS[-1]]
    for size in enough:
        both = 8 * max(widths) * (size + 4)
        if held + both <= room:
            return size, True, held + both
    fitting = (size for size in enough if 8 * max(widths) * (size + 4) <= room)
    size = next(fitting, FMA_ROWS[-1])
    return size, False, 8 * max(widths) * (size + 4)


def fma_seconds(layers: Sequence[Linear], rows: int) -> float:
    """Estimate what fused_fma takes for so many rows."""
    return rows * sum(layer.edges for layer in layers) / FMA_RATE


def tensor_float32_seconds(layers: Sequence[Linear], rows: int) -> float:
    """Estimate what tensor_float32 takes for so many rows: rows in shared memory cost it its lead over fused_fma."""
    widths = (layers[0].inputs, *(layer.outputs for layer in layers))
    rate = WIDE_TENSOR_FLOAT32_RATE if plan(FLOAT32, widths, rows, Limits()).wide else TENSOR_FLOAT32_RATE
    return rows * sum(layer.edges for layer in layers) / rate


# ---- Launching -----------------------------------------------------------------------------------------------------


@cache
def _kernel(source: str, defines: tuple[tuple[str, int | str], ...], device: int) -> Any:
    kernel = module(source, dict(defines)).get_function("mlp")
    kernel.max_dynamic_shared_size_bytes = device_limits(device).block_bytes
    return kernel


@cache
def _blocks_at_once(kernel: Any, threads: int, shared: int, device: int) -> int:
    """Return how many blocks a multiprocessor has at a time.

    Registers are given to warps in units of 256, and the system takes 1 KiB of shared memory of each block (CUDA C++
    Programming Guide, compute capabilities 8.0 and 9.0).
    """
    found = cupy().cuda.runtime.getDeviceProperties(device)
    registers = -(-WARP * kernel.num_regs // 256) * 256 * (threads // WARP)
    limits = (
        found["regsPerMultiprocessor"] // registers,
        found["sharedMemPerMultiprocessor"] // (shared + kernel.shared_size_bytes + 1024),
        found["maxThreadsPerMultiProcessor"] // threads,
    )
    return max(1, int(min(limits)))


def _network(widths: tuple[int, ...], activations: tuple[int, ...]) -> dict[str, int | str]:
    return {"WIDTHS": ",".join(map(str, widths)), "ACTIVATIONS": ",".join(map(str, activations))}


def _activations(stack: DenseStack) -> tuple[int, ...]:
    codes = ((int(layer.activation), bool(np.isfinite(layer.clip))) for layer in stack.layers)
    return tuple(RELU_CLIPPED if code == RELU and clipped else code for code, clipped in codes)


def _defines(stack: DenseStack, features: Array, **others: int | str) -> tuple[tuple[str, int | str], ...]:
    pointer: Any = features.data
    vector = features.shape[1] % 4 == 0 and pointer.ptr % (4 * features.itemsize) == 0
    every = {**_network(stack.widths, _activations(stack)), "VECTOR": int(vector), **others}
    return tuple(sorted(every.items()))


def _check(stack: DenseStack, features: Array, types: tuple[Any, ...]) -> None:
    reason = fits(stack)
    if reason is not None:
        raise UsageError(reason)
    if features.ndim != 2 or features.shape[1] != stack.widths[0]:
        raise ShapeError(f"the features have shape {features.shape}; the first layer takes (rows, {stack.widths[0]})")
    if features.dtype not in types or not features.flags.c_contiguous:
        names = " or ".join(np.dtype(kind).name for kind in types)
        raise UsageError(f"the features are {features.dtype}, strides {features.strides}; give {names} in row order")


def _run(kind: Kind, stack: DenseStack, features: Array, **others: int | str) -> Array:
    cp = cupy()
    rows = features.shape[0]
    outputs: Array = cp.empty((rows, stack.widths[-1]), features.dtype)
    if not rows:
        return outputs
    limits = device_limits(stack.device)
    chosen = plan(kind, stack.widths, rows, limits)
    shape = {"ROW_TILES": chosen.row_tiles, "WARPS": chosen.most_warps}
    room = {"STAGED": int(chosen.staged), "WIDE": int(chosen.wide)}
    kernel = _kernel(kind.source, _defines(stack, features, **shape, **room, **others), stack.device)
    threads = WARP * chosen.warps
    at_once = limits.multiprocessors * _blocks_at_once(kernel, threads, chosen.shared_bytes, stack.device)
    blocks = min(chosen.tiles, max(limits.multiprocessors, min(at_once, -(-chosen.tiles // chosen.warps))))
    images = [kept(stack, kind.source, lambda: image(cp, kind, stack.layers))]
    if kind is FLOAT32:
        images.append(kept(stack, "plain", lambda: cp.concatenate([layer.weights.ravel() for layer in stack.layers])))
    arguments = features, outputs, *images, np.int64(rows)
    launch("mlp", kernel, (blocks,), (threads,), *arguments, shared_bytes=chosen.shared_bytes)
    return outputs


def launch_fused_fma(stack: DenseStack, features: Array) -> Array:
    """Run a stack in one kernel of ordinary float32 multiply-adds.

    Raises
    ------
    UsageError
        A layer is wider than `WIDEST`, or the features are no row-major float32 array.
    ShapeError
        The features do not have the first layer's width.
    """
    _check(stack, features, (np.float32,))
    cp = cupy()
    rows = features.shape[0]
    outputs: Array = cp.empty((rows, stack.widths[-1]), np.float32)
    limits = device_limits(stack.device)
    size, staged, shared = rows_of_block(stack.widths, rows, limits)
    others = {"ROWS": size, "THREADS": FMA_THREADS, "STAGED": int(staged)}
    kernel = _kernel("mlp/20_fused_fma.cu", _defines(stack, features, **others), stack.device)
    laid_out = kept(stack, "fused_fma", lambda: fma_image(cp, stack.layers))
    blocks = min(-(-rows // size), limits.multiprocessors * _blocks_at_once(kernel, FMA_THREADS, shared, stack.device))
    arguments = features, outputs, laid_out, np.int64(rows)
    launch("mlp", kernel, (blocks,), (FMA_THREADS,), *arguments, shared_bytes=shared)
    return outputs


def launch_tensor_float32(stack: DenseStack, features: Array) -> Array:
    """Run a stack in one kernel on the tensor cores, to float32's precision; errors as `launch_fused_fma`."""
    _check(stack, features, (np.float32,))
    return _run(FLOAT32, stack, features)


def launch_tensor_tf32(stack: DenseStack, features: Array) -> Array:
    """Run a stack in one kernel on the tensor cores in TF32; errors as `launch_fused_fma`."""
    _check(stack, features, (np.float32,))
    return _run(TF32, stack, features)


def launch_tensor_half(stack: DenseStack, features: Array) -> Array:
    """Run a stack in one kernel on the tensor cores in half precision; features and outputs float32, or both float16.

    Raises
    ------
    UsageError
        As `launch_fused_fma`; or a weight is beyond half precision.
    ShapeError
        The features do not have the first layer's width.
    """
    _check(stack, features, (np.float32, np.float16))
    kept(stack, "within half precision", lambda: _within_range(stack))
    if features.dtype == np.float16:
        return _run(HALF_ROWS, stack, features, INPUT="half_bits")
    return _run(HALF, stack, features, INPUT="float")


def _within_range(stack: DenseStack) -> Array:
    """Wait for the device and look for weights that half precision does not reach; return some array."""
    for number, layer in enumerate(stack.layers, start=1):
        largest = float(abs(layer.weights).max())
        if largest > HALF_MAX:
            raise UsageError(
                f"layer {number} has a weight of {largest:g}; half precision ends at {HALF_MAX:,.0f}: choose tf32 or "
                "float32"
            )
    return stack.layers[0].bias


RUNGS: tuple[Rung, ...] = (
    ("fused_fma", launch_fused_fma, "any widths up to 256 in one kernel, squares of sums in registers"),
    ("tensor_float32", launch_tensor_float32, "tensor cores, each number split into two of TF32, rows in registers"),
    ("tensor_tf32", launch_tensor_tf32, "tensor cores in TF32, rows in registers from layer to layer"),
    ("tensor_half", launch_tensor_half, "tensor cores in half precision, sums in float32"),
)
"""Name, launch and summary, in the ladder's order."""

PRECISIONS = {"fused_fma": "float32", "tensor_float32": "float32", "tensor_tf32": "tf32", "tensor_half": "fp16"}
"""What each rung multiplies; it adds in float32."""


# ---- What the test-suite compiles -------------------------------------------------------------------------------


def _declare(widths: tuple[int, ...], activations: tuple[int, ...]) -> None:
    """Declare the builds that a network leads to on few and on many rows."""
    shared = {name: (value,) for name, value in _network(widths, activations).items()}
    shared["VECTOR"] = (int(widths[0] % 4 == 0),)
    for rows in (1, 1 << 22):
        size, staged, _ = rows_of_block(widths, rows, Limits())
        fma = {"ROWS": (size,), "THREADS": (FMA_THREADS,), "STAGED": (int(staged),)}
        program("mlp/20_fused_fma.cu", **shared, **fma)
        for kind in (FLOAT32, TF32, HALF, HALF_ROWS):
            chosen = plan(kind, widths, rows, Limits())
            shape = {"ROW_TILES": (chosen.row_tiles,), "WARPS": (chosen.most_warps,)}
            room = {"STAGED": (int(chosen.staged),), "WIDE": (int(chosen.wide),)}
            half = {"INPUT": ("half_bits" if kind is HALF_ROWS else "float",)} if kind.source == HALF.source else {}
            program(kind.source, **shared, **shape, **room, **half)


_declare((72, 64, 64, 4), (0, 0, 3))
_declare((10, 16, 1), (4, 1))
_declare((3, 5, 2), (2, 3))
_declare((128, 128, 128, 10), (0, 0, 3))
_declare((129, 200, 7), (0, 1))
_declare((256, 256, 256, 10), (0, 4, 3))
