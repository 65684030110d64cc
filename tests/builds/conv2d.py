"""Builds of the engine's kernels of conv2d that are compiled for a problem's own sizes."""

from __future__ import annotations

from itertools import product

from cuda_builds import declare

from sparsenn.backends.cuda.conv import (
    Geometry,
    channels_last,
    depthwise,
    implicit,
    register_tiled,
    sparse_direct,
    tensor,
    unrolled,
    warpgroup,
)
from sparsenn.backends.cuda.conv.cudnn import NUMBERS
from sparsenn.backends.cuda.conv.implicit import TILES
from sparsenn.backends.cuda.conv.sparse_plan import MOST_SUMS, Tiling, places_of
from sparsenn.backends.cuda.conv.tensor_plan import MANY, plan
from sparsenn.backends.cuda.conv.warpgroup import ARCHITECTURE, LAYING_OUT
from sparsenn.backends.cuda.conv.warpgroup_plan import SHAPES, Tile
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF
from sparsenn.backends.machine import H200

__all__: list[str] = []

FEW, SEVERAL = Geometry(1, 86, 86, 4, (7, 7)), Geometry(4, 40, 40, 16, (7, 7))
DEEP = Geometry(512, 14, 14, 512, (3, 3), padding=(1, 1))
WIDE = Geometry(64, 224, 224, 64, (3, 3), padding=(1, 1))


def declare_unrolled(geometry: Geometry, activation: int) -> None:
    defines = {"ACTIVATION": activation, **unrolled.shape_defines(geometry)}
    declare(unrolled.SOURCE, **defines)


declare_unrolled(FEW, 0)
declare_unrolled(SEVERAL, 4)
declare_unrolled(DEEP, 0)
declare_unrolled(Geometry(6, 9, 11, 10, (3, 4), (2, 1), (1, 2), (1, 2), 2), 1)
declare_unrolled(Geometry(3, 1, 1, 5, (1, 1)), 3)


def declare_register_tiled(geometry: Geometry, activation: int, count: int = register_tiled.MANY) -> None:
    tiling = register_tiled.tiling_for(geometry, count, H200)
    assert tiling is not None, geometry
    declare(register_tiled.SOURCE, **register_tiled.kernel_defines(geometry, tiling, activation))


declare_register_tiled(FEW, 0)
declare_register_tiled(SEVERAL, 0)
declare_register_tiled(WIDE, 0)
declare_register_tiled(DEEP, 4, 16)
declare_register_tiled(Geometry(3, 6, 9, 5, (4, 2), padding=(0, 2)), 1)


for _pixels, _filters, _geometry in product((1, 3, 4, 8, 12), (1, 2, 4, 8, 16), (DEEP, Geometry(64, 8, 8, 64, (1, 1)))):
    if _pixels * _filters <= MOST_SUMS:
        _tiling = Tiling(_pixels, _filters, 8, 1, 1, 1)  # of more warps, a thread has as many registers, or more
        declare(sparse_direct.SOURCE, **sparse_direct.kernel_defines(places_of(_geometry), _tiling, 0))
declare(sparse_direct.SOURCE, **sparse_direct.kernel_defines(places_of(DEEP), Tiling(8, 8, 16, 1, 1, 1), 4))
for _geometry in (DEEP, Geometry(64, 8, 8, 64, (1, 1))):
    declare(
        sparse_direct.SOURCE, **sparse_direct.kernel_defines(places_of(_geometry), Tiling(8, 8, 8, 1, 1, 1), 0, True)
    )

for _number, _size, _stride in product(NUMBERS.values(), (3, 5, 7), (1, 2)):
    _geometry = Geometry(64, 56, 56, 64, (_size, _size), (_stride, _stride), groups=64)
    declare(channels_last.DEPTHWISE, **channels_last.depthwise_defines(_geometry, 0, _number))
    declare(depthwise.SOURCE, ACTIVATION=0, **depthwise.shape_defines(_geometry))


def declare_tensor(geometry: Geometry, activation: int, images: int, skipped: int) -> None:
    """Declare the builds of all precisions, of images that begin so many numbers late."""
    for kind in (tensor.FLOAT32, tensor.TF32, tensor.HALF, tensor.HALF_ROWS):
        made = plan(kind, geometry, images, H200)
        assert made is not None, geometry
        copied = tensor.copied_at_once(kind, geometry, made, kind.number * skipped)
        declare(kind.source, **tensor.kernel_defines(kind, geometry, made, copied, activation))


declare_tensor(FEW, 0, MANY, 0)
declare_tensor(SEVERAL, 0, MANY, 0)
declare_tensor(Geometry(3, 225, 223, 10, (5, 3), padding=(2, 1)), 4, 1, 0)
declare_tensor(Geometry(6, 14, 15, 40, (4, 5), padding=(0, 3)), 1, 100, 1)


for _tile in TILES:
    declare(implicit.SOURCE, **implicit.kernel_defines(_tile, 0))
declare(implicit.SOURCE, **implicit.kernel_defines(TILES[0], 2))


def declare_warpgroup(kind: warpgroup.Kind, tile: Tile, run: int, half_rows: bool, activation: int) -> None:
    defines = warpgroup.kernel_defines(kind, tile, run, half_rows, activation)
    declare(warpgroup.SOURCE, ARCHITECTURE, **defines)


for _kind, _shapes in SHAPES.items():
    for _number, _shape in enumerate(_shapes):
        _steps = 2 if _kind is FLOAT32 else 4
        declare_warpgroup(_kind, Tile(*_shape, _steps, 3), (4, 2, 1)[_number % 3], _kind is HALF, 0)
    _columns = 64 if _kind is FLOAT32 else 128
    declare_warpgroup(_kind, Tile(1, 2, _columns, 1, 6, 3), 1, False, 2)
    declare(LAYING_OUT, **warpgroup.layout_defines(_kind, False))
declare_warpgroup(HALF, Tile(1, 2, 128, 4, 4, 3), 4, True, 0)
declare(LAYING_OUT, **warpgroup.layout_defines(HALF, True))
