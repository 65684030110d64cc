"""The rungs of mlp on tensor cores: laying weights out as fragments, and launching.

The kernel, `kernels/mlp/15_tensor_cores.cu`, takes stacks of any widths up to `MOST_WIDTH`, any activations and any
number of rows. `tensor_shared` splits operands and is as exact as float32; the two others round them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.cuda.dense.stack import DenseStack
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.stack import activation_code
from sparsenn.backends.cuda.sparse.tiling import WARP, device_limits
from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.layers import Linear, Sigmoid, Tanh

__all__ = ["MOST_WIDTH", "RUNGS", "Fragments", "Shape", "fits", "lay_out", "shape_for"]

MOST_WIDTH = 256
"""Widest layer: rows of more would leave a block with too few warps."""

MOST_LAYERS = 32
"""As in the kernel."""

MOST_TILES = 8
"""Tiles of 8 outputs that a warp has in registers, as in the kernel."""

CUTS = {"float32": ((2, 8), (1, 12)), "tf32": ((2, 12), (1, 16)), "fp16": ((2, 16), (1, 16))}
"""For each precision, how blocks may be cut: times 16 rows a warp, and warps that registers suffice for."""

ENOUGH_WARPS = 6
"""Of a block, to hide what each waits for."""

LARGEST_HALF = 65504.0

_COSTLY = [int(activation_code(Linear(np.ones((1, 1)), None, kind()), 1)[0]) for kind in (Sigmoid, Tanh)]

PRECISIONS = ("float32", "tf32", "fp16")
"""In the order of the kernel's define."""

_TENSOR = {
    (precision, row_tiles, warps): program(
        "mlp/15_tensor_cores.cu",
        PRECISION=(PRECISIONS.index(precision),),
        INPUT=("float", "half16") if precision == "fp16" else ("float",),
        ROW_TILES=(row_tiles,),
        MOST_WARPS=(warps,),
        SHARED_WEIGHTS=(0, 1),
    )
    for precision, cuts in CUTS.items()
    for row_tiles, warps in cuts
}

_LAYER = np.dtype(
    [(name, np.int32) for name in ("steps", "tiles", "outputs", "stored", "revised", "weights", "bias", "activation")]
    + [("clip", np.float32), ("target", np.int32)]
)
_NETWORK = np.dtype(
    [(name, np.uint64) for name in ("layers", "weights", "bias")]
    + [(name, np.int32) for name in ("count", "inputs", "fragments", "biases", "stride", "buffers")]
)


# ---- Laying out the weights -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fragments:
    """A stack as the kernel reads it, over NumPy or CuPy arrays.

    Parameters
    ----------
    precision : one of `PRECISIONS`.
    weights : (fragments, bytes of one) uint8; layer by layer, for each tile of 8 outputs and each step of 8 inputs (16
        in half) what the 32 lanes give to the instruction.
    bias : float32, of each layer padded to whole tiles.
    layers : host records, as `struct Layer` in the kernel's source.
    stride : elements of a row in shared memory.
    buffers : of so many rows that a warp has.
    pointer : device array that holds a `Network` record; None on the host.
    kept : arrays that the record refers to.
    """

    precision: str
    weights: Any
    bias: Any
    layers: Array
    stride: int
    buffers: int
    pointer: Any = None
    kept: Any = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all fragments."""
        return int(self.weights.nbytes)


def _step(precision: str) -> int:
    return 16 if precision == "fp16" else 8


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _tiles(outputs: int, precision: str) -> int:
    """Tiles of a layer: whole eights, then 1, 2, 4 or 8."""
    tiles = _up(outputs, _step(precision)) // 8
    whole, rest = divmod(tiles, MOST_TILES)
    return whole * MOST_TILES + (1 << (rest - 1).bit_length() if rest else 0)


def _stride(widths: tuple[int, ...], precision: str) -> int:
    """Elements of a row such that the 8 rows of a fragment, and a lane's two words of each, are in different banks."""
    widest = max(_up(width, _step(precision)) for width in widths)
    unit = 32 if precision == "fp16" else 16
    return _up(widest + unit // 2, unit) - unit // 2


def _fragments(weights: Any, precision: str, xp: Any) -> Any:
    """Return a layer's weights as (fragments, bytes) uint8."""
    inputs, outputs = weights.shape
    step = _step(precision)
    steps, tiles = _up(inputs, step) // step, _tiles(outputs, precision)
    padded = xp.zeros((steps * step, tiles * 8), np.float32)
    padded[:inputs, :outputs] = weights
    by_lane = padded.reshape(steps, 4, step // 4, tiles, 8).transpose(3, 0, 4, 1, 2)
    by_lane = xp.ascontiguousarray(by_lane).reshape(-1, step // 4)
    if precision == "fp16":
        return xp.ascontiguousarray(by_lane.astype(np.float16)).view(np.uint8)
    high = _rounded_to_tf32(by_lane, xp)
    if precision == "float32":
        high = xp.concatenate([high, _rounded_to_tf32(by_lane - high, xp)], axis=1)
    return xp.ascontiguousarray(high).view(np.uint8)


def _rounded_to_tf32(numbers: Any, xp: Any) -> Any:
    """Round finite float32 numbers to 10 bits behind the point, ties away from zero; never to infinity."""
    bits = xp.ascontiguousarray(numbers).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return xp.where(xp.isfinite(rounded), rounded, (bits & np.uint32(0xFFFFE000)).view(np.float32))


def lay_out(stack: DenseStack, precision: str) -> Fragments:
    """Lay a stack out where its arrays are.

    Raises
    ------
    UsageError
        A weight is larger than half precision holds, where that is asked for.
    """
    xp = np if isinstance(stack.layers[0].weights, np.ndarray) else cupy()
    if precision == "fp16":
        largest = max(float(abs(layer.weights).max()) for layer in stack.layers)
        if largest > LARGEST_HALF:
            raise UsageError(
                f"a weight of {largest:g} is beyond half precision, which ends at {LARGEST_HALF:g}: use tf32 or float32"
            )
    records = np.zeros(len(stack.layers), _LAYER)
    weights, biases = [], []
    target = fragments = bias = 0
    for number, (record, layer) in enumerate(zip(records, stack.layers, strict=True)):
        made = _fragments(layer.weights, precision, xp)
        tiles = _tiles(layer.outputs, precision)
        padded = xp.zeros(tiles * 8, np.float32)
        padded[: layer.outputs] = layer.bias
        target = _target(number, tiles, target)
        record["steps"], record["tiles"] = _up(layer.inputs, _step(precision)) // _step(precision), tiles
        record["outputs"], record["target"] = layer.outputs, target
        record["stored"] = _up(layer.outputs, _step(precision))
        record["revised"] = int(layer.activation) in _COSTLY
        record["weights"], record["bias"] = fragments, bias
        record["activation"], record["clip"] = layer.activation, layer.clip
        weights.append(made)
        biases.append(padded)
        fragments, bias = fragments + made.shape[0], bias + tiles * 8
    buffers, stride = 1 + int(records["target"].max()), _stride(stack.widths, precision)
    arrays = (xp.concatenate(weights), xp.concatenate(biases))
    if xp is np:
        return Fragments(precision, *arrays, records, stride, buffers)
    layers = xp.asarray(np.frombuffer(records.tobytes(), np.uint8))
    network = np.zeros(1, _NETWORK)
    network["layers"], network["weights"], network["bias"] = (item.data.ptr for item in (layers, *arrays))
    network["count"], network["inputs"] = len(records), stack.widths[0]
    network["fragments"], network["biases"] = fragments, bias
    network["stride"], network["buffers"] = stride, buffers
    pointer = xp.asarray(np.frombuffer(network.tobytes(), np.uint8))
    return Fragments(precision, *arrays, records, stride, buffers, pointer, layers)


def _target(number: int, tiles: int, source: int) -> int:
    """Return the buffer that a layer writes: not the first, which holds inputs; its own source if one go suffices."""
    if number == 0:
        return 1
    return source if tiles <= MOST_TILES else 3 - source


# ---- On the device ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How a launch is cut.

    Parameters
    ----------
    row_tiles : times 16 rows are a warp's.
    most_warps : that the kernel is compiled for.
    shared_weights : whether blocks copy all weights into shared memory.
    warps : of a block.
    shared_bytes : of a block.
    """

    row_tiles: int
    most_warps: int
    shared_weights: bool
    warps: int
    shared_bytes: int


def shape_for(fragments: Fragments, rows: int, multiprocessors: int, room: int) -> Shape:
    """Choose a launch: many rows a warp where there are enough of them, and enough warps to hide waiting.

    Parameters
    ----------
    multiprocessors, room : of the device; shared memory that a block can have, in bytes.
    """
    cuts = CUTS[fragments.precision]
    few = rows < 32 * ENOUGH_WARPS * multiprocessors
    shapes = [
        shape
        for cut in (cuts[-1:] if few else cuts)
        for shared in (True, False)
        if (shape := _shape(fragments, cut, shared, room)) is not None
    ]
    enough = next((shape for shape in shapes if shape.warps >= ENOUGH_WARPS), None)
    return enough or max(shapes, key=lambda shape: shape.warps)


def _shape(fragments: Fragments, cut: tuple[int, int], shared_weights: bool, room: int) -> Shape | None:
    row_tiles, most_warps = cut
    element = 2 if fragments.precision == "fp16" else 4
    common = 4 * fragments.bias.size + (fragments.weight_bytes if shared_weights else 0)
    warp = fragments.buffers * 16 * row_tiles * fragments.stride * element
    warps = min(most_warps, (room - _RESERVED - common) // warp)
    return Shape(row_tiles, most_warps, shared_weights, warps, common + warps * warp) if warps > 0 else None


_RESERVED = 2 << 10
"""Shared memory that the kernel declares and the system takes."""

_laid_out: WeakKeyDictionary[DenseStack, dict[str, Fragments]] = WeakKeyDictionary()


def fits(stack: DenseStack) -> str | None:
    """Return why a stack cannot run on tensor cores; None if it can."""
    if max(stack.widths) > MOST_WIDTH:
        return f"a layer is {max(stack.widths):,} wide; the kernel takes up to {MOST_WIDTH}"
    if len(stack.layers) > MOST_LAYERS:
        return f"there are {len(stack.layers)} layers; the kernel takes up to {MOST_LAYERS}"
    return None


def _launch(precision: str, stack: DenseStack, features: Array) -> Array:
    """Run a stack; features are float32, or float16 where the precision is half, and so are the outputs."""
    cp = cupy()
    reason = fits(stack)
    if reason is not None:
        raise UsageError(reason)
    made = _laid_out.setdefault(stack, {})
    if precision not in made:
        made[precision] = lay_out(stack, precision)
    fragments = made[precision]
    given: Any = features
    if given.data.ptr % 16:
        given = given.copy()  # rows are copied 16 bytes at a time
    rows, outputs = given.shape[0], stack.widths[-1]
    target: Array = cp.empty((rows, outputs), given.dtype)
    limits = device_limits(cp.cuda.runtime.getDevice())
    shape = shape_for(fragments, rows, limits.multiprocessors, limits.block_bytes)
    kernel = _TENSOR[precision, shape.row_tiles, shape.most_warps].kernel(
        "tensor_cores",
        INPUT="half16" if given.dtype == np.float16 else "float",
        SHARED_WEIGHTS=int(shape.shared_weights),
    )
    kernel.max_dynamic_shared_size_bytes = shape.shared_bytes
    blocks = min(limits.multiprocessors, -(-rows // (16 * shape.row_tiles)))
    arguments = (fragments.pointer, given, target, np.int64(rows))
    launch("mlp", kernel, (blocks,), (WARP * shape.warps,), *arguments, shared_bytes=shape.shared_bytes)
    return target


Rung = tuple[str, Callable[[DenseStack, Array], Array], str]

RUNGS: tuple[tuple[str, Rung], ...] = tuple(
    (precision, (name, partial(_launch, precision), summary))
    for precision, name, summary in (
        (
            "float32",
            "tensor_shared",
            "tensor cores, rows in shared memory, operands split into two TF32 numbers: as exact as float32",
        ),
        ("tf32", "tensor_shared_tf32", "tensor cores, rows in shared memory, operands rounded to TF32"),
        (
            "fp16",
            "tensor_shared_half",
            "tensor cores, rows in shared memory, operands rounded to half precision, sums in float32",
        ),
    )
)
"""Precision, and (name, launch, summary)."""
