"""Verification: every way in which an answer can be wrong is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.report import compare_categories

TRUTH = np.array([1, 4, 8], np.int64)


@pytest.mark.parametrize("found", [[1, 4, 8], [8, 1, 4]])
def test_equal_sets_pass(found: list[int]) -> None:
    verdict = compare_categories(np.array(found), TRUTH)
    assert verdict.passed
    assert str(verdict) == "PASSED: all 3 true categories, and no others"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([1, 4], "2 of 3 true categories match; 1 (9) missing, none unexpected (samples are counted from 1)"),
        ([1, 4, 8, 9], "3 of 3 true categories match; none missing, 1 (10) unexpected (samples are counted from 1)"),
        (
            [0, 3, 7],
            "0 of 3 true categories match; 3 (2, 5, 9) missing, 3 (1, 4, 8) unexpected (samples are counted from 1)",
        ),
        ([], "0 of 3 true categories match; 3 (2, 5, 9) missing, none unexpected (samples are counted from 1)"),
    ],
    ids=["missing", "unexpected", "off by one", "empty"],
)
def test_corrupted_answers_fail(found: list[int], text: str) -> None:
    verdict = compare_categories(np.array(found, np.int64), TRUTH)
    assert not verdict.passed
    assert str(verdict) == f"FAILED: {text}"


def test_only_the_first_few_are_named() -> None:
    assert "20 (1, 2, 3, 4, 5, …) unexpected" in str(compare_categories(np.arange(20), np.arange(30, 40)))


@given(st.sets(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_agrees_with_python_sets(found: set[int], truth: set[int]) -> None:
    verdict = compare_categories(np.array(sorted(found), np.int64), np.array(sorted(truth), np.int64))
    assert verdict.passed == (found == truth)
    assert verdict.matching == len(found & truth)
    assert verdict.missing.tolist() == sorted(truth - found)
    assert verdict.unexpected.tolist() == sorted(found - truth)
