"""The kernels of conv2d that multiply on tensor cores, made for few channels and many images.

`conv_tensor_half` takes images of float16 too, and then returns float16.

What a number may be off by: `conv_tensor_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `conv_tensor_tf32` rounds pixels and weights to 11 bits. So does `conv_tensor_half`, to which
pixels beyond 65,504 are infinite; weights must not exceed that. Sums are float32.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import ConvLayer, Geometry
from sparsenn.backends.cuda.conv.kernel import (
    Fits,
    activation_define,
    check_half_range,
    convolution,
    new_outputs,
    refuse,
)
from sparsenn.backends.cuda.conv.tensor_plan import (
    FLOAT32,
    HALF,
    HALF_ROWS,
    TF32,
    Kind,
    Plan,
    fits_any_precision,
    fits_float32,
    plan,
    weight_image,
)
from sparsenn.backends.cuda.runtime.device import machine_of
from sparsenn.backends.cuda.runtime.layer_cache import cache_on_device, from_host
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch
from sparsenn.backends.kernel_records import ConvolutionKernel
from sparsenn.backends.machine import WARP
from sparsenn.backends.prior import WARPS, Prior
from sparsenn.formats import Array

_PROGRAMS = {kind.source: specialised(kind.source, dynamic_shared=True) for kind in (FLOAT32, TF32, HALF)}


# ---- Launching ---------------------------------------------------------------------------------------------------


def copied_at_once(kind: Kind, geometry: Geometry, made: Plan, address: int) -> int:
    """Return the bytes, a power of 2 up to 16, in which images that begin at an address can be copied.

    Where nothing lies between the rows of a channel, they are copied in one run.
    """
    width = geometry.width * kind.number
    lengths = [address, geometry.channels * geometry.height * width]
    if geometry.padding != (0, 0) or made.pitch != geometry.width:
        lengths += [width, made.pitch * kind.number, geometry.padding[1] * kind.number]
    elif made.bands(geometry) > 1:
        lengths += [geometry.height * width, made.band * width, (geometry.kernel[0] - 1) * width]
    return gcd(16, *lengths)


def kernel_defines(kind: Kind, geometry: Geometry, made: Plan, copied: int, activation: int) -> dict[str, int | str]:
    """Return what a kernel is compiled with; `copied` is as `copied_at_once` returns it."""
    input_type = {"INPUT": "half_bits" if kind is HALF_ROWS else "float"} if kind.source == HALF.source else {}
    return {**made.defines(geometry), **input_type, "COPY": copied, "ACTIVATION": activation}


def _run(kind: Kind, fits: Fits, layer: ConvLayer, images: Array) -> Array:
    machine = machine_of(layer.device)
    refuse(fits(machine, layer.geometry))
    if kind is HALF:
        check_half_range(layer)
    outputs = new_outputs(layer, images, (np.float32, np.float16) if kind is HALF else (np.float32,))
    if not images.shape[0]:
        return outputs
    kind, geometry = HALF_ROWS if images.dtype == np.float16 else kind, layer.geometry
    made = plan(kind, geometry, images.shape[0], machine)
    assert made is not None, "what has no plan does not fit"
    pointer: Any = images.data
    copied = copied_at_once(kind, geometry, made, pointer.ptr)
    found = _PROGRAMS[kind.source].kernel(
        "conv2d", **kernel_defines(kind, geometry, made, copied, activation_define(layer))
    )
    name = kind.source, made.layout
    laid_out = cache_on_device(
        layer, name, lambda: from_host(partial(weight_image, kind, geometry, made.layout), layer.source.weights)
    )
    units = images.shape[0] * made.bands(geometry)
    blocks = min(units, machine.multiprocessors)
    arguments = images, outputs, laid_out, layer.weights, layer.bias, layer.clip, np.int32(units)
    launch("conv2d", found, (blocks,), (WARP * made.warps,), *arguments, shared_bytes=made.shared_bytes)
    return outputs


# ---- Kernels -----------------------------------------------------------------------------------------------------


def _described(kind: Kind, fits: Fits, name: str, summary: str, **fields: Any) -> ConvolutionKernel:
    return convolution(
        name,
        partial(_run, kind, fits),
        f"tensor cores{summary}",
        fits,
        needs=("stride 1, no dilation, one group", "filters that fit into shared memory"),
        auto=True,
        prior=Prior(WARPS, precision=kind.multiplied),
        **fields,
    )


TENSOR_FLOAT32 = _described(
    FLOAT32,
    fits_float32,
    "conv_tensor_float32",
    ", each number split into two of TF32, no unrolled windows",
    tf32_products=FLOAT32.passes,
)
TENSOR_TF32 = _described(
    TF32,
    fits_any_precision,
    "conv_tensor_tf32",
    " in TF32, windows read from images in shared memory",
    precision="tf32",
)
TENSOR_HALF = _described(
    HALF,
    fits_any_precision,
    "conv_tensor_half",
    " in half precision, sums in float32",
    precision="float16",
    half_rows=True,
)
