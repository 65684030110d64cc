"""Builds of the rungs of conv2d that are compiled for a problem's own sizes."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_builds import declare

from sparsenn.backends.cuda.conv import Geometry
from sparsenn.backends.cuda.conv.kernel import sizes
from sparsenn.studies.conv2d.direct import float32, half, swept
from sparsenn.studies.conv2d.direct.filters import CACHED_WEIGHTS
from sparsenn.studies.conv2d.products import float32 as products
from sparsenn.studies.gemm.tiling import Tiling

__all__: list[str] = []

FEW, SEVERAL = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))
DEEP = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
WIDE = Geometry(64, 224, 224, 64, (3, 3), padding=(1, 1))


def kept_constant(geometry: Geometry) -> int:
    """Whether the filters lie in constant memory."""
    return int(geometry.filters * geometry.depth <= CACHED_WEIGHTS)


# ---- The first story ----------------------------------------------------------------------------------------------


def declare_float32(geometry: Geometry, activation: int) -> None:
    constant = {"ACTIVATION": activation, "FILTERS_CONSTANT": kept_constant(geometry)}
    if float32.fits_tiled(geometry) is None:
        declare(float32.TILED_SHARED_SOURCE, **constant, **float32.tiled_defines(geometry))
    if geometry.groups == 1:
        declare(float32.PER_SHAPE_SOURCE, **constant, **float32.per_shape_defines(geometry))
        product = {**sizes(geometry), **float32.product_tile(geometry.filters)}
        declare(float32.IMPLICIT_GEMM_SOURCE, **product, ACTIVATION=activation)


declare_float32(FEW, 0)
declare_float32(SEVERAL, 4)
declare_float32(DEEP, 0)
declare_float32(Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2), 1)
declare_float32(Geometry(3, 1, 1, 5, (1, 1)), 3)


def declare_half(geometry: Geometry, activation: int, aligned: bool, output: str) -> None:
    others = {"ACTIVATION": activation, "FILTERS_CONSTANT": kept_constant(geometry), "OUTPUT": output}
    declare(half.SOURCE, **half.shape_defines(geometry, aligned), **others)


declare_half(FEW, 0, True, "float")
declare_half(SEVERAL, 4, True, "half_bits")
declare_half(DEEP, 0, True, "half_bits")
declare_half(Geometry(3, 6, 9, 2, (4, 2), padding=(0, 2)), 1, False, "float")


def declare_swept(geometry: Geometry, activation: int, parameters: Mapping[str, int] | None = None) -> None:
    others = {"ACTIVATION": activation, "FILTERS_CONSTANT": kept_constant(geometry)}
    declare(swept.SOURCE, **swept.shape_defines(geometry, parameters or swept.defaults(geometry)), **others)


declare_swept(FEW, 0)
declare_swept(SEVERAL, 0)
declare_swept(SEVERAL, 0, {"tile": 17, "pixels": 17, "filters": 4})
declare_swept(DEEP, 0)
declare_swept(Geometry(3, 6, 9, 5, (4, 2), padding=(0, 2)), 1)


# ---- The second story ---------------------------------------------------------------------------------------------


def declare_products(geometry: Geometry, activation: int, tilings: tuple[Tiling, ...]) -> None:
    """Declare the builds that a convolution leads to, `vectorized` in some tilings."""
    shared = {**sizes(geometry), "ACTIVATION": activation}
    for source, shape in products.SHAPES.items():
        declare(source, **shared, **shape)
    for tiling in tilings:
        declare(products.VECTORIZED_SOURCE, **shared, **tiling.defines())


declare_products(WIDE, 0, (Tiling((2, 4)), Tiling((8, 1)), Tiling((2, 1), (16, 2))))
declare_products(DEEP, 3, (Tiling((4, 2)), Tiling((2, 1))))
declare_products(Geometry(3, 17, 19, 5, (3, 2), (2, 1), (1, 0), (1, 2)), 2, (Tiling((4, 2)), Tiling((2, 4))))
