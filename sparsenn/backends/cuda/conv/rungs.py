"""The CUDA variants of conv2d by name, in the ladder's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from sparsenn.backends.base import Variant, register
from sparsenn.backends.cuda.availability import ANY_GPU
from sparsenn.backends.cuda.conv import (
    channels_last,
    half,
    implicit,
    plain,
    register_tiled,
    streamed,
    study,
    swept,
    tensor,
    warpgroup,
    warpgroup_rows,
)
from sparsenn.backends.cuda.conv.estimates import IMAGES, SECONDS
from sparsenn.backends.cuda.conv.geometry import Geometry
from sparsenn.backends.cuda.conv.layer import ConvLayer
from sparsenn.backends.cuda.dense.image import SPLIT_PRODUCTS
from sparsenn.backends.cuda.loader import cupy
from sparsenn.backends.cuda.memory import within_memory
from sparsenn.backends.ladder import Sweep, register_sweep
from sparsenn.formats import Array
from sparsenn.layers import Conv2d
from sparsenn.network import Image

__all__ = ["register_all"]

Launch = Callable[[ConvLayer, Array], Array]
Fits = Callable[[Geometry], str | None]

_HOPPER = "NVIDIA GPU (compute capability 9.0 only)"
_ONE_GROUP, _PLAIN = "one group", "stride 1, no dilation, one group"


class _Entry(NamedTuple):
    """A rung, which convolutions it takes, as a test and in words, and what else its variant says."""

    rung: plain.Rung
    fits: Fits
    needs: tuple[str, ...] = ()
    precision: str = "float32"
    half_rows: bool = False
    gpu: str = ANY_GPU
    tf32_products: int = 0
    half_sums: int = 0


def _of_first_study() -> tuple[_Entry, ...]:
    needs = {
        "constant_filters": ("filters that fit into constant memory",),
        "tiled_shared": ("a tile of pixels that fits into shared memory",),
        "per_shape": (_ONE_GROUP,),
        "implicit_gemm": (_ONE_GROUP,),
    }
    return tuple(_Entry(rung, study.FITS[rung[0]], needs.get(rung[0], ())) for rung in study.RUNGS)


def _on_tensor_cores(
    rungs: Iterable[plain.Rung],
    precisions: Mapping[str, str],
    fits: Mapping[str, Fits],
    needs: tuple[str, ...],
    gpu: str = ANY_GPU,
) -> Iterator[_Entry]:
    """Yield rungs; those in half precision take float16 images, too, and those in float32 split their numbers."""
    for rung in rungs:
        precision = precisions[rung[0]]
        split = SPLIT_PRODUCTS if precision == "float32" else 0
        yield _Entry(rung, fits[rung[0]], needs, precision, precision == "fp16", gpu, split)


_FIRST = _of_first_study()
_HALF_AT = [entry.rung[0] for entry in _FIRST].index("per_shape")

_IN_ORDER: tuple[_Entry, ...] = (
    *_FIRST[:_HALF_AT],
    *(_Entry(rung, half.fits, (), half.PRECISION, True, half_sums=half.CHAIN) for rung in half.RUNGS),
    *_FIRST[_HALF_AT:],
    *(_Entry(rung, swept.fits, (_PLAIN,)) for rung in swept.RUNGS),
    *(_Entry(rung, streamed.fits) for rung in streamed.RUNGS),
    *(_Entry(rung, register_tiled.fits, (_PLAIN,)) for rung in register_tiled.RUNGS),
    *(_Entry(rung, plain.fits, (_ONE_GROUP,)) for rung in plain.RUNGS),
    *_on_tensor_cores(tensor.RUNGS, tensor.PRECISIONS, tensor.FITS, (_PLAIN, "filters that fit into shared memory")),
    *_on_tensor_cores(
        implicit.RUNGS, implicit.PRECISIONS, dict.fromkeys(implicit.PRECISIONS, implicit.fits), (_ONE_GROUP,)
    ),
    *_on_tensor_cores(
        channels_last.RUNGS, channels_last.PRECISIONS, {"channels_last_half": channels_last.fits}, (_ONE_GROUP,)
    ),
    *_on_tensor_cores(
        warpgroup.RUNGS,
        warpgroup.PRECISIONS,
        warpgroup.FITS,
        ("stride 1, one group", "rows that fit into shared memory"),
        _HOPPER,
    ),
    *_on_tensor_cores(
        warpgroup_rows.RUNGS,
        warpgroup_rows.PRECISIONS,
        {"warpgroup_rows_half": warpgroup_rows.fits},
        ("stride 1, one group", "64 filters that fit into shared memory"),
        _HOPPER,
    ),
    _Entry(plain.LIBRARY, plain.fits, (_ONE_GROUP,)),  # no rung, but what they are held against
)


def register_all() -> None:
    """Register every variant; CuPy is not needed for that."""
    registered = {entry.rung[0]: _register(entry) for entry in _IN_ORDER}
    register_sweep(
        Sweep(
            rung=registered["swept"],
            parameter="pixels a thread",
            values=swept.PARAMETERS[swept.SWEPT_PARAMETER],
            launch_with=lambda pixels: partial(_launch, swept.launch_with_pixels(pixels)),
        )
    )


def _register(entry: _Entry) -> Variant:
    name, launch, summary = entry.rung
    return register(
        Variant(
            operation="conv2d",
            name=name,
            device="cuda",
            summary=summary,
            launch=partial(_launch, launch),
            needs=(entry.gpu, *entry.needs),
            half_rows=entry.half_rows,
            seconds=partial(_seconds, SECONDS[name]) if name in SECONDS else None,
            why_not=partial(_why_not, entry),
            precision=entry.precision,
            tf32_products=entry.tf32_products,
            half_sums=entry.half_sums,
        )
    )


def _why_not(entry: _Entry, layer: Conv2d, image: Image) -> str | None:
    here = warpgroup.why_not_here() if entry.gpu is _HOPPER else None
    return here or entry.fits(_geometry(layer, image))


def _seconds(estimate: Callable[[Geometry], float], layer: Conv2d, image: Image) -> float:
    return estimate(_geometry(layer, image)) / IMAGES


def _geometry(layer: Conv2d, image: Image) -> Geometry:
    return Geometry(*image, layer.filters, layer.kernel_size, *layer.steps, layer.groups)


def _launch(launch: Launch, layer: ConvLayer, images: Array) -> Array:
    """Launch a rung on the layer's device.

    Raises
    ------
    ShapeError
        The images are not of the size that the layer was uploaded for.
    UsageError
        The rung is not written for such a convolution, or for images of that type.
    OutOfMemoryError
        The device's memory does not suffice.
    """
    given = layer.geometry
    outputs = given.filters * given.output_height * given.output_width
    with cupy().cuda.Device(layer.device), within_memory("a convolution", images.shape[0], 8 * outputs):
        return launch(layer, images)
