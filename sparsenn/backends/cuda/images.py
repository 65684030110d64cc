"""Layers of images but convolutions, sums and products, and how large the numbers of rows are, on CUDA.

Rows are row-major CuPy matrices, float32 or float16, as are outputs; unless it says so, a function waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np

from sparsenn.backends.chains import Features
from sparsenn.backends.cuda.conv.geometry import WHOLE
from sparsenn.backends.cuda.runtime.activation import IDENTITY, activation_number
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.loader import program
from sparsenn.backends.cuda.runtime.memory import within_memory
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.cuda.runtime.row_copies import as_rows, copy_rows
from sparsenn.backends.cuda.runtime.row_scan import requested_scan
from sparsenn.backends.launching import combine_rows
from sparsenn.backends.machine import GRID_ROWS
from sparsenn.errors import UsageError
from sparsenn.formats import CSR, Array
from sparsenn.layers import (
    Add,
    AvgPool2d,
    CombiningLayer,
    Flatten,
    ForeignLayer,
    ImageLayer,
    LayerNorm,
    LogSoftmax,
    MaxPool2d,
    Multiply,
    Slice,
    SoftmaxLayer,
)

THREADS = 256  # of a block
EACH = 4  # windows of two by two that a thread pools at a time
WARP_WIDTH = 512  # numbers of a row, or a position, up to which a warp takes it, and beyond which a block does
PIECE = 8192  # numbers that a block compares at a time: 32 a thread
SCANNED_BYTES = 32 << 10  # that a block scans for numbers that are not finite

WORDS = 1024  # size in bytes of a page of pinned memory: each session whose rows come on a GPU holds one
COMBINED = 4  # numbers that a thread adds or multiplies

MANY_BYTES = 32 << 20  # of features, which take longer than a multiprocessor is idle


class _ImageProgram:
    """Kernels that run between convolutions: for few features, with as much shared memory as convolutions have.

    A multiprocessor becomes idle before its first cache is divided in another way. For many features, the cache is as
    large as can be: it has to have room for all numbers that are on their way there. Both are compiled, with another
    `MANY` each, as a division belongs to a compiled kernel.
    """

    def __init__(self, source: str, **choices: Any) -> None:
        self._few = program(source, carveout=WHOLE, MANY=(0,), **choices)
        self._many = program(source, MANY=(1,), **choices)

    def kernel(self, name: str, nbytes: int, **defines: int) -> Any:
        """Return one kernel for features of a size in bytes."""
        is_many = nbytes > MANY_BYTES
        return (self._many if is_many else self._few).kernel(name, MANY=int(is_many), **defines)


_ELEMENTWISE = _ImageProgram("images/elementwise.cu", HALF=(0, 1), PRODUCT=(0, 1), FACTORS=(0, 1), THREADS=(THREADS,))
_POOL = _ImageProgram("images/pool.cu", HALF=(0, 1), MEAN=(0, 1), COUNTS_PADDING=(0, 1))
_POOL_PAIRS = _ImageProgram("images/pool_pairs.cu", HALF=(0, 1), MEAN=(0, 1), THREADS=(THREADS,), EACH=(EACH,))
_SOFTMAX = _ImageProgram("images/softmax.cu", HALF=(0, 1), TEAM=(32, THREADS), THREADS=(THREADS,), LOGARITHM=(0, 1))
_LAYER_NORM = _ImageProgram("images/layer_norm.cu", HALF=(0, 1), TEAM=(32, THREADS), THREADS=(THREADS,))
_NOT_FINITE = _ImageProgram("images/not_finite.cu", BITS=(32, 16, 64), PIECE=(SCANNED_BYTES,), THREADS=(THREADS,))
_LARGEST = _ImageProgram("images/largest.cu", HALF=(0, 1), PIECE=(PIECE,), THREADS=(THREADS,))


@dataclass(frozen=True, eq=False)
class NormParameters:
    """A layer normalisation whose parameters are in device memory."""

    layer: LayerNorm
    scale: Array  # (width,) float32, as the next
    shift: Array

    @classmethod
    def of(cls, layer: LayerNorm, to_device: Callable[[Sequence[Array]], Sequence[Array]]) -> NormParameters:
        """Copy a layer's parameters to the device."""
        return cls(layer, *to_device([layer.scale, layer.shift]))


@singledispatch
def run_layer(layer: Any, shape: tuple[int, ...], *matrices: Array) -> Array:
    """Run a layer of images that is no convolution; returns (rows, outputs), of `Flatten` the features themselves."""
    raise UsageError(f"the CUDA backend does not know the layer {type(layer).__name__}")


@run_layer.register
def _combine(layer: CombiningLayer, shape: tuple[int, ...], *matrices: Array) -> Array:
    """Add or multiply by one kernel, by CuPy's functions where that lacks the activation; concatenate by copies."""
    if isinstance(layer, ForeignLayer):
        return combine_rows(layer, matrices)
    rows, row_bytes = matrices[0].shape[0], matrices[0].itemsize * sum(matrix.shape[1] for matrix in matrices)
    with within_memory(f"the outputs of {layer.name}", rows, row_bytes):
        if isinstance(layer, Add | Multiply):
            outputs = _elementwise(layer, matrices)
            return combine_rows(layer, matrices) if outputs is None else outputs
        ends = np.cumsum([matrix.shape[1] for matrix in matrices]).tolist()
        combined: Array = cupy().empty((rows, ends[-1]), np.result_type(*(matrix.dtype for matrix in matrices)))
        for matrix, end in zip(matrices, ends, strict=True):
            copy_rows(matrix, combined[:, end - matrix.shape[1] : end])
        return combined


@run_layer.register
def _flatten(layer: Flatten, shape: tuple[int, ...], features: Array) -> Array:
    layer.output_shape((features.shape[0], *shape))
    return features


@run_layer.register
def _slice(layer: Slice, shape: tuple[int, ...], features: Array) -> Array:
    outputs, _ = _outputs(layer, shape, features)
    first, last = layer.columns(shape)
    rows = as_rows(features, features.dtype) if layer.axis else features
    copy_rows(rows.reshape(-1, layer.block(shape))[:, first:last], outputs.reshape(-1, last - first))
    return outputs


@run_layer.register
def _pool(layer: MaxPool2d | AvgPool2d, shape: tuple[int, ...], features: Array) -> Array:
    window, stride, padding, _ = layer.sliding_window
    outputs, (channels, height, width) = _outputs(layer, shape, features)
    mean = int(isinstance(layer, AvgPool2d))
    if _is_of_pairs(layer, shape, features):
        kernel = _kernel(_POOL_PAIRS, "pool_pairs", features, MEAN=mean)
        blocks = -(-outputs.size // (THREADS * EACH))
        launch("images", kernel, (blocks,), (THREADS,), np.int64(outputs.size), np.int32(width), features, outputs)
        return outputs
    pixels, planes = height * width, features.shape[0] * channels
    sizes = map(np.int32, (*shape[1:], height, width, *window, *stride, *padding))
    across = min(THREADS, 1 << (pixels - 1).bit_length())
    down = THREADS // across
    counts_padding = int(isinstance(layer, AvgPool2d) and layer.counts_padding)
    kernel = _kernel(_POOL, "pool", features, MEAN=mean, COUNTS_PADDING=counts_padding)
    grid = (-(-pixels // across), min(-(-planes // down), GRID_ROWS))
    launch("images", kernel, grid, (across, down), np.int64(planes), *sizes, features, outputs)
    return outputs


def _is_of_pairs(layer: MaxPool2d | AvgPool2d, shape: tuple[int, ...], features: Any) -> bool:
    even = shape[1] % 2 == 0 and shape[2] % 2 == 0 and features.data.ptr % (2 * features.itemsize) == 0
    return even and layer.sliding_window[:3] == ((2, 2), (2, 2), (0, 0))


@run_layer.register
def _softmax(layer: SoftmaxLayer, shape: tuple[int, ...], features: Array) -> Array:
    outputs, _ = _outputs(layer, shape, features)
    rows, width = features.shape
    team = 32 if width <= WARP_WIDTH else THREADS
    kernel = _kernel(_SOFTMAX, "softmax", features, TEAM=team, LOGARITHM=int(isinstance(layer, LogSoftmax)))
    grid = (-(-rows * team // THREADS),)
    launch("images", kernel, grid, (THREADS,), np.int64(rows), np.int64(width), features, outputs)
    return outputs


@run_layer.register
def _normalise(parameters: NormParameters, shape: tuple[int, ...], features: Array) -> Array:
    layer = parameters.layer
    outputs, _ = _outputs(layer, shape, features)
    positions = features.shape[0] * layer.positions
    team = 32 if layer.width <= WARP_WIDTH else THREADS
    grid = (-(-positions * team // THREADS),)
    sizes = np.int64(positions), np.int64(layer.width), np.float64(layer.epsilon)
    arrays = features, parameters.scale, parameters.shift, outputs
    launch("images", _kernel(_LAYER_NORM, "layer_norm", features, TEAM=team), grid, (THREADS,), *sizes, *arrays)
    return outputs


def _outputs(layer: ImageLayer, shape: tuple[int, ...], features: Array) -> tuple[Array, tuple[int, ...]]:
    rows, *found = layer.output_shape((features.shape[0], *shape))
    width = prod(found)
    with within_memory(f"the outputs of {layer.name}", rows, features.dtype.itemsize * width):
        outputs: Array = cupy().empty((rows, width), features.dtype)
    return outputs, tuple(found)


def _elementwise(layer: Add | Multiply, matrices: Sequence[Array]) -> Array | None:
    cp, code, is_product = cupy(), activation_number(layer.activation), isinstance(layer, Multiply)
    if code is None:
        return None
    kind = np.result_type(*(matrix.dtype for matrix in matrices))
    outputs: Array
    outputs, *others = (as_rows(matrix, kind) for matrix in matrices)
    for number, other in enumerate(others, start=1):
        wide, narrow = (outputs, other) if outputs.shape[1] >= other.shape[1] else (other, outputs)
        pixels = wide.shape[1] // narrow.shape[1]
        outputs = cp.ndarray(wide.shape, kind)
        finish = code if number == len(others) else (np.int32(IDENTITY), np.float32(np.inf))
        grid = (-(-outputs.size // (THREADS * COMBINED)),)
        kernel = _kernel(_ELEMENTWISE, "elementwise", outputs, PRODUCT=int(is_product), FACTORS=int(pixels > 1))
        sizes = np.int64(outputs.size), np.int64(pixels)
        launch("images", kernel, grid, (THREADS,), *sizes, wide, narrow, outputs, *finish)
    return outputs


class NumberCheck:
    """A check that reads each number once, and waits only for the result; see `sparsenn.backends.NumberCheck`.

    Each of the first scans has a result of its own; all others share the last one.
    """

    def __init__(self, results: int = 1) -> None:
        self._shape, self._scans, self._results = (results, 2), 0, None

    @property
    def results(self) -> Any:
        """Bits of the largest finite number, and whether a number is not finite: (results, 2) uint32 on the device."""
        if self._results is None:
            self._results = cupy().zeros(self._shape, np.uint32)
        return self._results

    def scan(self, features: Features) -> None:
        """Queue a scan of all numbers of features, in float32 or float16; of an empty batch, none."""
        numbers = features.values if isinstance(features, CSR) else features
        if numbers.size:
            _scan(numbers, self.results[min(self._scans, self._shape[0] - 1)])
        self._scans += 1

    def result(self) -> tuple[float, bool]:
        """Return the size of the largest finite number or 0, and whether all were finite; waits for the device once."""
        if self._results is None:
            return 0.0, True
        largest, spoilt = cupy().asnumpy(self._results).T
        return float(largest.max().view(np.float32)), not spoilt.any()

    def passed(self) -> bool:
        """Return whether all scanned numbers were finite; waits for the device once."""
        return self.result()[1]


def _scan(numbers: Array, result: Any) -> None:
    kernel = _kernel(_LARGEST, "largest_number", numbers)
    grid = (-(-numbers.size // PIECE),)
    launch("largest", kernel, grid, (THREADS,), np.int64(numbers.size), numbers.reshape(-1), result)


class RowsWatch:
    """A check of rows of any floating-point type that reports later; see `sparsenn.backends.RowsWatch`."""

    def __init__(self) -> None:
        self._found, self._place = _word()

    def scan(self, features: Features) -> None:
        """Queue a scan of all numbers of features; of an empty batch, none."""
        numbers = features.values if isinstance(features, CSR) else features
        if numbers.size:
            kernel = _NOT_FINITE.kernel("not_finite", numbers.nbytes, BITS=8 * numbers.dtype.itemsize)
            grid = (-(-numbers.nbytes // SCANNED_BYTES),)
            launch("not_finite", kernel, grid, (THREADS,), np.int64(numbers.size), numbers, self._place)

    @contextmanager
    def scanning(self, features: Array) -> Iterator[None]:
        """Have a kernel of the block scan features, if one reads them all; else scan them after it."""
        with requested_scan(features, self._place) as scan:
            yield
        if not scan.is_taken:
            self.scan(features)

    def passed(self) -> bool:
        """Return True: the check does not wait."""
        return True

    def take_fault(self) -> bool:
        """Return whether a scan that has ended found a number that is not finite, and forget the fault."""
        if not self._found[0]:
            return False
        self._found[0] = 0
        return True


_words: list[tuple[Array, Any]] = []
"""Unused words in pinned memory. None is reused: queued kernels may still write there."""


def _word() -> tuple[Array, np.uintp]:
    """Return a word of the host's that kernels can write to, which is 0, and its address there."""
    if not _words:
        pinned = cupy().cuda.alloc_pinned_memory(4 * WORDS)
        page: Array = np.frombuffer(pinned, np.uint32, WORDS)
        page[:] = 0
        _words.extend((page[at : at + 1], np.uintp(pinned.ptr + 4 * at)) for at in range(WORDS))
    return _words.pop()


def largest_number(features: Features) -> tuple[float, bool]:
    """Return what a `NumberCheck` finds in features, of any shape."""
    check = NumberCheck()
    check.scan(features)
    return check.result()


def _kernel(source: _ImageProgram, name: str, features: Array, **defines: int) -> Any:
    return source.kernel(name, features.nbytes, HALF=int(features.dtype == np.float16), **defines)
