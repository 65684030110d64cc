"""Convolutions by cuDNN, through NVIDIA's frontend in Python, where both are installed.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. `conv_cudnn_float16`
takes images of float16 too, and then returns float16. A launch queues its work on the current stream and does not wait
for it, but for the first one of a layer and a number of images, for which cuDNN builds a plan.

cuDNN convolves; bias and activation are a kernel of our own, because the library's ReLU may turn NaN into zero. In TF32
and in half precision cuDNN wants the channels of a pixel side by side, and is fed and read by kernels that transpose.

What a number may be off by: `conv_cudnn_float32` multiplies and adds in float32. `conv_cudnn_tf32` cuts pixels and
weights to 11 bits. `conv_cudnn_float16` rounds them to 11 bits; pixels beyond 65,504 are infinite, and weights must not
exceed that. Sums are float32.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import HELD_BYTES, convolution
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import check_half_range, new_outputs, refuse
from sparsenn.backends.cuda.conv.unrolled import launch_unrolled
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import program, rehearses
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.cuda.runtime.row_copies import as_rows, copy_rows
from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import LAID_OUT, LAUNCH_SECONDS, TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

__all__ = ["CUDNN_FLOAT16", "CUDNN_FLOAT32", "CUDNN_TF32", "fits", "why_no_library"]

# Of the kernels that transpose, and that finish in place.
TILE = 32
THREADS = 256
SHARED_BYTES = 4 * TILE * (TILE + 1)

TRANSPOSE = "conv2d/transpose.cu"
FINISH = "conv2d/finish.cu"

_NUMBERS = ("float", "half_bits")
_TRANSPOSE = program(TRANSPOSE, dynamic_shared=True, FROM=_NUMBERS, TO=_NUMBERS, FINISH=(0, 1))
_FINISH = program(FINISH, THREADS=(THREADS,))

MOST_WORKSPACE = 1 << 30  # bytes that a convolution may take for itself
LEAST_CHANNELS = 8  # of each of several groups, that tensor cores multiply at a time
_in_use = threading.Lock()  # of the library's handles: one thread at a time sets a stream and executes on it


@cache
def why_no_library() -> str | None:
    """Return why cuDNN is not there; None if it is."""
    if find_spec("cudnn") is None:
        return "the package nvidia-cudnn-frontend is not installed"
    try:
        import_module("cudnn").backend_version()
    except (ImportError, OSError, RuntimeError) as error:
        return f"cuDNN cannot be loaded ({error})"
    return None


def fits(precision: str, machine: Machine, geometry: Geometry) -> str | None:
    """Return why a convolution cannot be run by cuDNN here; None if it can."""
    if reason := why_too_large(geometry) or why_no_library():
        return reason
    if precision != "float32" and geometry.groups > 1 and geometry.channels // geometry.groups < LEAST_CHANNELS:
        return f"groups of fewer than {LEAST_CHANNELS} channels; cuDNN's tensor cores take them for many"
    return None


# ---- Plans -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Plan:
    graph: Any
    images: Any
    weights: Any
    sums: Any
    sums_type: Any

    def run(self, device: int, images: Array, weights: Array, sums: Array) -> None:
        if rehearses():
            return
        cp, size = cupy(), self.graph.get_workspace_size()
        workspace: Any = cp.cuda.alloc(size) if size else None
        addresses = {
            operand: array.data.ptr  # type: ignore[attr-defined]
            for operand, array in ((self.images, images), (self.weights, weights), (self.sums, sums))
        }
        with _in_use, section("conv2d"):
            handle = _handle(device)
            import_module("cudnn").set_stream(handle=handle, stream=cp.cuda.get_current_stream().ptr)
            self.graph.execute(addresses, workspace.ptr if size else 0, handle=handle)


@cache
def _handle(device: int) -> Any:
    return import_module("cudnn").create_handle()


@cache
def _plan(precision: str, geometry: Geometry, count: int, device: int) -> _Plan | None:
    """Return the plan that the library prefers, with sums of float32 if it has one; None where it has no plan."""
    for sums_type in (np.float32, np.float16) if precision == "float16" else (np.float32,):
        with _in_use:
            made = _build(precision, geometry, count, device, sums_type)
        if made is not None:
            return made
    return None


def _build(precision: str, geometry: Geometry, count: int, device: int, sums_type: Any) -> _Plan | None:
    cudnn = import_module("cudnn")
    types = {np.float32: cudnn.data_type.FLOAT, np.float16: cudnn.data_type.HALF}
    factor = types[np.float16 if precision == "float16" else np.float32]
    graph = cudnn.pygraph(
        handle=_handle(device),
        io_data_type=factor,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    strides = _channels_first if precision == "float32" else _channels_last
    image = [count, geometry.channels, geometry.height, geometry.width]
    filters = [geometry.filters, geometry.channels // geometry.groups, *geometry.kernel]
    outputs = [count, geometry.filters, geometry.output_height, geometry.output_width]
    images = graph.tensor(name="images", dim=image, stride=strides(image), data_type=factor)
    weights = graph.tensor(name="weights", dim=filters, stride=strides(filters), data_type=factor)
    sums = graph.conv_fprop(
        image=images,
        weight=weights,
        padding=list(geometry.padding),
        stride=list(geometry.stride),
        dilation=list(geometry.dilation),
    )
    sums.set_output(True).set_data_type(types[sums_type])
    sums.set_dim(outputs).set_stride(strides(outputs))
    notes = cudnn.numerical_note
    refused = [notes.NONDETERMINISTIC, notes.WINOGRAD, notes.FFT, notes.REDUCED_PRECISION_REDUCTION]
    if precision == "float32":
        refused += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(refused)
        graph.deselect_workspace_greater_than(MOST_WORKSPACE)
        graph.check_support()
        graph.build_plans()
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError):
        return None
    return _Plan(graph, images, weights, sums, sums_type)


def _channels_first(shape: list[int]) -> list[int]:
    _, channels, height, width = shape
    return [channels * height * width, height * width, width, 1]


def _channels_last(shape: list[int]) -> list[int]:
    _, channels, height, width = shape
    return [channels * height * width, 1, width * channels, channels]


# ---- Launches ----------------------------------------------------------------------------------------------------


def _run(precision: str, layer: ConvLayer, images: Array) -> Array:
    half = precision == "float16"
    if half:
        check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16) if half else (np.float32,))
    geometry, count = layer.geometry, images.shape[0]
    refuse(fits(precision, machine_of(layer.device), geometry))
    if not count:
        return outputs
    numbers = max(geometry.channels * geometry.height * geometry.width, outputs[0].size)
    most = max(1, min(MOST_NUMBERS // numbers, HELD_BYTES // (4 * numbers)))
    most = parts_of(count, parts_of(count, most))
    for first in range(0, count, most):
        _convolve(precision, layer, images[first : first + most], outputs[first : first + most])
    return outputs


def _convolve(precision: str, layer: ConvLayer, images: Array, outputs: Array) -> None:
    """Run a convolution of some images; where cuDNN has no plan for it, by a kernel that takes any."""
    geometry, cp = layer.geometry, cupy()
    made = _plan(precision, geometry, images.shape[0], layer.device)
    if made is None:
        rows = images.shape[0]
        pixels = as_rows(images.reshape(rows, -1), np.float32).reshape(images.shape)
        copy_rows(launch_unrolled(layer, pixels).reshape(rows, -1), outputs.reshape(rows, -1))
        return
    size = geometry.output_height * geometry.output_width
    if precision == "float32":
        made.run(layer.device, images, layer.weights, outputs)
        kernel = _FINISH.kernel("finish")
        blocks = min(parts_of(outputs.size, THREADS), machine_of(layer.device).filling_blocks(THREADS))
        sizes = map(np.uint32, (outputs.size, size, geometry.filters))
        launch("conv2d", kernel, (blocks,), (THREADS,), outputs, layer.bias, *sizes, layer.activation, layer.clip)
        return
    factor = np.dtype(np.float16 if precision == "float16" else np.float32)
    weights = cache_on_device(
        layer, ("cudnn", precision), lambda: from_host(partial(_arranged, factor), layer.source.weights)
    )
    inputs = geometry.height * geometry.width
    laid = images
    if images.dtype != factor or min(inputs, geometry.channels) > 1:
        laid = cp.empty(images.size, factor)
        _transpose(layer, images, laid, (geometry.channels, inputs), images.shape[0], False)
    sums = cp.empty(outputs.size, made.sums_type)
    made.run(layer.device, laid, weights, sums)
    _transpose(layer, sums, outputs, (size, geometry.filters), images.shape[0], True)


def _arranged(number: Any, weights: Array) -> Array:
    """Return weights with the channels of a tap side by side: (filters, kernel height, kernel width, channels)."""
    return np.ascontiguousarray(weights.transpose(0, 2, 3, 1)).astype(number)


def _transpose(layer: ConvLayer, source: Array, target: Array, shape: tuple[int, int], count: int, last: bool) -> None:
    rows, columns = shape
    names = {np.dtype(np.float32): "float", np.dtype(np.float16): "half_bits"}
    kernel = _TRANSPOSE.kernel("transpose", FROM=names[source.dtype], TO=names[target.dtype], FINISH=int(last))
    tiles = parts_of(rows, TILE), parts_of(columns, TILE)
    sizes = map(np.int32, (rows, columns, *tiles))
    arguments = source, target, layer.bias, *sizes, layer.activation, layer.clip
    launch("conv2d", kernel, (count * tiles[0] * tiles[1],), (THREADS,), *arguments, shared_bytes=SHARED_BYTES)


# ---- Kernels -----------------------------------------------------------------------------------------------------


def _described(precision: str, summary: str, launches: int) -> ConvolutionKernel:
    return convolution(
        f"conv_cudnn_{precision}",
        partial(_run, precision),
        f"cuDNN's convolution{summary}",
        partial(fits, precision),
        needs=("nvidia-cudnn-frontend",),
        auto=True,
        prior=Prior(TUNED, LAID_OUT, launches * LAUNCH_SECONDS, precision),
        precision=precision,
        half_rows=precision == "float16",
    )


CUDNN_FLOAT32 = _described("float32", ", then bias and activation", 2)
CUDNN_TF32 = _described("tf32", " in TF32, between kernels that transpose", 3)
CUDNN_FLOAT16 = _described("float16", " in half precision, between kernels that transpose", 3)
