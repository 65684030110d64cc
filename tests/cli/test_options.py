"""Whole numbers that are separated by commas, as several options take them."""

from __future__ import annotations

import pytest

from sparsenn.cli.options import sizes_from, whole_numbers, widths_from
from sparsenn.errors import UsageError


def test_numbers_are_read_with_blanks_around_them() -> None:
    assert whole_numbers("7", "no") == (7,)
    assert whole_numbers(" 1, 02 ,300", "no") == (1, 2, 300)
    assert whole_numbers(f"0,{10**18 - 1}", "no", least=0) == (0, 10**18 - 1)
    assert whole_numbers("3,4", "no", fits=lambda numbers: sum(numbers) == 7) == (3, 4)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", ",1", "1,,2", "x", "-1", "+1", "1.0", "1 2", "1_0", "0x1", "²", "٤", "0", "9", f"{10**18}"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^take numbers from 1 to 8$"):
        whole_numbers(text, "take numbers from 1 to 8", most=8)


def test_numbers_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^take 7$"):
        whole_numbers("3,5", "take 7", fits=lambda numbers: sum(numbers) == 7)


def test_widths_and_sizes() -> None:
    assert widths_from("72, 64,4") == (72, 64, 4)
    assert sizes_from("k=6, n=7", "m,k,n", (1, 2, 3)) == (1, 6, 7)
    assert sizes_from("H=9,W=9", "C,H,W,M,K[,padding]", (1, 2, 3, 4, 5)) == (1, 9, 9, 4, 5, 0)
