"""Rows with NaN or infinite numbers: refused by default, wherever they are and however they are run."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from emulation import aligned, emulated

import sparsenn
from sparsenn import Network, Session
from sparsenn.backends.cuda import images
from sparsenn.backends.host_arrays import NUMBERS, all_finite
from sparsenn.errors import InputError, MatrixError
from sparsenn.layers import Conv2d, Flatten, Identity, Linear

DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
NOT_FINITE = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])

NETWORKS = {
    "dense": Network((Linear(np.ones((4, 3)), activation=Identity()),)),
    "sparse": Network.from_scipy([sp.eye_array(4, format="csr", dtype=np.float32)]),
    "images": Network((Conv2d(np.ones((1, 1, 1, 1))), Flatten()), image=(1, 2, 2)),
}


def rows_with(value: float, kind: type = np.float32) -> np.ndarray:
    rows = np.ones((7, 4), kind)
    rows[4, 2] = value
    return rows


@DEVICES
@NOT_FINITE
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_number_that_is_not_finite_is_refused(name: str, device: str, value: float, kind: type) -> None:
    rows = rows_with(value, kind)
    with Session(NETWORKS[name], device=device) as session:
        session(np.ones_like(rows))  # what such rows need is remembered
        for run in (session, session.run, lambda rows: sparsenn.infer(NETWORKS[name], rows, device=device)):
            with pytest.raises(InputError, match=rf"input 5, column 3: .*{value}"):
                run(rows)
        assert np.isfinite(session(np.ones_like(rows))).all()


@DEVICES
@pytest.mark.parametrize("name", NETWORKS)
def test_the_check_can_be_switched_off(name: str, device: str) -> None:
    with Session(NETWORKS[name], device=device, check_finite=False) as session:
        for run in (session, session, lambda rows: session.run(rows).dense):
            outputs = run(rows_with(np.nan))
            assert np.isfinite(np.delete(outputs, 4, axis=0)).all()


def test_sparse_rows_are_checked_in_any_case() -> None:
    with pytest.raises(MatrixError, match="not finite"):
        Session(NETWORKS["sparse"], device="cpu", check_finite=False)(sp.csr_array(rows_with(np.nan)))


@NOT_FINITE
@pytest.mark.parametrize("size", [0, 1, NUMBERS, 2 * NUMBERS + 1])
@pytest.mark.parametrize("others", [np.float32(1.0), np.finfo(np.float32).max])
def test_each_number_is_looked_at(others: np.float32, size: int, value: float) -> None:
    numbers = np.full(size, others)
    assert all_finite(numbers)
    for place in {0, size // 2, size - 1} if size else ():
        spoilt = numbers.copy()
        spoilt[place] = value
        assert not all_finite(spoilt)


@NOT_FINITE
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("skipped", [0, 1], ids=["aligned", "not aligned"])
def test_a_kernel_finds_numbers_that_are_not_finite(kind: type, skipped: int, value: float) -> None:
    size = np.dtype(kind).itemsize
    defines = {"BITS": 8 * size, "PIECE": images.SCANNED_BYTES, "THREADS": images.THREADS}
    kernel, found = emulated("images/not_finite.cu", defines), np.zeros(1, np.uint32)
    numbers = aligned(np.full(2 * images.SCANNED_BYTES // size + 301, -np.finfo(kind).max))[skipped:]
    bits = numbers.view(f"u{size}")
    kernel.launch(3, images.THREADS, np.int64(numbers.size), bits, found, seed=1)
    assert found == 0
    for place in (0, images.SCANNED_BYTES // size - 1, numbers.size - 2, numbers.size - 1):
        before, numbers[place], found[:] = numbers[place], value, 0
        kernel.launch(3, images.THREADS, np.int64(numbers.size), bits, found, seed=1)
        assert found == 1
        numbers[place] = before


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_rows_on_a_gpu_are_told_of_later(name: str, kind: type, cupy: Any) -> None:
    good, bad = cupy.ones((7, 4), kind), cupy.asarray(rows_with(np.nan, kind))
    with Session(NETWORKS[name], device="cuda") as session:
        for _ in range(3):
            session(good)
            session.check()
            session(bad)
            with pytest.raises(InputError, match="the rows of an earlier call"):
                session.check()
            session.check()
        session(bad)
        cupy.cuda.Device().synchronize()
        with pytest.raises(InputError, match="the rows of an earlier call"):
            session(good)
        session(good)
        with pytest.raises(InputError, match="input 5, column 3: the value nan"):
            session.run(bad)
    with Session(NETWORKS[name], device="cuda", check_finite=False) as session:
        session(bad)
        session.check()


@pytest.mark.gpu
@NOT_FINITE
@pytest.mark.parametrize("inputs", [62, 64])
@pytest.mark.parametrize(
    ("kernel", "precision", "kind"),
    [
        ("two_of_four_float32", "float32", np.float32),
        ("two_of_four_float16", "float16", np.float16),
        ("fused_fma", "float32", np.float32),
        ("tensor_float32", "float32", np.float32),
        ("tensor_tf32", "tf32", np.float32),
        ("tensor_half", "float16", np.float16),
        ("tensor_half", "float16", np.float32),
    ],
)
def test_the_kernel_that_reads_rows_scans_them(
    kernel: str, precision: str, kind: type, inputs: int, value: float, cupy: Any
) -> None:
    weights = sp.random_array((inputs, 128), density=0.2, format="csc", dtype=np.float32, rng=0)
    is_sparse = kernel.startswith("two_of_four")
    network = Network.from_scipy([weights]) if is_sparse else Network((Linear(weights.toarray()),))
    rows = cupy.ones((150, inputs), kind)
    with Session(network, device="cuda", kernel=kernel, precision=precision) as session:
        for row, column in ((0, 0), (149, inputs - 1), (77, 13)):
            for _ in range(4):
                session(rows)
                session.check()
            spoilt = rows.copy()
            spoilt[row, column] = value
            for _ in range(4):
                session(spoilt)
                with pytest.raises(InputError, match="the rows of an earlier call"):
                    session.check()
