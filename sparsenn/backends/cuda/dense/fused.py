"""The kernels of mlp that run any narrow stack at once: rows are read once, outputs written once.

A launch takes a stack of dense layers and features, a CuPy array (rows, inputs) of float32 in row-major order, and
returns a new array (rows, outputs) of float32; `tensor_half` takes and returns float16, too. It waits for nothing, but
for the first launch of a stack, which compiles a kernel for its widths and lays its weights out.

`fused_fma` and `tensor_float32` keep float32's precision, infinities and NaN included, but denormal numbers count as
zero. `tensor_tf32` rounds what it multiplies to 11 bits. So does `tensor_half`, whose inputs and intermediates become
infinite beyond 65,504; weights must not exceed that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.image import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    TILE,
    TILE_ROWS,
    Kind,
    fma_floats,
    fma_image,
    image,
    tiles_of,
)
from sparsenn.backends.cuda.dense.kernel import Given, Launch, Ready, dense_kernel, prepared
from sparsenn.backends.cuda.dense.priors import one_launch_seconds
from sparsenn.backends.cuda.dense.stack import DenseStack, StackShape
from sparsenn.backends.cuda.runtime.activation import compiled_activation
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, cache_on_host, from_host
from sparsenn.backends.cuda.runtime.loader import Program, specialised
from sparsenn.backends.cuda.runtime.precision import SPLIT_PRODUCTS
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.machine import WARP, Machine
from sparsenn.backends.prior import TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers.elementwise import HALF_MAX

WIDEST = 256  # most inputs or outputs of a layer
IN_REGISTERS = 128  # the widest layer whose inputs and outputs stay in registers of tensor-core kernels

TWO_ROW_TILES = 17
"""Most tiles of 8 columns that inputs and outputs of a layer may be together, for a warp to take 32 rows at a time."""

# fused_fma.
FMA_THREADS = 256  # of a block
FMA_ROWS = (128, 64, 32)  # that a block may take

# Code is written out for every tile of 8 x 8 weights: that of 120 layers took a minute to compile.
MOST_TILES = 16_384
MOST_LAYERS = 16  # of a launch


# ---- Which networks, and how they are cut -----------------------------------------------------------------------


def fits(kind: Kind, machine: Machine, shape: StackShape) -> str | None:
    """Return why a kernel on tensor cores cannot run a stack; None if it can."""
    if len(shape.widths) > MOST_LAYERS + 1:
        return f"{len(shape.widths) - 1:,} layers; the kernels on tensor cores take up to {MOST_LAYERS}"
    widest = max(shape.widths)
    if widest > IN_REGISTERS:
        return f"a layer has {widest:,} inputs or outputs; the kernels on tensor cores take up to {IN_REGISTERS}"
    needed = _image_bytes(kind, shape.widths) + kind.warps * kind.scratch * widest
    if needed > machine.block_bytes:
        return f"the weights need {needed >> 10} KiB of shared memory; a block has {machine.block_bytes >> 10}"
    return None


def _image_bytes(kind: Kind, widths: tuple[int, ...]) -> int:
    sizes = [tiles_of(width) for width in widths]
    vectors = 4 * (8 * sum(sizes[1:]) + len(sizes) - 1)
    return parts_of(vectors, 16) * 16 + kind.weight_bytes * sum(before * after for before, after in pairwise(sizes))


def fits_any_depth(machine: Machine, shape: StackShape) -> str | None:
    """Return why `fused_fma`, which takes deep stacks in groups, cannot run one; None if it can."""
    widest = max(shape.widths)
    if widest > WIDEST:
        return f"a layer has {widest:,} inputs or outputs; the fused kernels take up to {WIDEST}"
    held = sum(tiles_of(before) * tiles_of(after) for before, after in pairwise(shape.widths))
    if held > MOST_TILES:
        return (
            f"the layers have {held:,} tiles of 8 x 8 weights together; the fused kernels, whose code is written out "
            f"for each, take up to {MOST_TILES:,}"
        )
    return None


@dataclass(frozen=True)
class Plan:
    """How a tensor-core kernel is compiled and launched."""

    row_tiles: int  # 16 rows each, that a warp takes at a time
    most_warps: int  # of a block, which the kernel is compiled for
    warps: int  # of a block, which it is launched with
    shared_bytes: int  # of a block
    tiles: int  # of rows

    def defines(self) -> dict[str, int | str]:
        """Return the constants that the kernel is compiled with."""
        return {"ROW_TILES": self.row_tiles, "WARPS": self.most_warps}


def plan(kind: Kind, widths: tuple[int, ...], rows: int, machine: Machine) -> Plan:
    """Choose how a network that fits is run: few rows get small tiles, so that all multiprocessors have work."""
    together = max(tiles_of(before) + tiles_of(after) for before, after in pairwise(widths))
    many = together <= TWO_ROW_TILES and rows > 32 * kind.warps * machine.multiprocessors
    row_tiles = kind.row_tiles if many else 1
    tiles = parts_of(rows, 16 * row_tiles)
    warps = max(1, min(kind.warps, parts_of(tiles, machine.multiprocessors)))
    shared = _image_bytes(kind, widths) + warps * kind.scratch * max(widths)
    return Plan(row_tiles, kind.warps, warps, shared, tiles)


def rows_of_block(widths: tuple[int, ...], rows: int, machine: Machine) -> tuple[int, bool, int]:
    """Return the rows of a block of fused_fma, whether weights are staged, and its bytes of shared memory."""
    held = 4 * fma_floats(widths)
    room = machine.multiprocessor_bytes // 2 - 1024
    enough = [size for size in FMA_ROWS if -(-rows // size) >= 2 * machine.multiprocessors] or [FMA_ROWS[-1]]
    for size in enough:
        both = 8 * max(widths) * (size + 4)
        if held + both <= room:
            return size, True, held + both
    fitting = (size for size in enough if 8 * max(widths) * (size + 4) <= room)
    size = next(fitting, FMA_ROWS[-1])
    return size, False, 8 * max(widths) * (size + 4)


# ---- Launching -----------------------------------------------------------------------------------------------------


_FMA = specialised("mlp/fused_fma.cu", dynamic_shared=True)
_TENSOR: Mapping[str, Program] = {
    kind.source: specialised(kind.source, dynamic_shared=True) for kind in (FLOAT32, TF32, HALF)
}


@cache
def blocks_at_once(kernel: Any, threads: int, shared: int, device: int) -> int:
    """Return how many blocks a multiprocessor has at a time; `shared` is what the kernel's code does not name.

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


def network_defines(widths: Sequence[int], activations: Sequence[int]) -> dict[str, int | str]:
    """Return what kernels are compiled for of a network; activations as `compiled_activation` returns them."""
    return {"WIDTHS": ",".join(map(str, widths)), "ACTIVATIONS": ",".join(map(str, activations))}


def fma_defines(rows: int, staged: bool) -> dict[str, int | str]:
    """Return what fused_fma is compiled for besides: rows of a block, and whether weights are staged."""
    return {"ROWS": rows, "THREADS": FMA_THREADS, "STAGED": int(staged)}


def _defines(stack: DenseStack, given: Given) -> dict[str, int | str]:
    vector = stack.widths[0] % 4 == 0 and given.aligned
    activations = [compiled_activation(*code) for code in stack.shape.activations]
    return {**network_defines(stack.widths, activations), "VECTOR": int(vector)}


def _prepare_on_tensor_cores(kind: Kind, stack: DenseStack, given: Given, **others: int | str) -> Ready:
    machine = machine_of(stack.device)
    chosen = plan(kind, stack.widths, max(1, given.rows), machine)
    kernel = _TENSOR[kind.source].kernel("mlp", **_defines(stack, given), **chosen.defines(), **others)
    threads = WARP * chosen.warps
    at_once = machine.multiprocessors * blocks_at_once(kernel, threads, chosen.shared_bytes, stack.device)
    blocks = min(chosen.tiles, max(machine.multiprocessors, min(at_once, -(-chosen.tiles // chosen.warps))))
    images = [cache_on_device(stack, kind.source, lambda: from_host(lambda: image(kind, stack.on_host())))]
    if kind is FLOAT32:
        images.append(plain_weights(stack))
    return Ready(
        kernel,
        (min(blocks, given.rows),),
        (threads,),
        chosen.shared_bytes,
        (given.rows, stack.widths[-1]),
        (*images, np.int64(given.rows)),
        scans=True,
    )


def plain_weights(stack: DenseStack) -> Array:
    """Return the weights of all layers, row-major, one layer after the other."""

    def concatenated() -> Array:
        return np.concatenate([layer.weights.ravel() for layer in stack.on_host()])

    return cache_on_device(stack, "plain", lambda: from_host(concatenated))


def _prepare_groups(stack: DenseStack, given: Given) -> Callable[[Array], Array]:
    if len(stack.layers) <= MOST_LAYERS:
        return _prepare_fused_fma(stack, given)
    first, *others = stack.groups(MOST_LAYERS)
    between = replace(given, aligned=True)
    launches = [_prepare_fused_fma(first, given), *(_prepare_fused_fma(group, between) for group in others)]
    return lambda features: reduce(lambda rows, launch: launch(rows), launches, features)


def _prepare_fused_fma(stack: DenseStack, given: Given) -> Ready:
    machine = machine_of(stack.device)
    size, staged, shared = rows_of_block(stack.widths, given.rows, machine)
    kernel = _FMA.kernel("mlp", **_defines(stack, given), **fma_defines(size, staged))
    laid_out = cache_on_device(stack, "fused_fma", lambda: from_host(lambda: fma_image(stack.on_host())))
    most = machine.multiprocessors * blocks_at_once(kernel, FMA_THREADS, shared, stack.device)
    blocks = min(-(-given.rows // size), most)
    outputs = given.rows, stack.widths[-1]
    arguments = laid_out, np.int64(given.rows)
    return Ready(kernel, (blocks,), (FMA_THREADS,), shared, outputs, arguments, scans=True)


def _prepare_tensor_half(stack: DenseStack, given: Given) -> Ready:
    check_half_range(stack)
    if given.type == np.float16:
        return _prepare_on_tensor_cores(HALF_ROWS, stack, given, INPUT="half_bits")
    return _prepare_on_tensor_cores(HALF, stack, given, INPUT="float")


def check_half_range(stack: DenseStack) -> None:
    """Refuse weights beyond half precision by a UsageError; they are checked once."""
    for number, layer in enumerate(stack.layers, start=1):
        largest = cache_on_host(layer.source, "largest weight", partial(_largest_weight, layer.source.weights))
        if largest > HALF_MAX:
            raise UsageError(
                f"layer {number} has a weight of {largest:g}; half precision ends at {HALF_MAX:,.0f}: choose tf32 or "
                "float32"
            )


def _largest_weight(weights: Array) -> float:
    return float(np.abs(weights).max(initial=0))


FMA_TOGETHER = 1, 4  # inputs that a thread of fused_fma multiplies together, and outputs
FMA_BLOCK_ROWS = 2 * FMA_ROWS[-1]  # of the two blocks of a multiprocessor

FMA_PRIOR = Prior(TUNED)
TENSOR_PRIORS = {
    FLOAT32: Prior(TUNED / SPLIT_PRODUCTS, precision="tf32"),
    TF32: Prior(TUNED, precision="tf32"),
    HALF: Prior(TUNED, precision="float16"),
}


_NEEDS = f"layers up to {IN_REGISTERS} wide, weights that fit into shared memory", f"up to {MOST_LAYERS} layers"


def _on_tensor_cores(name: str, kind: Kind, launch: Launch, summary: str, **fields: Any) -> DenseKernel:
    seconds = partial(one_launch_seconds, TENSOR_PRIORS[kind], (TILE, TILE), TILE_ROWS * kind.warps)
    return dense_kernel(name, launch, summary, partial(fits, kind), needs=_NEEDS, auto=True, seconds=seconds, **fields)


TENSOR_FLOAT32 = _on_tensor_cores(
    "tensor_float32",
    FLOAT32,
    prepared((np.float32,), partial(_prepare_on_tensor_cores, FLOAT32)),
    "tensor cores, each number split into two of TF32, rows in registers",
    tf32_products=SPLIT_PRODUCTS,
)
FUSED_FMA = dense_kernel(
    "fused_fma",
    prepared((np.float32,), _prepare_groups),
    "any widths up to 256 in one kernel, squares of sums in registers",
    fits_any_depth,
    needs=(f"layers up to {WIDEST} wide, {MOST_TILES:,} tiles of 8 x 8 weights in all",),
    auto=True,
    seconds=partial(one_launch_seconds, FMA_PRIOR, FMA_TOGETHER, FMA_BLOCK_ROWS),
    reproducible=True,
)
TENSOR_TF32 = _on_tensor_cores(
    "tensor_tf32",
    TF32,
    prepared((np.float32,), partial(_prepare_on_tensor_cores, TF32)),
    "tensor cores in TF32, rows in registers from layer to layer",
    precision="tf32",
)
TENSOR_HALF = _on_tensor_cores(
    "tensor_half",
    HALF,
    prepared((np.float32, np.float16), _prepare_tensor_half),
    "tensor cores in half precision, sums in float32",
    precision="float16",
    half_rows=True,
)
KERNELS = (TENSOR_FLOAT32, FUSED_FMA, TENSOR_TF32, TENSOR_HALF)
"""In the order in which `auto` prefers them where no estimate says otherwise."""
