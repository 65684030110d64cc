from __future__ import annotations

import pytest

from sparsenn.datasets import NAMES, parse_name
from sparsenn.errors import UsageError


def test_there_are_twelve_names() -> None:
    assert len(set(NAMES)) == 12
    assert parse_name("radixnet-1024x120") == (1024, 120)
    assert parse_name("radixnet-65536x1920") == (65536, 1920)
    assert all(name == "radixnet-{}x{}".format(*parse_name(name)) for name in NAMES)


@pytest.mark.parametrize("name", ["", "radixnet-1024x121", "radixnet-01024x120", "RadixNet-1024x120"])
def test_other_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown dataset.*known: radixnet-1024x120, .*radixnet-65536x480"):
        parse_name(name)
