from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsenn.errors import FileFormatError, InputError
from sparsenn.io import read_csv

Corrupted = Callable[[bytes, str], Path]
TABLE = np.array([[1, -2.5, 0.001], [4, 5, 6e7]], np.float32)


@pytest.mark.parametrize(
    "text",
    [
        b"1,-2.5,1e-3\n4,5,6e7\n",
        b"1,-2.5,1e-3\n4,5,6e7",
        b"a,b,c\n1,-2.5,1e-3\n4,5,6e7\n\n",
        b'"a","b","c"\r\n1,-2.5,1e-3\r\n4,5,6e7\r\n',
        b"\xef\xbb\xbfa,b,c\n1,-2.5,1e-3\n4,5,6e7\n",
    ],
)
def test_forms_of_text(corrupted: Corrupted, text: bytes) -> None:
    found = read_csv(corrupted(text, "a.csv"))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, TABLE)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (b"", 1, "no rows"),
        (b"a,b\n", 2, "no rows"),
        (b"1,2\n3\n", 2, "1 columns instead of 2"),
        (b"1,2\n3,4\n5,6,7\n", 3, "3 columns instead of 2"),
        (b"a,b\n1,2\n3,x\n", 3, "'x' is not a finite"),
        (b"1,2\n3,\n", 2, "'' is not a finite"),
        (b"1,2\n\n3,4\n", 2, "1 columns instead of 2"),
        (b"1,2\n3,nan\n", 2, "'nan' is not a finite"),
        (b"1,2\n3,1e39\n", 2, "'1e39' is not a finite"),
        (b'1,2\n3,"4"\n', 2, "is not a finite"),
        (b"1,x\n3,4\n", 1, "'x' is not a finite"),
        (b"1,2\n3,1_0\n", 2, "'1_0' is not a finite"),
    ],
)
def test_faults_are_told_with_their_line(corrupted: Corrupted, text: bytes, line: int, told: str) -> None:
    path = corrupted(text, "a.csv")
    with pytest.raises(FileFormatError, match=told) as caught:
        read_csv(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_csv(tmp_path / "a.csv")
