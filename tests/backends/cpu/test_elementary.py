"""Elementary functions of the CPU's activations, beside those of SciPy in float64, on all kinds of numbers."""

from __future__ import annotations

import re

import numba
import numpy as np
import pytest
import scipy.special

from sparsenn.backends.cpu import elementary
from sparsenn.backends.cpu.tiles import VECTOR
from sparsenn.runtime.jit import compiled, wide_vectors

EXACT = {"exp": np.exp, "expm1": np.expm1, "log1p": np.log1p, "tanh": np.tanh, "erfc": scipy.special.erfc}


@compiled
def _apply(function, numbers, found):
    for place in range(numbers.size):
        found[place] = np.float32(function(numbers[place]))


def _both(name, numbers):
    numbers = np.asarray(numbers, np.float32)
    found = np.empty_like(numbers)
    _apply(getattr(elementary, name), numbers, found)
    with np.errstate(all="ignore"):
        return found, EXACT[name](numbers.astype(np.float64))


@pytest.mark.parametrize(("name", "units"), [(name, 4 if name == "erfc" else 3) for name in EXACT])
def test_functions_are_within_some_units_in_the_last_place(name, units, rng):
    sizes = 10.0 ** rng.uniform(-12, 1.9, 100_000)
    numbers = np.concatenate([sizes, -sizes, np.linspace(-105, 88.7, 200_001)])
    if name == "log1p":
        large = 10.0 ** rng.uniform(0, 38, 10_000)
        numbers = np.concatenate([numbers[numbers >= -1], np.linspace(-0.99999, 1, 100_001), large])
    found, exact = _both(name, numbers)
    least = np.finfo(np.float32).smallest_subnormal  # the step of numbers that are not normal
    assert (np.abs(found - exact) <= units * 2.0**-23 * np.abs(exact) + least).all()


@pytest.mark.parametrize("name", EXACT)
def test_numbers_without_an_exponential(name):
    found, exact = _both(name, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40, 200.0, -200.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, exact.astype(np.float32))


@pytest.mark.skipif(VECTOR < 16, reason="the processor has no vectors of 512 bits")
def test_loops_of_marked_functions_take_the_widest_vectors():
    def exponentials(numbers):
        wide_vectors()
        for place in range(numbers.size):
            numbers[place] = elementary.exp(numbers[place])

    function = numba.njit(exponentials)
    function(np.zeros(100, np.float32))
    (code,) = function.inspect_asm().values()
    assert re.search(r"vmulps.*zmm", code)
