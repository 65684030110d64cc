"""The rungs of gemm that multiply on tensor cores.

`tensor_half` takes matrices of float16 too, and then returns float16.

What a number may be off by: `tensor_float32` keeps float32's precision, infinities and NaN included, but denormal
numbers count as zero. `tensor_tf32` rounds what it multiplies to 11 bits. So does `tensor_half`, to which numbers
beyond 65,504 are infinite. Sums are float32. A launch gives the same bits every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sparsenn.backends.cuda.runtime.device import cupy, machine_of
from sparsenn.backends.cuda.runtime.loader import specialised
from sparsenn.backends.cuda.runtime.recorder import launch, section
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, LINE, TF32, Kind, Tile, counters, partial_sums, work
from sparsenn.backends.machine import Machine
from sparsenn.backends.sizes import parts_of
from sparsenn.formats import Array
from sparsenn.studies.gemm.kernel import product_kernel

SOURCES = {
    FLOAT32: "studies/gemm/kernels/06_tensor_float32.cu",
    TF32: "studies/gemm/kernels/07_tensor_tf32.cu",
    HALF: "studies/gemm/kernels/08_tensor_half.cu",
}

_PROGRAMS = {kind: specialised(source, dynamic_shared=True, carveout=100) for kind, source in SOURCES.items()}

_SMALL = (Tile(64, 64, 2, 2, stages=4, blocks=3), Tile(128, 32, 4, 1, stages=4), Tile(32, 128, 1, 4, stages=4))

_MIDDLE = Tile(128, 64, 2, 2, stages=4)
_WIDE = (Tile(128, 256, 2, 4, stages=4, blocks=1), Tile(128, 128, 2, 2), _MIDDLE, *_SMALL)

TILES: dict[Kind, tuple[Tile, ...]] = {
    FLOAT32: (Tile(128, 128, 2, 4, stages=4, blocks=1), _MIDDLE, *_SMALL),
    TF32: _WIDE,
    HALF: _WIDE,
}
"""Tiles to choose from. Large ones read less for each product; small ones give all multiprocessors something to do."""

MOST_PARTS = 64  # parts of the depth


@dataclass(frozen=True)
class Plan:
    """How a product is cut."""

    tile: Tile  # of a block
    tiles_down: int  # of the product, as the next
    tiles_across: int
    parts: int  # of the depth, each a block's; sums of several are added up by the last of them
    part_slabs: int  # slabs of a part; the last one may have fewer

    @property
    def tiles(self) -> int:
        """Tiles of the product."""
        return self.tiles_down * self.tiles_across

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.tile.stages * (self.tile.rows + self.tile.columns) * LINE


@cache
def plan(kind: Kind, rows: int, columns: int, depth: int, machine: Machine) -> Plan:
    """Return the plan that should take the least time; all sizes are at least 1."""
    return min(_plans(kind, rows, columns, depth, machine), key=lambda found: found[0])[1]


def _plans(kind: Kind, rows: int, columns: int, depth: int, machine: Machine) -> Iterator[tuple[float, Plan]]:
    slabs = parts_of(depth, kind.terms)
    for tile in TILES[kind]:
        down, across = parts_of(rows, tile.rows), parts_of(columns, tile.columns)
        for wanted in range(1, min(slabs, MOST_PARTS) + 1):
            part_slabs = parts_of(slabs, wanted)
            made = Plan(tile, down, across, wanted, part_slabs)
            if parts_of(slabs, part_slabs) != wanted:
                continue
            if wanted > 1 and made.tiles * (wanted - 1) > 4 * machine.multiprocessors * tile.blocks:
                break
            resident = tile.resident(made.shared_bytes, machine)
            if resident:
                slab = made.shared_bytes / tile.stages
                clocks = work(
                    kind,
                    tile,
                    copied=slab,
                    read=slab,
                    slabs=part_slabs,
                    tiles=made.tiles,
                    parts=wanted,
                    resident=resident,
                    machine=machine,
                )
                yield clocks, made


# ---- Launching ---------------------------------------------------------------------------------------------------


def _alignment(matrix: Array) -> int:
    """Return the bytes, 16 or fewer, at whose multiples all rows of a matrix begin."""
    pointer: Any = matrix.data
    return int(np.gcd.reduce([16, pointer.ptr % 16, matrix.strides[0] % 16]))


def _readable(matrix: Array, rounds: bool) -> Array:
    """Return a matrix as kernels can copy it: its rows begin at multiples of 4 bytes.

    `rounds`: to half precision; rows then begin at multiples of 16 bytes.
    """
    if not rounds and _alignment(matrix) % 4 == 0:
        return matrix
    rows, columns = matrix.shape
    padded: Array = cupy().empty((rows, parts_of(columns, 8) * 8), np.float16)
    with section("gemm"):
        padded[:, :columns] = matrix
    return padded[:, :columns]


def defines(kind: Kind, tile: Tile, aligned: bool, half_rows: bool) -> dict[str, int | str]:
    """Return what a kernel is compiled with.

    `aligned`: all rows begin at multiples of 16 bytes. `half_rows`: the product is of half precision, too.
    """
    halves = {"INPUT": "half_bits", "OUTPUT": "half_bits" if half_rows else "float"}
    floats = {"INPUT": "float", "OUTPUT": "float"}
    return tile.defines(kind) | (halves if kind is HALF else floats) | {"ALIGNED": int(aligned)}


def _run(kind: Kind, a: Array, b: Array) -> Array:
    cp = cupy()
    (rows, depth), columns = a.shape, b.shape[1]
    product: Array = cp.empty((rows, columns), a.dtype)
    if not depth:
        product[:] = 0
    if not (rows and columns and depth):
        return product
    rounds = kind is HALF and a.dtype == np.float32
    a, b = _readable(a, rounds), _readable(b, rounds)
    aligned = min(_alignment(a), _alignment(b)) == 16
    device = cp.cuda.runtime.getDevice()
    kernel, made, numbers = _prepared(kind, rows, columns, depth, aligned, product.dtype == np.float16, device)
    pitches = (np.int32(matrix.strides[0] // matrix.itemsize) for matrix in (a, b))
    joined = partial_sums(made.tile, made.tiles, made.parts), counters(made.tiles if made.parts > 1 else 0)
    arguments = a, b, product, *joined, *numbers[:3], *pitches, *numbers[3:]
    blocks = made.tiles * made.parts
    launch("gemm", kernel, (blocks,), (made.tile.threads,), *arguments, shared_bytes=made.shared_bytes)
    return product


@cache
def _prepared(
    kind: Kind, rows: int, columns: int, depth: int, aligned: bool, half_rows: bool, device: int
) -> tuple[Any, Plan, tuple[np.int32, ...]]:
    """Return the kernel, the plan, and the kernel's numbers but for the pitches, which come after the first three."""
    made = plan(kind, rows, columns, depth, machine_of(device))
    kernel = _PROGRAMS[kind].kernel("gemm", **defines(kind, made.tile, aligned, half_rows))
    numbers = rows, columns, depth, made.tiles_down, made.tiles_across, made.parts, made.part_slabs
    return kernel, made, tuple(map(np.int32, numbers))


KERNELS = (
    product_kernel(
        "tensor_float32",
        partial(_run, FLOAT32),
        "tensor cores, each number split into two of TF32",
        tf32_products=FLOAT32.products,
    ),
    product_kernel("tensor_tf32", partial(_run, TF32), "tensor cores in TF32", precision="tf32"),
    product_kernel(
        "tensor_half",
        partial(_run, HALF),
        "tensor cores in half precision, sums in float32",
        precision="float16",
        half_rows=True,
    ),
)
"""In the ladder's order; all add in float32."""
