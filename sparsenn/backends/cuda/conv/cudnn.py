"""Convolutions by cuDNN, through NVIDIA's frontend in Python, where both are installed; and its kernel in float32.

The first launch of `conv_cudnn_float32` for a layer and a number of images waits for cuDNN to build a plan. Products
and sums are of float32. For the other precisions see `channels_last`.

cuDNN convolves; bias and activation are a kernel of our own, because the library's ReLU may turn NaN into zero.
"""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import MOST_NUMBERS, ConvLayer, Geometry, why_too_large
from sparsenn.backends.cuda.conv.kernel import HELD_BYTES, convolution, new_outputs, refuse
from sparsenn.backends.cuda.conv.unrolled import launch_unrolled
from sparsenn.backends.cuda.runtime.activation import IDENTITY
from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device
from sparsenn.backends.cuda.runtime.loader import program, rehearses
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.machine import Machine
from sparsenn.backends.prior import LAID_OUT, LAUNCH_SECONDS, TUNED, Prior
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array

NUMBERS = {np.dtype(np.float32): "float", np.dtype(np.float16): "half_bits"}
THREADS = 256

FINISH = "conv2d/finish.cu"

_FINISH = program(FINISH, THREADS=(THREADS,), NUMBER=tuple(NUMBERS.values()), LAST=(0, 1), ADDS=(0, 1))

MOST_WORKSPACE = 1 << 30  # bytes that a convolution may take for itself
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


def _fits(machine: Machine, geometry: Geometry) -> str | None:
    return why_too_large(geometry) or why_no_library()


# ---- Plans -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """A convolution as the library runs it."""

    graph: Any
    images: Any
    weights: Any
    sums: Any

    def run(self, device: int, images: Array, weights: Array, sums: Array) -> None:
        """Queue the convolution on the current stream."""
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
def plan_of(precision: str, geometry: Geometry, count: int, device: int) -> Plan | None:
    """Return the plan that the library prefers, or None where it has none.

    Numbers are float16 in that precision, else float32. Channels of a pixel are neighbours but in float32.
    """
    with _in_use:
        return _build(precision, geometry, count, device)


atexit.register(plan_of.cache_clear)  # the library's bindings print what is alive after the interpreter's end


def _build(precision: str, geometry: Geometry, count: int, device: int) -> Plan | None:
    cudnn = import_module("cudnn")
    number = cudnn.data_type.HALF if precision == "float16" else cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        handle=_handle(device),
        io_data_type=number,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    strides = partial(_strides, last=precision != "float32")
    image = [count, geometry.channels, geometry.height, geometry.width]
    filters = [geometry.filters, geometry.channels // geometry.groups, *geometry.kernel]
    outputs = [count, geometry.filters, geometry.output_height, geometry.output_width]
    images = graph.tensor(name="images", dim=image, stride=strides(image), data_type=number)
    weights = graph.tensor(name="weights", dim=filters, stride=strides(filters), data_type=number)
    sums = graph.conv_fprop(
        image=images,
        weight=weights,
        padding=list(geometry.padding),
        stride=list(geometry.stride),
        dilation=list(geometry.dilation),
    )
    sums.set_output(True).set_data_type(number)
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
    return Plan(graph, images, weights, sums)


def _strides(shape: list[int], last: bool) -> list[int]:
    _, channels, height, width = shape
    own = [1, width * channels, channels] if last else [height * width, width, 1]
    return [channels * height * width, *own]


# ---- Launches ----------------------------------------------------------------------------------------------------


def unfinished(layer: ConvLayer) -> ConvLayer:
    """Return a layer without bias and activation."""

    def made() -> ConvLayer:
        bias = cupy().zeros(layer.bias.shape, np.float32)
        return replace(layer, bias=bias, activation=np.int32(IDENTITY), clip=np.float32(np.inf))

    return cache_on_device(layer, "unfinished", made)


def finish(
    device: int,
    sums: Array,
    others: Array | None,
    bias: Array,
    shape: tuple[int, int],
    activation: tuple[Any, Any],
    last: bool,
) -> None:
    """Add bias and `others`, of the same shape, to sums, and apply an activation, all in place.

    `shape` is of an image, (filters, pixels); where `last`, the filters of a pixel are neighbours.
    """
    filters, pixels = shape
    kernel = _FINISH.kernel("finish", NUMBER=NUMBERS[sums.dtype], LAST=int(last), ADDS=int(others is not None))
    blocks = min(parts_of(sums.size, 4 * THREADS), 2 * machine_of(device).filling_blocks(THREADS))
    sizes = map(np.uint32, (sums.size, pixels, filters))
    added = sums if others is None else others
    launch("conv2d", kernel, (blocks,), (THREADS,), sums, added, bias, *sizes, *activation)


def _run(layer: ConvLayer, images: Array, others: Array | None = None) -> Array:
    outputs = new_outputs(layer, images)
    geometry, count = layer.geometry, images.shape[0]
    refuse(_fits(machine_of(layer.device), geometry))
    if not count:
        return outputs
    numbers = max(geometry.channels * geometry.height * geometry.width, outputs[0].size)
    most = max(1, min(MOST_NUMBERS // numbers, HELD_BYTES // (4 * numbers)))
    most = parts_of(count, parts_of(count, most))
    for first in range(0, count, most):
        some = slice(first, first + most)
        _convolve(layer, images[some], None if others is None else others[some], outputs[some])
    return outputs


def _convolve(layer: ConvLayer, images: Array, others: Array | None, outputs: Array) -> None:
    """Run a convolution of some images; where cuDNN has no plan for it, by a kernel that takes any."""
    made = plan_of("float32", layer.geometry, images.shape[0], layer.device)
    if made is None:
        launch_unrolled(unfinished(layer), images, outputs)
    else:
        made.run(layer.device, images, layer.weights, outputs)
    shape = layer.geometry.filters, layer.geometry.output_height * layer.geometry.output_width
    finish(layer.device, outputs, others, layer.bias, shape, (layer.activation, layer.clip), last=False)


CUDNN_FLOAT32 = convolution(
    "conv_cudnn_float32",
    _run,
    "cuDNN's convolution, then bias and activation",
    _fits,
    needs=("nvidia-cudnn-frontend",),
    auto=True,
    adds=True,
    prior=Prior(TUNED, LAID_OUT, 2 * LAUNCH_SECONDS),
    multiples=(32, 1),
)
