from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.challenge import text
from sparsenn.io.challenge.text import LONGEST_LINE, Columns, parse_lines

TRIPLES = Columns(("row", "column"), (40, 50), "value")
ALONE = Columns(("category",), (None,))

FAULTS = [
    ("0\t1\t1", "row 0 is outside 1..40; indices count from 1"),
    ("41\t1\t1", "row 41 is outside 1..40"),
    ("3000000000\t1\t1", "row 3000000000 is outside 1..40"),
    ("99999999999999999999\t1\t1", "row: "),
    ("1.5\t1\t1", "row: "),
    ("0x10\t1\t1", "a stray 'x'"),
    ("1\t1\tnan", "value nan is not finite"),
    ("1\t1\t-inf", "value -inf is not finite"),
    ("1\t1\t1e400", "value inf is not finite in float32"),
    ("1\t1\ty", "value: "),
    ("1\t1", "xpected 3 columns, got 2"),
    ("1\t1\t1\t1", "xpected 3 columns, got 4"),
    ("", "a line must hold row, column, value"),
    ("1\t1\t1\r2\t2\t1", "carriage return"),
    ("1\t1\t1\r", None),
    ("1\t1\t\x00", "value: "),
    ("1\t1\t" + "1" * 2000, "value inf is not finite|longer than 1,024 bytes"),
]


def parse(data: bytes, columns: Columns = TRIPLES, **options: bool) -> list[Array]:
    chunks = list(parse_lines(io.BytesIO(data), "file.tsv", columns, **options))
    return [np.concatenate(parts) for parts in zip(*chunks, strict=True)]


def lines(count: int, end: str = "\n") -> list[str]:
    return [f"{at % 40 + 1}\t{at % 50 + 1}\t{at / 8}{end}" for at in range(count)]


@pytest.fixture(params=[1 << 24, 64, 7, 1], ids="chunk {}".format, autouse=True)
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything must hold wherever the text is cut."""
    monkeypatch.setattr(text, "_CHUNK", request.param)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_are_parsed(end: str, mark: str) -> None:
    rows, columns, values = parse((mark + "".join(lines(100, end))).encode())
    np.testing.assert_array_equal(rows, np.arange(100) % 40)
    np.testing.assert_array_equal(columns, np.arange(100) % 50)
    np.testing.assert_array_equal(values, np.arange(100) / 8)
    assert (rows.dtype, columns.dtype, values.dtype) == (np.int64, np.int64, np.float32)


@pytest.mark.parametrize(("faulty", "message"), FAULTS)
@pytest.mark.parametrize("number", [1, 30, 60])
def test_faulty_line_is_named(faulty: str, message: str | None, number: int) -> None:
    written = lines(60)
    written[number - 1] = faulty + "\n"
    data = "".join(written).encode("latin-1")
    if message is None:
        assert parse(data)[0].size == 60
        return
    with pytest.raises(FileFormatError) as caught:
        parse(data)
    assert str(caught.value).startswith(f"file.tsv:{number}: ")
    assert re.search(re.escape(message).replace(re.escape("|"), "|"), str(caught.value))
    assert caught.value.line == number


@pytest.mark.parametrize("last", ["7", "7\t", "7\t7\t6.25", "x" * 2000])
def test_last_line_without_end_may_be_truncated(last: str) -> None:
    with pytest.raises(FileFormatError, match=r"file\.tsv:61: the (last line|line is longer)"):
        parse(("".join(lines(60)) + last).encode())


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_empty_text(data: bytes) -> None:
    with pytest.raises(FileFormatError, match=r"file\.tsv:1: "):
        parse(data)


def test_empty_text_where_that_is_legal() -> None:
    assert parse(b"", ALONE, may_be_empty=True) == []


def test_indices_alone() -> None:
    (found,) = parse(b"5\n2147483647\n1\n", ALONE)
    assert found.tolist() == [4, 2147483646, 0]
    with pytest.raises(FileFormatError, match=r"file\.tsv:2: category 2147483648 is outside 1\.\.2,147,483,647"):
        parse(b"5\n2147483648\n1\n", ALONE)


@pytest.mark.parametrize("value", ["1", "-0.5", ".5", "5.", "1e-3", "1E+2", "6.250000e-02", "1e-400", " 7 ", "1e-45"])
def test_spellings_of_numbers(value: str) -> None:
    assert parse(f"1\t1\t{value}\n".encode())[2].tolist() == [np.float32(value)]


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 50), st.floats(width=32, allow_nan=False, allow_infinity=False))
    )
)
def test_any_triples(triples: list[tuple[int, int, float]]) -> None:
    data = "".join(f"{row}\t{column}\t{value!r}\n" for row, column, value in triples).encode()
    if not triples:
        return
    found = parse(data)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == [(r - 1, c - 1, v) for r, c, v in triples]


def test_long_text_from_a_file_is_shown_cut_and_on_one_line() -> None:
    with pytest.raises(FileFormatError) as caught:
        parse(b"1\t1\t" + b"\x1b[31m" * 100 + b"\n")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
    assert LONGEST_LINE > 600
