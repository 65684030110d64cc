"""The kernels of gemm on a GPU against a float64 product, on awkward sizes; what they refuse; how products are cut."""

import numpy as np
import pytest

from sparsenn.backends.cuda.runtime.device import cupy
from sparsenn.errors import UsageError
from sparsenn.studies.gemm import plain
from sparsenn.studies.gemm.tiling import TILINGS, Cut, cut_for
from sparsenn.studies.ladder import ladder_for

ALLOWED = {"tf32": 5e-3, "float16": 1e-2}
"""In parts of the largest output; of float32, see `assert_near`."""

RUNGS = ladder_for("gemm").rungs["cuda"]

SIZES = [
    (1, 1, 1), (2, 3, 5), (64, 64, 64), (65, 17, 63), (33, 100, 16), (129, 8, 260), (300, 7, 70), (16, 1000, 24),
    (5, 4096, 3), (1000, 64, 1), (1, 64, 1000), (128, 130, 132),
]  # fmt: skip

rungs = pytest.mark.parametrize("entry", [pytest.param(entry, marks=pytest.mark.gpu, id=entry.name) for entry in RUNGS])


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


@rungs
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rung_is_near_the_exact_product(entry, sizes, rng):
    a, b = matrices(rng, sizes)
    assert_near(launched(entry.launch, a, b), a, b, entry.precision)


@rungs
@pytest.mark.parametrize("sizes", [(65, 64, 64), (30, 48, 72)], ids=str)
def test_half_matrices_stay_half(entry, sizes, rng):
    a, b = matrices(rng, sizes, np.float16)
    if entry.half_rows:
        assert_near(launched(entry.launch, a, b), a, b, "float16")
    else:
        with pytest.raises(UsageError, match="the matrices are float16"):
            launched(entry.launch, a, b)


@rungs
@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_empty_matrices_have_a_product(entry, sizes, rng):
    a, b = matrices(rng, sizes)
    assert np.array_equal(launched(entry.launch, a, b), np.zeros((sizes[0], sizes[2]), np.float32))


@rungs
def test_rung_puts_every_number_in_its_place(entry):
    """Small integers: products and sums are exact, in half precision too, and each output tells its row and column."""
    a = np.zeros((130, 66), np.float32)
    a[:, 0], a[:, 65] = np.arange(130), 1
    b = np.zeros((66, 150), np.float32)
    b[0], b[65] = 8, np.arange(150)
    assert np.array_equal(launched(entry.launch, a, b), 8 * np.arange(130)[:, None] + np.arange(150))


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
