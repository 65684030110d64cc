"""The rungs of conv2d that multiply on tensor cores, made for few channels and many images.

A launch takes a layer and images, a CuPy array (images, channels, height, width) of float32 in row-major order, and
returns the outputs, a new CuPy array (images, filters, output height, output width) of float32. It queues its work on
the current stream and does not wait for it, but for the first launch of a layer, which compiles a kernel for its sizes
and lays its weights out. `launch_tensor_half` takes images of float16 too, and then returns float16.

What a number may be off by: `tensor_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `tensor_tf32` rounds pixels and weights to 11 bits. So does `tensor_half`, to which pixels beyond
65,504 are infinite; weights must not exceed that. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.conv.specialised import (
    activation_define,
    check_half_range,
    kernel,
    new_outputs,
    refuse,
)
from sparsenn.backends.cuda.conv.tensor_image import FLOAT32, HALF, HALF_ROWS, TF32, Kind, weight_image
from sparsenn.backends.cuda.conv.tensor_plan import MANY, Plan, fits_any_precision, fits_float32, plan
from sparsenn.backends.cuda.kept import kept
from sparsenn.backends.cuda.loader import cupy, program
from sparsenn.backends.cuda.recorder import launch
from sparsenn.backends.cuda.sparse.tiling import WARP, Limits, device_limits
from sparsenn.errors import UsageError
from sparsenn.formats import Array

__all__ = [
    "FITS",
    "PRECISIONS",
    "RUNGS",
    "Rung",
    "copied_at_once",
    "launch_tensor_float32",
    "launch_tensor_half",
    "launch_tensor_tf32",
]

Rung = tuple[str, Callable[[ConvLayer, Array], Array], str]


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


@cache
def _kernel(source: str, defines: tuple[tuple[str, int | str], ...], device: int) -> Any:
    found = kernel(source, dict(defines), device)
    found.max_dynamic_shared_size_bytes = device_limits(device).block_bytes
    return found


def _defines(kind: Kind, geometry: Geometry, made: Plan, copied: int, activation: int) -> dict[str, int | str]:
    input_type = {"INPUT": "half_bits" if kind is HALF_ROWS else "float"} if kind.source == HALF.source else {}
    return {**made.defines(geometry), **input_type, "COPY": copied, "ACTIVATION": activation}


def _run(kind: Kind, layer: ConvLayer, images: Array, outputs: Array) -> Array:
    if not images.shape[0]:
        return outputs
    cp, geometry, limits = cupy(), layer.geometry, device_limits(layer.device)
    made = plan(kind, geometry, images.shape[0], limits)
    if made is None:
        raise UsageError(f"the device's {limits.block_bytes >> 10} KiB of shared memory have no room for {geometry}")
    pointer: Any = images.data
    defines = _defines(
        kind, geometry, made, copied_at_once(kind, geometry, made, pointer.ptr), activation_define(layer)
    )
    laid_out = kept(
        layer,
        (kind.source, made.layout),
        lambda: weight_image(cp, kind, geometry, made.layout, layer.weights),
    )
    units = images.shape[0] * made.bands(geometry)
    blocks = min(units, limits.multiprocessors)
    found = _kernel(kind.source, tuple(sorted(defines.items())), layer.device)
    arguments = images, outputs, laid_out, layer.weights, layer.bias, layer.clip, np.int32(units)
    launch("conv2d", found, (blocks,), (WARP * made.warps,), *arguments, shared_bytes=made.shared_bytes)
    return outputs


def launch_tensor_float32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution on the tensor cores, to float32's precision.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are not float32, or not in row-major order; or the convolution does not fit.
    """
    refuse(fits_float32(layer.geometry))
    return _run(FLOAT32, layer, images, new_outputs(layer, images))


def launch_tensor_tf32(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution on the tensor cores in TF32; errors as `launch_tensor_float32`."""
    refuse(fits_any_precision(layer.geometry))
    return _run(TF32, layer, images, new_outputs(layer, images))


def launch_tensor_half(layer: ConvLayer, images: Array) -> Array:
    """Run a convolution on the tensor cores in half precision; images and outputs float32, or both float16.

    Raises
    ------
    ShapeError
        The images do not have the shape that the layer was uploaded for.
    UsageError
        They are neither float32 nor float16, or not in row-major order; the convolution does not fit, or has a weight
        beyond half precision.
    """
    refuse(fits_any_precision(layer.geometry))
    outputs = new_outputs(layer, images, (np.float32, np.float16))
    check_half_range(layer)
    return _run(HALF_ROWS if images.dtype == np.float16 else HALF, layer, images, outputs)


RUNGS: tuple[Rung, ...] = (
    ("tensor_float32", launch_tensor_float32, "tensor cores, each number split into two of TF32, no unrolled windows"),
    ("tensor_tf32", launch_tensor_tf32, "tensor cores in TF32, windows read from images in shared memory"),
    ("tensor_half", launch_tensor_half, "tensor cores in half precision, sums in float32"),
)
"""Name, launch and summary, in the ladder's order."""

FITS: Mapping[str, Callable[[Geometry], str | None]] = {
    "tensor_float32": fits_float32,
    "tensor_tf32": fits_any_precision,
    "tensor_half": fits_any_precision,
}
"""For each rung, why it cannot run a convolution."""

PRECISIONS = {"tensor_float32": "float32", "tensor_tf32": "tf32", "tensor_half": "fp16"}
"""What each rung multiplies; it adds in float32."""


# ---- What the test-suite compiles ---------------------------------------------------------------------------------


def _declare(geometry: Geometry, activation: int, images: int, skipped: int) -> None:
    """Declare the builds of a convolution on the largest device, of images that begin so many numbers late."""
    for kind in (FLOAT32, TF32, HALF, HALF_ROWS):
        made = plan(kind, geometry, images, Limits())
        assert made is not None, geometry
        copied = copied_at_once(kind, geometry, made, kind.number * skipped)
        defines = _defines(kind, geometry, made, copied, activation)
        program(kind.source, **{name: (value,) for name, value in defines.items()})


_declare(Geometry(1, 86, 86, 4, (7, 7)), 0, MANY, 0)
_declare(Geometry(4, 40, 40, 16, (7, 7)), 0, MANY, 0)
_declare(Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1)), 4, 1, 0)
_declare(Geometry(6, 14, 15, 40, (4, 5), padding=(0, 3)), 1, 100, 1)
