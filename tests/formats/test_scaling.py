"""Scaling of columns: rounded once, sparse where zeros stay zeros, by channel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import CSR, Scaling, from_dense

ONE, NONE = np.ones(1), np.zeros(1)


def nearest(value: Fraction) -> np.float32:
    """The float32 number nearest to a fraction, an even one of two."""
    guess = np.float32(float(value))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda number: (abs(Fraction(float(number)) - value), int(number.view(np.uint32)) & 1))


@given(pixel=st.integers(0, 65535), divisor=st.sampled_from([255, 256, 65535, 3, 127.5]))
def test_a_fraction_gives_the_nearest_number(pixel: int, divisor: float) -> None:
    found = Scaling(np.array([1 / divisor]), NONE, ONE).apply(np.array([[pixel]], np.float32))
    assert isinstance(found, np.ndarray)
    assert found[0, 0] == nearest(Fraction(pixel) / Fraction(divisor)) == np.float32(pixel) / np.float32(divisor)


def test_standard_columns() -> None:
    rng = np.random.default_rng(2)
    inputs = (rng.normal(size=(500, 3)) * [1, 1000, 1e-3] + [0, 1e5, 7]).astype(np.float32)
    inputs[:, 1] = inputs[:, 1].round()
    constant = np.c_[inputs, np.full(500, 0.1, np.float32)]
    found = Scaling.standard(constant).apply(constant)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.mean(axis=0, dtype=float), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=0, dtype=float), [1, 1, 1, 0], rtol=1e-4)
    assert not found[:, 3].any()


def test_sparse_rows_stay_sparse_where_zeros_stay_zeros() -> None:
    dense = np.array([[0, 2, 0], [4, 0, 8]], np.float32)
    factor = np.array([1.0, 2.0, 0.5])
    scaled = Scaling(factor, NONE, np.array([4.0])).apply(from_dense(dense))
    assert isinstance(scaled, CSR)
    np.testing.assert_array_equal(scaled.to_scipy().toarray(), dense * factor / 4)
    moved = Scaling(ONE, ONE, ONE).apply(from_dense(dense))
    np.testing.assert_array_equal(moved, dense - 1)


def test_one_number_a_channel() -> None:
    scaling = Scaling(ONE, np.array([1.0, 2.0]), ONE)
    found = scaling.apply(np.zeros((1, 6), np.float32), (2, 1, 3))
    np.testing.assert_array_equal(found, [[-1, -1, -1, -2, -2, -2]])
    with pytest.raises(ShapeError, match="2 numbers as mean"):
        scaling.check_width(6)
    with pytest.raises(ShapeError, match="or 3, one per channel"):
        scaling.check_width(6, (3, 1, 2))


def test_what_cannot_be_a_scaling() -> None:
    for parts in ((NONE, NONE, ONE), (ONE, NONE, -ONE), (ONE, np.array([np.nan]), ONE), (np.ones((1, 1)), NONE, ONE)):
        with pytest.raises(UsageError):
            Scaling(*parts)
    with pytest.raises(InputError, match="not finite in float32"):
        Scaling(np.array([1e30]), NONE, ONE).apply(np.array([[1e30]], np.float32))


def test_as_text() -> None:
    assert str(Scaling(np.array([1 / 255]), np.array([0.1307]), np.array([0.3081]))) == "× 1/255, - 0.1307, ÷ 0.3081"
    assert str(Scaling(ONE, np.array([1.0, 2.0]), ONE)) == "- 2 numbers, 1 to 2"
    assert str(Scaling(ONE, NONE, ONE)) == "none"
