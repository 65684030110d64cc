"""Groups that are multiples of each other are found, those that differ in one bit are not."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sparse_layers import csc_of_all as stored
from strategies import csc_matrices, seeds

from sparsenn.formats.equality import equal_patterns
from sparsenn.formats.proportion import proportional_groups

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def direction(column):
    """A column of exact numbers, divided by the first that is not zero."""
    exact = [Fraction(float(value)) for value in column]
    lead = next((value for value in exact if value), Fraction(1))
    return tuple(value / lead for value in exact)


def check(matrix):
    columns = [slice(*bounds) for bounds in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]
    values = matrix.expanded_values()
    keys = [(tuple(matrix.indices[span]), direction(values[span])) for span in columns]
    names = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    representatives, group, leading = proportional_groups(matrix)
    assert group.tolist() == [names[key] for key in keys]
    assert representatives.tolist() == [keys.index(key) for key in names]
    for column, span in enumerate(columns):
        like = columns[representatives[group[column]]]
        scale = Fraction(leading[column]) / Fraction(leading[representatives[group[column]]])
        expected = [Fraction(float(value)) * scale for value in values[like]]
        assert [Fraction(float(value)) for value in values[span]] == expected


@given(csc_matrices())
def test_any_matrix(matrix):
    check(matrix)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=12), seeds)
def test_any_numbers_and_their_exact_multiples(columns, seed):
    """Subnormal and huge ones, zeros of either sign; some columns times a power of two, where float32 holds that."""
    rng = np.random.default_rng(seed)
    planted = []
    for column in columns:
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.float32(column) * np.float32(2.0 ** rng.integers(-40, 40)) * rng.choice([-1, 1])
        planted.append(scaled if np.isfinite(scaled).all() else column)
    check(stored(np.array([*columns, *planted]).T))


@given(st.integers(1, 2**23 - 1), st.integers(1, 2**23 - 1), st.integers(-126, 100))
def test_one_bit_off_is_no_multiple(left, right, exponent):
    """Also where quotients are as close to each other as those of float32 numbers can be."""
    a, b = np.float32(left + 2**23), np.float32(right + 2**23)
    near = np.nextafter(b, np.float32(np.inf), dtype=np.float32)
    shift = np.float32(2.0**exponent)
    check(stored([[a, a * shift, a], [b, b * shift, near]]))
    assert proportional_groups(stored([[a, a * shift, a], [b, b * shift, near]]))[1].tolist() == [0, 0, 1]
    check(stored([[a, b], [near, a]]))


def test_subnormal_multiples():
    tiny = 2.0**-149
    assert proportional_groups(stored([[tiny, 1, 3 * tiny], [3 * tiny, 3, 9 * tiny]]))[1].tolist() == [0, 0, 0]
    assert proportional_groups(stored([[tiny, 1], [3 * tiny, np.nextafter(np.float32(3), 0)]]))[1].tolist() == [0, 1]


@given(csc_matrices())
def test_patterns_are_those_of_the_matrix_of_ones(matrix):
    spans = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    keys = [tuple(matrix.indices[slice(*bounds)]) for bounds in spans]
    names = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    representatives, group = equal_patterns(matrix)
    assert group.tolist() == [names[key] for key in keys]
    assert representatives.tolist() == [keys.index(key) for key in names]
