"""Kernels that are compiled for one convolution: its numbers as defines, and what every launch of one begins with."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry, why_too_large
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.kept import kept, stream_key
from sparsenn.backends.cuda.loader import cupy, module
from sparsenn.backends.cuda.recorder import launch
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array

__all__ = [
    "CACHED_WEIGHTS",
    "CONSTANT_WEIGHTS",
    "HALF_MAX",
    "Defines",
    "activation_define",
    "check_half_range",
    "grid_of",
    "kernel",
    "launch_filters",
    "launch_with_constants",
    "new_outputs",
    "parts",
    "refuse",
    "sizes",
    "why_not_plain",
]

Defines = Mapping[str, int | str]

CONSTANT_WEIGHTS = 16_384
"""32-bit weights that constant memory has room for."""

CACHED_WEIGHTS = 512
"""32-bit weights that a multiprocessor's cache of constant memory keeps (2 KiB). Where a kernel reads more than that
again and again, each read waits for the next cache, and global memory is much the faster place for them."""

HALF_MAX = 65_504.0
"""The largest number of half precision."""

MOST_ROWS_OF_BLOCKS = 65_535
"""Blocks that a grid may have in its second direction."""

_RELU, _RELU_CLIPPED = 0, 4
"""Activations as kernels are compiled for them; sigmoid, tanh and identity are as in `kernels/common.cuh`."""


def parts(total: int, size: int) -> int:
    """Return how many parts of a size make up a total, the last one perhaps smaller."""
    return -(-total // size)


def sizes(geometry: Geometry) -> dict[str, int]:
    """Return the numbers of a convolution as `kernels/conv2d/sizes.cuh` takes them."""
    pairs = {"STRIDE": geometry.stride, "PADDING": geometry.padding, "DILATION": geometry.dilation}
    return {
        "CHANNELS": geometry.channels,
        "HEIGHT": geometry.height,
        "WIDTH": geometry.width,
        "FILTERS": geometry.filters,
        "KERNEL_HEIGHT": geometry.kernel[0],
        "KERNEL_WIDTH": geometry.kernel[1],
        "GROUPS": geometry.groups,
        **{f"{name}_DOWN": pair[0] for name, pair in pairs.items()},
        **{f"{name}_ACROSS": pair[1] for name, pair in pairs.items()},
    }


def activation_define(layer: ConvLayer) -> int:
    """Return a layer's activation as `kernels/conv2d/activated.cuh` takes it."""
    clipped = int(layer.activation) == _RELU and bool(np.isfinite(layer.clip))
    return _RELU_CLIPPED if clipped else int(layer.activation)


def kernel(source: str, defines: Defines, device: int, name: str = "conv2d") -> Any:
    """Return a kernel compiled with those defines for the device `device`, the current one; on first use."""
    return _kernel(source, tuple(sorted(defines.items())), device, name)


@cache
def _kernel(source: str, defines: tuple[tuple[str, int | str], ...], device: int, name: str) -> Any:
    return module(source, dict(defines)).get_function(name)


def new_outputs(layer: ConvLayer, images: Array, types: Sequence[Any] = (np.float32,)) -> Array:
    """Check images and return an array for the outputs: (images, filters, output height, output width), same type.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are of none of the types, or not contiguous.
    """
    given = layer.geometry
    wanted = given.channels, given.height, given.width
    if images.ndim != 4 or images.shape[1:] != wanted:
        raise ShapeError(
            f"the images have shape {images.shape}; the layer was uploaded for (images, {', '.join(map(str, wanted))})"
        )
    if images.dtype not in types or not images.flags.c_contiguous:
        names = " or ".join(np.dtype(kind).name for kind in types)
        raise UsageError(f"the images are {images.dtype}, strides {images.strides}; give {names} in row-major order")
    shape = images.shape[0], given.filters, given.output_height, given.output_width
    outputs: Array = cupy().empty(shape, images.dtype)
    return outputs


def why_not_plain(geometry: Geometry) -> str | None:
    """Return why a kernel for stride 1, dilation 1 and one group cannot run a convolution; None if it can."""
    if geometry.is_plain:
        return why_too_large(geometry)
    return (
        f"stride {geometry.stride}, dilation {geometry.dilation}, groups {geometry.groups}; the kernel is written for "
        "stride 1, dilation 1 and one group"
    )


def refuse(reason: str | None) -> None:
    """Raise a UsageError if there is a reason."""
    if reason is not None:
        raise UsageError(reason)


def grid_of(columns: int, tiles: int) -> tuple[int, int]:
    """Return a grid of columns x tiles blocks, or fewer of the latter: the kernels loop over them."""
    return columns, min(tiles, MOST_ROWS_OF_BLOCKS)


def check_half_range(layer: ConvLayer) -> None:
    """Look for weights that half precision does not reach; the first time for a layer, this waits for the device.

    Raises
    ------
    UsageError
        There is one.
    """
    kept(layer, "within half precision", lambda: _within_half_range(layer))


def _within_half_range(layer: ConvLayer) -> Array:
    largest = float(abs(layer.weights).max())
    if largest > HALF_MAX:
        raise UsageError(
            f"the convolution has a weight of {largest:g}; half precision ends at {HALF_MAX:,.0f}: choose float32"
        )
    return layer.bias


# ---- Constant memory ------------------------------------------------------------------------------------------------

_in_use: dict[tuple[str, tuple[tuple[str, int | str], ...], int], tuple[Hashable, Any]] = {}
"""For each module with constant memory: the stream of its last launch, and an event after it."""

_turns = threading.Lock()


def launch_with_constants(
    source: str,
    defines: Defines,
    name: str,
    constants: Array,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    *arguments: Any,
) -> None:
    """Copy an array to a module's `constant_filters`, then launch one of its kernels as part `conv2d`.

    Constant memory belongs to the module, whichever layer it is launched for: a launch on another stream waits until
    the one before has read what it needs. A launch that a graph captures cannot wait for others, nor others for it.
    """
    if 0 in grid:
        return
    cp = cupy()
    device = cp.cuda.runtime.getDevice()
    key = source, tuple(sorted(defines.items())), device
    stream = cp.cuda.get_current_stream()
    found = kernel(source, defines, device, name)
    with _turns:
        last = _in_use.get(key)
        if last is None:
            last = stream_key(stream), cp.cuda.Event(disable_timing=True)
        elif last[0] != stream_key(stream):
            stream.wait_event(last[1])
        runtime = cp.cuda.runtime
        target = module(source, dict(defines)).get_global("constant_filters")
        pointer: Any = constants.data
        runtime.memcpyAsync(target.ptr, pointer.ptr, constants.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
        launch("conv2d", found, grid, block, *arguments)
        last[1].record(stream)
        _in_use[key] = stream_key(stream), last[1]


def launch_filters(
    layer: ConvLayer,
    images: Array,
    outputs: Array,
    source: str,
    defines: Defines,
    grid: tuple[int, ...],
    threads: int,
    *arguments: Any,
    name: str = "conv2d",
    weights: Array | None = None,
) -> None:
    """Launch a kernel that includes `kernels/conv2d/filters.cuh`, or keeps to its ways.

    The weights go to constant memory where its cache keeps them, but not in a launch that a graph captures: nothing
    would keep other launches from changing them.

    Parameters
    ----------
    defines : besides FILTERS_CONSTANT and ACTIVATION.
    arguments : after images, weights, bias, clip and outputs.
    weights : 32-bit words; the layer's own unless given.
    """
    words = layer.weights if weights is None else weights
    constant = words.size <= CACHED_WEIGHTS and not cupy().cuda.get_current_stream().is_capturing()
    every = {**defines, "FILTERS_CONSTANT": int(constant), "ACTIVATION": activation_define(layer)}
    given = images, words, layer.bias, layer.clip, outputs, *arguments
    if constant:
        launch_with_constants(source, every, name, words, grid, (threads,), *given)
    else:
        launch("conv2d", kernel(source, every, layer.device, name), grid, (threads,), *given)
