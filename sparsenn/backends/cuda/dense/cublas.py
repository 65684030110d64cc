"""The kernels of mlp that take layers of any width: cuBLAS's products, and bias and activation after each.

cuBLASLt adds the bias and applies ReLU by itself. Where it cannot, a kernel of our own does so in one pass over the
sums.

`cublas_tf32` multiplies numbers rounded to 11 bits; `cublas_float16` takes and returns float16 too, infinite beyond
65,504. Tensor cores are fed by 16 bytes: these two pad widths with zeros to multiples of that, by which all outputs of
a row with an infinite number may become NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from sparsenn.backends.cuda.dense.cublas_lt import LtProduct
from sparsenn.backends.cuda.dense.fused import check_half_range
from sparsenn.backends.cuda.dense.kernel import ALIGNED, Given, dense_kernel, prepared
from sparsenn.backends.cuda.dense.priors import COPIES
from sparsenn.backends.cuda.dense.stack import DenseLayer, DenseStack, widths_of
from sparsenn.backends.cuda.runtime.activation import IDENTITY, RELU
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.cuda.runtime.row_copies import as_rows, copy_rows
from sparsenn.backends.kernel_records import DenseKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import LAID_OUT, LAUNCH_SECONDS, TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.errors import DeviceError
from sparsenn.formats import Array
from sparsenn.layers import Linear

THREADS = 256  # of a block that adds a bias and activates

MOST_TRIED = 2 << 30  # bytes of features and outputs up to which it is tried what a library's ReLU makes of NaN

BY_COLUMNS = 128
"""Rows from which on TF32 takes weights column by column, the only order in which Hopper's tensor cores read that: for
eleven shapes of 1,000 to 60,000 rows, an H100 took 12 % less in the median, 30 % at most; for one row 9 % more."""

_EPILOGUE = program("mlp/epilogue.cu", THREADS=(THREADS,), VECTOR=(1, 0), RESULT=("float", "half_bits"))


NUMBER_BYTES = {"float32": 4, "tf32": 4, "float16": 2}  # of the factors, by precision

PADDED_BYTES = 16
"""Bytes that rows of inputs and outputs should be a multiple of: others take up to six times as long, on tensor cores.
On an H100, 10,000 rows of 2,047 inputs and 3,001 outputs take 985 us in half precision, and 152 padded; 1,037 and 334
in TF32. In float32, it makes no difference."""

# The least from which on padding rows and cutting outputs, by copies, costs less time than it saves.
PADDED_WORK = 5e8  # multiply-adds of a product
PADDED_SIDE = 64  # inputs and outputs


def padded_widths(precision: str, widths: Sequence[int], rows: int) -> tuple[int, ...]:
    """Return the widths of a library's products, padded with zeros where that saves more time than copies take."""
    if precision == "float32":
        return tuple(widths)
    grain = PADDED_BYTES // NUMBER_BYTES[precision]
    padded = [parts_of(width, grain) * grain for width in widths]
    for end, other in ((0, 1), (-1, -2)):
        if rows * widths[end] * widths[other] < PADDED_WORK or min(widths[end], widths[other]) < PADDED_SIDE:
            padded[end] = widths[end]
    return tuple(padded)


# ---- The prior ------------------------------------------------------------------------------------------------------

PRIORS = {precision: Prior(TUNED, precision=precision) for precision in NUMBER_BYTES}

ROUNDING = Prior(1.0, LAID_OUT)  # of a pass that rounds or pads rows, or cuts outputs


def seconds(precision: str, machine: Machine, layers: Sequence[Linear], rows: int, row_bytes: int = 4) -> float:
    """Estimate a replayed graph of the products of all layers, in seconds."""
    prior, number_bytes, widths = PRIORS[precision], NUMBER_BYTES[precision], widths_of(layers)
    padded = padded_widths(precision, widths, rows)
    total = COPIES * LAUNCH_SECONDS
    if row_bytes != number_bytes or padded[0] != widths[0]:
        total += ROUNDING.seconds(machine, 0, (row_bytes + number_bytes) * rows * widths[0])
    if padded[-1] != widths[-1]:
        total += ROUNDING.seconds(machine, 0, 2 * row_bytes * rows * widths[-1])
    for inputs, outputs in pairwise(padded):
        nbytes = number_bytes * (inputs * outputs + rows * (inputs + outputs))
        total += prior.seconds(machine, rows * inputs * outputs, nbytes)
    return total


# ---- One layer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Finish:
    kernel: Any
    blocks: int
    units: np.int64
    width: np.int32
    number: Any  # type of the outputs
    bias: Array
    activation: np.int32
    clip: np.float32

    def __call__(self, sums: Array) -> Array:
        outputs: Array = sums if sums.dtype == self.number else cupy().ndarray(sums.shape, self.number)
        given = self.units, self.width, sums, outputs, self.bias, self.activation, self.clip
        launch("mlp", self.kernel, (self.blocks,), (THREADS,), *given)
        return outputs


def _finish(layer: DenseLayer, rows: int, number: Any, machine: Machine) -> _Finish:
    four = layer.outputs % 4 == 0
    width = layer.outputs // 4 if four else layer.outputs
    result = "half_bits" if number == np.float16 else "float"
    kernel = _EPILOGUE.kernel("add_bias_and_activate", VECTOR=int(four), RESULT=result)
    blocks = min(parts_of(rows * width, THREADS), machine.filling_blocks(THREADS))
    code = layer.bias, layer.activation, layer.clip
    return _Finish(kernel, blocks, np.int64(rows * width), np.int32(width), np.dtype(number), *code)


@dataclass(frozen=True, eq=False)
class _Layer:
    product: LtProduct
    weights: Array
    sums: Any
    finish: _Finish | None

    def __call__(self, features: Array) -> Array:
        sums: Array = cupy().ndarray((features.shape[0], self.weights.shape[1]), self.sums)
        with section("mlp"):
            self.product(features, self.weights, sums)
        return sums if self.finish is None else self.finish(sums)


def _keeps_nan(product: LtProduct, rows: int, weights: Array, number: Any) -> bool:
    """Return whether a product's ReLU leaves NaN what it is, as all kernels here do; waits for the device.

    The library chooses among ways to compute a product, which differ in this: so the very product is tried, unless it
    takes more than `MOST_TRIED` bytes.
    """
    cp, (inputs, outputs) = cupy(), weights.shape
    if rows * (inputs * weights.dtype.itemsize + outputs * np.dtype(number).itemsize) > MOST_TRIED:
        return False
    features, found = cp.asarray(np.full((rows, inputs), np.nan, weights.dtype)), cp.zeros((rows, outputs), number)
    product(features, weights, found)
    return bool(np.isnan(cp.asnumpy(found)).all())


def _layer(
    precision: str, device: int, layer: DenseLayer, weights: Array, bias: Array, rows: int, number: Any, aligned: int
) -> _Layer:
    relu = int(layer.activation) == RELU and not np.isfinite(layer.clip)
    if relu or int(layer.activation) == IDENTITY:
        with suppress(DeviceError):  # cuBLASLt has no way to add the bias to this product
            whole = LtProduct(device, precision, rows, weights, number, bias, relu, aligned)
            if not relu or _keeps_nan(whole, rows, weights, number):
                return _Layer(whole, weights, number, None)
    float32 = np.dtype(np.float32)
    product = LtProduct(device, precision, rows, weights, float32, None, False, aligned)
    return _Layer(product, weights, float32, _finish(layer, rows, number, machine_of(device)))


# ---- All layers -----------------------------------------------------------------------------------------------------


def _prepare(precision: str, stack: DenseStack, given: Given) -> Any:
    rows, wanted = given.rows, np.dtype(np.float16 if precision == "float16" else np.float32)
    if not rows:
        return partial(_no_rows, stack.widths[-1])
    if precision == "float16":
        check_half_range(stack)
    widths = padded_widths(precision, stack.widths, rows)
    by_columns = precision == "tf32" and rows >= BY_COLUMNS
    as_given = given.type == wanted and widths[0] == stack.widths[0]
    layers = []
    for number, sizes in enumerate(pairwise(widths)):
        first, last = number == 0, number + 1 == len(stack.layers)
        layer = _padded(stack, number, sizes, wanted, by_columns)
        result = np.dtype(given.type) if last else wanted
        aligned = (ALIGNED if given.aligned else wanted.itemsize) if first and as_given else 256
        bias = cache_on_device(stack, ("bias", number, sizes, result), partial(as_rows, layer.bias, result))
        layers.append(_layer(precision, stack.device, layer, layer.weights, bias, rows, result, aligned))
    return partial(_run, layers, wanted, widths[0], stack.widths[-1])


def _padded(stack: DenseStack, number: int, sizes: tuple[int, int], wanted: Any, by_columns: bool) -> DenseLayer:
    own = stack.layers[number]
    given = (own.inputs, own.outputs), own.weights.dtype, False
    asked = sizes, wanted, by_columns
    return own if asked == given else cache_on_device(stack, ("padded", number, *asked), lambda: _copied(own, *asked))


def _copied(layer: DenseLayer, sizes: tuple[int, int], wanted: Any, by_columns: bool) -> DenseLayer:
    weights = cupy().zeros(sizes, wanted, order="F" if by_columns else "C")
    copy_rows(layer.weights, weights[: layer.inputs, : layer.outputs])
    bias = cupy().zeros(sizes[1], np.float32)
    copy_rows(layer.bias, bias[: layer.outputs])
    return replace(layer, weights=weights, bias=bias)


def _no_rows(outputs: int, features: Array) -> Array:
    none: Array = cupy().empty((0, outputs), features.dtype)
    return none


def _run(layers: Sequence[_Layer], number: Any, inputs: int, outputs: int, features: Array) -> Array:
    """Queue all layers, which take so many inputs; return the first of their last one's outputs."""
    if inputs != features.shape[1]:
        rows, features = features, cupy().zeros((features.shape[0], inputs), number)
        copy_rows(rows, features[:, : rows.shape[1]])
    features = as_rows(features, number)
    for layer in layers:
        features = layer(features)
    own: Array = as_rows(features[:, :outputs], features.dtype)
    return own


def _described(name: str, precision: str, summary: str, types: tuple[Any, ...] = (np.float32,)) -> DenseKernel:
    return dense_kernel(
        name,
        prepared(types, partial(_prepare, precision)),
        f"cuBLAS's products{summary}",
        auto=True,
        seconds=partial(seconds, precision),
        precision=precision,
        half_rows=np.float16 in types,
    )


CUBLAS = _described("cublas", "float32", ", with bias and activation after each")
CUBLAS_TF32 = _described("cublas_tf32", "tf32", " in TF32, with bias and activation after each")
CUBLAS_FLOAT16 = _described(
    "cublas_float16", "float16", " in half precision, sums in float32", (np.float32, np.float16)
)
KERNELS = (CUBLAS, CUBLAS_TF32, CUBLAS_FLOAT16)
