"""The kernels of gemm on a GPU against a float64 product, on awkward sizes; what they refuse; how products are cut."""

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.backends.machine import A100, H200
from sparsenn.errors import ShapeError, UsageError
from sparsenn.studies.gemm import plain
from sparsenn.studies.gemm.tiling import TILINGS, Cut, Tiling, cut_for
from sparsenn.studies.ladder import ladder_for
from sparsenn.studies.traffic import product_geometry

ALLOWED = {"tf32": 5e-3, "float16": 1e-2}
"""In parts of the largest output; of float32, see `assert_near`."""

RUNGS = ladder_for("gemm").rungs["cuda"]
STUDY = ["naive", "coalesced", "block_tiled", "shared_tiled", "vectorized"]

SIZES = [
    (1, 1, 1), (2, 3, 5), (64, 64, 64), (65, 17, 63), (33, 100, 16), (129, 8, 260), (300, 7, 70), (16, 1000, 24),
    (5, 4096, 3), (1000, 64, 1), (1, 64, 1000), (128, 130, 132),
]  # fmt: skip

rungs = pytest.mark.parametrize("entry", RUNGS, ids=lambda entry: entry.name)


def matrices(rng, sizes, kind=np.float32):
    rows, depth, columns = sizes
    return rng.normal(size=(rows, depth)).astype(kind), rng.normal(size=(depth, columns)).astype(kind)


def launched(launch, a, b):
    found = launch(cupy().asarray(a), cupy().asarray(b))
    assert found.dtype == a.dtype
    assert found.flags.c_contiguous
    return cupy().asnumpy(found)


def assert_near(found, a, b, precision="float32"):
    """A float32 sum of n products in any order is off by at most (n + 2) * 2^-24 * (sum of absolute values)."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    expected = a @ b
    assert found.shape == expected.shape
    sums = np.abs(a) @ np.abs(b)
    if precision in ALLOWED:
        allowed = ALLOWED[precision] * np.abs(expected).max(initial=0.0)
    else:
        allowed = (a.shape[1] + 2) * 2.0**-24 * sums
    assert (np.abs(found - expected) <= allowed).all()


def test_the_rungs_come_in_the_order_of_the_study():
    names = [entry.name for entry in RUNGS]
    assert names[: len(STUDY)] == STUDY
    assert names[-1] == "library"
    assert {entry.precision for entry in RUNGS} <= {"float32", *ALLOWED}
    assert [entry.precision for entry in plain.KERNELS] == ["float32"] * len(STUDY)


def test_matrices_beyond_counting_are_refused():
    small, huge = np.broadcast_to(np.float32(0), (1, 1)), np.broadcast_to(np.float32(0), (2**31, 1))
    for entry in RUNGS:
        for machine in (H200, A100):
            assert entry.why_not(machine, small, small) is None
            assert "2,147,483,648 rows or columns" in entry.why_not(machine, huge, small)


def test_plain_rungs_say_what_they_move_and_each_moves_less():
    square = product_geometry(4096, 4096, 4096)
    moved = {entry.name: entry.traffic(square, 1, 4) for entry in RUNGS if entry.traffic is not None}
    assert list(moved) == STUDY
    assert [traffic.model for traffic in moved.values()] == [*STUDY[:4], "shared_tiled"]
    assert moved["coalesced"].loaded > moved["block_tiled"].loaded > moved["vectorized"].loaded
    assert moved["shared_tiled"].blocks == 64 * 64
    assert moved["vectorized"].blocks == 32 * 32
    assert moved["shared_tiled"].shared == 2 * moved["vectorized"].shared == 4 * 4096**3 // 2


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1),
        (64, 802_816, 576),
        (512, 3136, 4608),
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (1 << 20, 64, 64),
        (65_536, 16, 512),
        (64, 64, 65_536),
        (2_000_000_000, 3, 2),
    ],
)
def test_a_cut_covers_every_term_and_no_part_is_empty(sizes):
    rows, columns, depth = sizes
    cut = cut_for(rows, columns, depth, 132)
    tiles = -(-depth // 8)
    assert cut.tiling in TILINGS
    assert cut.deep * cut.parts >= tiles > cut.deep * (cut.parts - 1)
    assert cut.tiling.rows * cut.tiling.columns * cut.tiling.tiles(rows, columns) >= rows * columns
    assert cut.parts < 65_536


def test_few_tiles_are_cut_into_parts_and_many_are_not():
    assert cut_for(8192, 8192, 8192, 132).parts == 1
    assert cut_for(64, 64, 65_536, 132).parts > 100
    assert cut_for(512, 3136, 4608, 132).parts > 1
    assert cut_for(512, 3136, 4608, 1).parts == 1


def test_tiles_are_as_narrow_as_the_product():
    assert cut_for(65_536, 16, 512, 132).tiling.columns == 16
    assert cut_for(64, 802_816, 576, 132).tiling.rows == 64
    assert cut_for(1 << 20, 64, 64, 132).tiling.columns == 64


def test_a_tiling_is_what_its_warps_and_lanes_make():
    tiling = Tiling((2, 4))
    assert (tiling.rows, tiling.columns, tiling.threads, tiling.resident) == (64, 256, 256, 2)
    assert (Tiling((2, 1), (16, 2)).rows, Tiling((2, 1), (16, 2)).columns) == (256, 16)
    assert tiling.tiles(65, 257) == 4


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rung_is_near_the_exact_product(entry, sizes, rng):
    a, b = matrices(rng, sizes)
    assert_near(launched(entry.launch, a, b), a, b, entry.precision)


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("sizes", [(65, 64, 64), (30, 48, 72)], ids=str)
def test_half_matrices_stay_half(entry, sizes, rng):
    a, b = matrices(rng, sizes, np.float16)
    if entry.half_rows:
        assert_near(launched(entry.launch, a, b), a, b, "float16")
    else:
        with pytest.raises(UsageError, match="the matrices are float16"):
            launched(entry.launch, a, b)


@pytest.mark.gpu
@rungs
@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_empty_matrices_have_a_product(entry, sizes, rng):
    a, b = matrices(rng, sizes)
    assert np.array_equal(launched(entry.launch, a, b), np.zeros((sizes[0], sizes[2]), np.float32))


@pytest.mark.gpu
@rungs
def test_rung_puts_every_number_in_its_place(entry):
    """Small integers: products and sums are exact, in half precision too, and each output tells its row and column."""
    a = np.zeros((130, 66), np.float32)
    a[:, 0], a[:, 65] = np.arange(130), 1
    b = np.zeros((66, 150), np.float32)
    b[0], b[65] = 8, np.arange(150)
    assert np.array_equal(launched(entry.launch, a, b), 8 * np.arange(130)[:, None] + np.arange(150))


@pytest.mark.gpu
@rungs
def test_rung_leaves_its_inputs_alone_and_repeats_itself(entry, rng):
    a, b = matrices(rng, (200, 3000, 50))
    given = cupy().asarray(a), cupy().asarray(b)
    first = cupy().asnumpy(entry.launch(*given))
    for _ in range(5):
        assert np.array_equal(cupy().asnumpy(entry.launch(*given)), first)
    assert np.array_equal(cupy().asnumpy(given[0]), a)
    assert np.array_equal(cupy().asnumpy(given[1]), b)


@pytest.mark.gpu
@rungs
def test_a_bad_row_spoils_no_other(entry, rng):
    a, b = matrices(rng, (70, 40, 50))
    spoilt = a.copy()
    spoilt[33] = np.nan
    found, right = launched(entry.launch, spoilt, b), launched(entry.launch, a, b)
    others = np.arange(70) != 33
    assert np.isnan(found[33]).all()
    assert np.array_equal(found[others], right[others])


@pytest.mark.gpu
@rungs
def test_matrices_may_begin_anywhere(entry, rng):
    a, b = matrices(rng, (40, 24, 32))
    held = [cupy().empty(array.size + 1, np.float32) for array in (a, b)]
    shifted = [array[1:].reshape(given.shape) for array, given in zip(held, (a, b), strict=True)]
    for array, given in zip(shifted, (a, b), strict=True):
        array[...] = cupy().asarray(given)
    assert_near(cupy().asnumpy(entry.launch(*shifted)), a, b, entry.precision)


@pytest.mark.gpu
@rungs
def test_what_does_not_fit_is_refused(entry, rng):
    a, b = (cupy().asarray(array) for array in matrices(rng, (4, 5, 6)))
    with pytest.raises(ShapeError, match="have no product"):
        entry.launch(a, b.T)
    for wrong in (a.astype(np.float64), cupy().asfortranarray(a)):
        with pytest.raises(UsageError, match="the matrices are"):
            entry.launch(wrong, b)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.rows}x{tiling.columns}")
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (70, 100, 130), (257, 41, 300), (129, 64, 20)], ids=str)
def test_every_tiling_with_every_number_of_parts(tiling, parts, sizes, monkeypatch, rng):
    a, b = matrices(rng, sizes)
    tiles = -(-sizes[1] // 8)
    deep = -(-tiles // parts)
    monkeypatch.setattr(plain, "cut_for", lambda *_: Cut(tiling, deep, -(-tiles // deep)))
    assert_near(launched(plain.launch_vectorized, a, b), a, b)
