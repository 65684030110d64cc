"""The tensor-core products: their kernels emulated on the host; their plans; and the kernels, on a GPU."""

from functools import partial

import numpy as np
import pytest
from captures import assert_captured
from emulation import emulated
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.cuda.tensor_tiles import FLOAT32, HALF, LINE, TF32, Tile
from sparsenn.backends.machine import A100, H200
from sparsenn.backends.sizes import parts_of
from sparsenn.studies.gemm import tensor
from sparsenn.studies.gemm.tensor import KERNELS, SOURCES, TILES, Plan, defines, plan

KINDS = (FLOAT32, TF32, HALF)
UNIT = {"float32": 2.0**-23, "tf32": 2.0**-11, "float16": 2.0**-11}
"""What a number that is multiplied may be off by, relatively; to each precision's nearest it is half of that."""

SMALL = Tile(64, 64, 2, 2)
SHAPES = (
    *((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (1, 1000, 1), (2, 3, 5), (16, 8, 8), (17, 33, 65)),
    *((128, 128, 128), (129, 257, 66), (300, 64, 1000), (1000, 20, 64), (20, 1000, 64), (64, 64, 20_000)),
    *((5, 7, 4099), (513, 511, 509), (1024, 1024, 1024), (100_000, 10, 30), (33, 4096, 256)),
)
"""Rows, columns, depth."""

rungs = pytest.mark.parametrize("rung", [pytest.param(rung, marks=pytest.mark.gpu, id=rung.name) for rung in KERNELS])
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def matrices(rng, rows, columns, depth, dtype=np.float32, integers=False):
    shapes = (rows, depth), (depth, columns)
    if integers:
        return tuple(rng.integers(-3, 4, shape).astype(dtype) for shape in shapes)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def bound(a, b, unit, output=np.float32):
    """How far a product may be off: each term by two roundings, each sum by one for each term, in float32."""
    sizes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    stored = 2.0**-11 if output == np.float16 else 2.0**-24
    return (2 * unit + (a.shape[1] + 2) * 2.0**-24) * sizes + stored * np.abs(exact(a, b)) + 2.0**-24


# ---- The kernels, emulated -----------------------------------------------------------------------------------------


def cut(tile, kind, a, b, parts):
    slabs = parts_of(a.shape[1], kind.terms)
    part_slabs = parts_of(slabs, parts)
    down, across = parts_of(a.shape[0], tile.rows), parts_of(b.shape[1], tile.columns)
    return Plan(tile, down, across, parts_of(slabs, part_slabs), part_slabs)


def factor(kind):
    return np.float16 if kind is HALF else np.float32


@kinds
@pytest.mark.parametrize("shape", [(64, 64, 128), (1, 8, 8), (70, 72, 200), (130, 136, 40)], ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_lanes_hold_what_the_instructions_multiply(kind, shape, seed, rng):
    a, b = matrices(rng, *shape, factor(kind), integers=True)
    kernel = emulated(SOURCES[kind], defines(kind, SMALL, True, False))
    made = cut(SMALL, kind, a, b, 1)
    product = np.full(shape[:2], np.nan, np.float32)  # numbers past its end are not read
    sizes = (*shape, *(matrix.strides[0] // matrix.itemsize for matrix in (a, b)))
    numbers = map(np.int32, (*sizes, made.tiles_down, made.tiles_across, 1, made.part_slabs))
    unused = np.full(1, np.nan, np.float32), np.zeros(made.tiles, np.uint32)
    kernel.launch(made.tiles, SMALL.threads, a, b, product, *unused, *numbers, seed=seed)
    assert np.array_equal(product, exact(a, b))
    assert kernel.conflicts == 0


# ---- Plans ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 17), st.integers(1, 1 << 17), st.integers(1, 1 << 17), st.booleans())
def test_a_plan_covers_the_product(rows, columns, depth, ampere):
    limits = A100 if ampere else H200
    for kind in KINDS:
        made = plan(kind, rows, columns, depth, limits)
        assert made.tile in TILES[kind]
        assert made.tiles_down * made.tile.rows >= rows > (made.tiles_down - 1) * made.tile.rows
        assert made.tiles_across * made.tile.columns >= columns > (made.tiles_across - 1) * made.tile.columns
        slabs = parts_of(depth, kind.terms)
        assert made.parts * made.part_slabs >= slabs > (made.parts - 1) * made.part_slabs
        assert made.shared_bytes <= limits.block_bytes
        assert made.shared_bytes == made.tile.stages * (made.tile.rows + made.tile.columns) * LINE


# ---- On a GPU ------------------------------------------------------------------------------------------------------


def launched(rung, a, b):
    cp = cupy()
    product = rung.launch(cp.asarray(a), cp.asarray(b))
    assert product.dtype == a.dtype
    assert product.flags.c_contiguous
    assert product.shape == (a.shape[0], b.shape[1])
    return cp.asnumpy(product)


@rungs
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape(rung, shape, rng):
    a, b = matrices(rng, *shape)
    assert (np.abs(launched(rung, a, b) - exact(a, b)) <= bound(a, b, UNIT[rung.precision])).all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_half_rows(shape, rng):
    a, b = matrices(rng, *shape, np.float16)
    assert (np.abs(launched(KERNELS[-1], a, b) - exact(a, b)) <= bound(a, b, 0.0, np.float16)).all()


@pytest.mark.gpu
@kinds
def test_every_tile(kind, rng, monkeypatch):
    cp, rung = cupy(), KERNELS[KINDS.index(kind)]
    a, b = matrices(rng, 300, 280, 520, factor(kind), integers=True)
    for tile in TILES[kind]:
        for parts in (1, 3):
            made = cut(tile, kind, a, b, parts)
            monkeypatch.setattr(tensor, "plan", lambda *_, made=made: made)
            assert np.array_equal(cp.asnumpy(rung.launch(cp.asarray(a), cp.asarray(b))), exact(a, b).astype(a.dtype))


@rungs
def test_unaligned_matrices(rung, rng):
    cp = cupy()
    a, b = matrices(rng, 100, 72, 64)
    flat_a, flat_b = cp.zeros(a.size + 1, np.float32), cp.zeros(b.size + 3, np.float32)
    flat_a[1:], flat_b[3:] = cp.asarray(a.ravel()), cp.asarray(b.ravel())
    product = cp.asnumpy(rung.launch(flat_a[1:].reshape(a.shape), flat_b[3:].reshape(b.shape)))
    assert (np.abs(product - exact(a, b)) <= bound(a, b, UNIT[rung.precision])).all()


@rungs
@pytest.mark.parametrize("shape", [(300, 200, 100), (64, 64, 20_000)], ids=str)
def test_a_launch_can_be_captured(rung, shape, rng):
    cp = cupy()
    a, b = map(cp.asarray, matrices(rng, *shape))
    assert_captured(partial(rung.launch, a, b), launched_there=True)
