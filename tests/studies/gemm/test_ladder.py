"""The ladder of gemm: its random problem, which rows it compares, and what it takes for right."""

import numpy as np
import pytest

from sparsenn import backends
from sparsenn.studies.gemm import ladder as gemm_ladder
from sparsenn.studies.gemm.host import launch_blas
from sparsenn.studies.gemm.ladder import ProductStage, random_problem


def exact(a, b):
    return np.einsum("ik,kj->ij", a.astype(np.float64), b.astype(np.float64))


def stage_and_answer(sizes=(40, 30, 20)):
    a, b = random_problem(0, sizes, 1)
    return ProductStage(backends.backend_for("cpu"), a, b), exact(a, b)


def test_a_random_problem_is_what_its_numbers_say():
    a, b = random_problem(0, (300, 200, 100), 5)
    assert (a.shape, b.shape) == ((300, 200), (200, 100))
    assert a.dtype == b.dtype == np.float32
    assert a.std() == pytest.approx(1, rel=0.05)
    assert b.std() == pytest.approx(1, rel=0.05)
    assert np.array_equal(random_problem(0, (300, 200, 100), 5)[1], b)
    assert not np.array_equal(random_problem(0, (300, 200, 100), 6)[1], b)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 1, 3), (17, 200, 9), (0, 3, 4), (3, 0, 4)])
def test_host_kernels_are_near_the_exact_product(sizes, rng):
    a, b = rng.normal(size=sizes[:2]).astype(np.float32), rng.normal(size=sizes[1:]).astype(np.float32)
    for entry in (*backends.kernels("gemm", "cpu"), *backends.kernels("gemm", "reference")):
        found = entry.launch(a, b)
        assert found.shape == (sizes[0], sizes[2])
        assert found.dtype == (np.float64 if entry.device == "reference" else np.float32)
        assert np.abs(found - exact(a, b)).max(initial=0.0) <= 2.0**-24 * (sizes[1] + 2) * 10 * sizes[1]


@pytest.mark.parametrize(
    ("change", "right_in"),
    [
        (0.0, {"float32", "tf32", "float16"}),
        (5e-5, {"tf32", "float16"}),
        (7e-3, {"float16"}),
        (2e-2, set()),
        (np.nan, set()),
        (-np.inf, set()),
    ],
)
@pytest.mark.parametrize("row", [0, 17, 39])
def test_one_output_off_is_found_and_measured(change, right_in, row):
    stage, answer = stage_and_answer()
    answer[row, 19] += change * np.abs(answer).max()
    settled = stage.settle(answer)
    assert {precision for precision in ("float32", "tf32", "float16") if settled.correct_in(precision)} == right_in
    assert settled.error == pytest.approx(abs(change) if np.isfinite(change) else np.inf, rel=1e-6, abs=1e-12)
    assert settled.carried is None


def test_of_many_rows_some_are_compared(monkeypatch):
    monkeypatch.setattr(gemm_ladder, "ALL_ROWS", 10)
    monkeypatch.setattr(gemm_ladder, "LEAST_ROWS", 5)
    monkeypatch.setattr(gemm_ladder, "MULTIPLY_ADDS", 1)
    monkeypatch.setattr(gemm_ladder, "PIECE", 100)
    stage, answer = stage_and_answer()
    assert stage.settle(answer).error < 1e-12
    found = []
    for row in range(40):
        spoilt = answer.copy()
        spoilt[row] += 1
        found.append(not stage.settle(spoilt).correct)
    assert sum(found) == 5
    assert found[0]
    assert found[-1]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1000, 1), (200, 30, 10), (64, 10_000, 16), (300, 300, 300)])
def test_float32_products_are_right_and_tf32s_are_not(sizes):
    a, b = random_problem(0, sizes, 2)
    stage = ProductStage(backends.backend_for("cpu"), a, b)
    settled = stage.settle(launch_blas(a, b))
    assert settled.correct
    rounded = [np.frombuffer((array.view(np.uint32) & 0xFFFFE000).tobytes(), np.float32) for array in (a, b)]
    in_tf32 = stage.settle(exact(rounded[0].reshape(a.shape), rounded[1].reshape(b.shape)))
    assert not in_tf32.correct
    assert in_tf32.correct_in("tf32") or min(sizes) == 1
