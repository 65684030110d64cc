"""Launches of kernels whose filters lie in constant memory, where its cache keeps them."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from sparsenn.backends.cuda.conv.geometry import ConvLayer
from sparsenn.backends.cuda.conv.kernel import Defines, activation_define
from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.runtime.layer_cache import stream_key
from sparsenn.backends.cuda.runtime.loader import Program, rehearses
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.formats import Array

CACHED_WEIGHTS = 512
"""32-bit weights that a multiprocessor's cache of constant memory keeps (2 KiB). Where a kernel reads more than that
again and again, each read waits for the next cache, and global memory is much the faster place for them."""

_in_use: dict[tuple[Program, tuple[tuple[str, int | str], ...], int], tuple[Hashable, Any]] = {}
"""For each build with constant memory, on a device: the stream of its last launch, and an event after it."""

_turns = threading.Lock()


def launch_with_constants(
    program: Program,
    defines: Defines,
    name: str,
    constants: Array,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    *arguments: Any,
) -> None:
    """Copy an array to a program's `constant_filters`, then launch one of its kernels as part `conv2d`.

    Constant memory belongs to the program as it is built, whichever layer it is launched for: a launch on another
    stream waits until the one before has read what it needs. A launch that a graph captures cannot wait for others, nor
    others for it.
    """
    if rehearses():
        program.kernel(name, **defines)
        return
    if 0 in grid:
        return
    cp = cupy()
    runtime, stream = cp.cuda.runtime, cp.cuda.get_current_stream()
    key = program, tuple(sorted(defines.items())), runtime.getDevice()
    found, target = program.kernel(name, **defines), program.constant("constant_filters", **defines)
    with _turns:
        last = _in_use.get(key)
        if last is None:
            last = stream_key(stream), cp.cuda.Event(disable_timing=True)
        elif last[0] != stream_key(stream):
            stream.wait_event(last[1])
        pointer: Any = constants.data
        runtime.memcpyAsync(target.ptr, pointer.ptr, constants.nbytes, runtime.memcpyDeviceToDevice, stream.ptr)
        launch("conv2d", found, grid, block, *arguments)
        last[1].record(stream)
        _in_use[key] = stream_key(stream), last[1]


def launch_filters(
    layer: ConvLayer,
    images: Array,
    outputs: Array,
    program: Program,
    defines: Defines,
    grid: tuple[int, ...],
    threads: int,
    *arguments: Any,
    name: str = "conv2d",
    weights: Array | None = None,
) -> None:
    """Launch a kernel that takes its weights as `kernels/filters.cuh` does.

    Up to `CACHED_WEIGHTS` weights, 32-bit words, go to constant memory, but not in a launch that a graph captures:
    nothing would keep other launches from changing them. `arguments` follow images, weights, bias, clip and outputs.
    """
    words = layer.weights if weights is None else weights
    constant = words.size <= CACHED_WEIGHTS and not cupy().cuda.get_current_stream().is_capturing()
    every = {**defines, "FILTERS_CONSTANT": int(constant), "ACTIVATION": activation_define(layer)}
    given = images, words, layer.bias, layer.clip, outputs, *arguments
    if constant:
        launch_with_constants(program, every, name, words, grid, (threads,), *given)
    else:
        launch("conv2d", program.kernel(name, **every), grid, (threads,), *given)
