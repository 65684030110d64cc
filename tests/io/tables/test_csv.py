from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenn.errors import FileFormatError, InputError
from sparsenn.io import read_csv
from sparsenn.io.tables import csv
from sparsenn.io.tables.csv import read_table

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
def test_faults_are_told_with_their_line(
    corrupted: Corrupted, refused_at: Any, text: bytes, line: int, told: str
) -> None:
    refused_at(read_csv, corrupted(text, "a.csv"), line, told)


@pytest.mark.parametrize("line", [1, 40_000, 99_999, 100_000])
@pytest.mark.parametrize("fault", ["x,1", "1", '1,"2"', "1,nan", ""])
def test_a_fault_is_found_by_parsing_at_most_as_much_again(
    corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch, line: int, fault: str
) -> None:
    lines = [b"0.125,1"] * 100_000
    lines[line - 1] = fault.encode()
    text = b"0,0\n" + b"\n".join(lines) + b"\n0,0\n"
    parsed: list[int] = []
    fields: list[bytes] = []
    parse, is_number = csv._parse, csv._is_number
    monkeypatch.setattr(csv, "_parse", lambda body, *form: parsed.append(len(body)) or parse(body, *form))
    monkeypatch.setattr(csv, "_is_number", lambda field: fields.append(field) or is_number(field))
    with pytest.raises(FileFormatError) as caught:
        read_csv(corrupted(text, "a.csv"))
    assert caught.value.line == line + 1
    assert sum(parsed) <= 2 * len(text)
    assert len(fields) <= 200


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_make_one_table(corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(csv, "_CHUNK", chunk)
    table = np.arange(60, dtype=np.float32).reshape(20, 3)
    for end in (b"\n", b"\r\n"):
        lines = [b",".join(b"%d" % value for value in row) for row in table]
        np.testing.assert_array_equal(read_csv(corrupted(end.join([b"a,b,c", *lines, b""]), "a.csv")), table)
        for number in (0, 10, 19):
            wrong = [*lines[:number], b"1,2", *lines[number:]]
            with pytest.raises(FileFormatError, match=rf"csv:{number + 2}: 2 columns instead of 3"):
                read_csv(corrupted(end.join([b"a,b,c", *wrong]), "b.csv"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(InputError, match="is a device or a pipe"):
        read_csv(tmp_path / "a.csv")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_csv(tmp_path / "a.csv")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_tables_of_numbers_and_texts(corrupted: Corrupted, end: bytes) -> None:
    lines = [b'\xef\xbb\xbf"a b",c ,d', b"1, x ,-2", b'?,"y, ""z""",1e3', b" NA ,x,NaN"]
    found = read_table(corrupted(end.join([*lines, b""]), "a.csv"))
    assert (found.names, found.named, found.rows, found.first_line) == (("a b", "c", "d"), True, 3, 2)
    np.testing.assert_array_equal(found.numbers(0), [1, np.nan, np.nan])
    np.testing.assert_array_equal(found.numbers(2), [-2, 1000, np.nan])
    texts = found.texts(1)
    assert [texts.values[code] for code in texts.codes] == ["x", 'y, "z"', "x"]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (b"", 1, "no rows"),
        (b"a,b\n", 2, "no rows"),
        (b"a,b\n1,x\n2\n", 3, "1 columns instead of 2"),
        (b"a,b\n1,x\n2,y,z\n", 3, "3 columns instead of 2"),
        (b"a,b\n1,x\n2,\xff\n", 3, "is not UTF-8 text"),
        (b"a,b\n1,1e39\n", 2, "'1e39' is not a finite"),
        (b"a,b\n1,-inf\n", 2, "'-inf' is not a finite"),
        (b"a,b\n1,2\n \n3,4\n", 3, "is empty"),
        (b"a,a\n1,2\n", 1, "two columns are called 'a'"),
    ],
)
def test_faults_of_tables_are_told_with_their_line(
    corrupted: Corrupted, refused_at: Any, text: bytes, line: int, told: str
) -> None:
    refused_at(read_table, corrupted(text, "a.csv"), line, told)


@pytest.mark.parametrize(
    ("text", "known", "named"),
    [
        (b"1,2\n3,4", (), False),
        (b"5,red\n3,blue", (), False),
        (b"a,b\nred,blue", (), True),
        (b"a,2020\n1,2", (), False),
        (b"a,2020\n1,2", ("a",), True),
        (b"1,2\n3,4", ("1",), False),
    ],
)
def test_what_is_a_header(corrupted: Corrupted, text: bytes, known: tuple[str, ...], named: bool) -> None:
    found = read_table(corrupted(text, "a.csv"), known=known)
    assert found.named == named
    assert found.names == tuple(text.decode().split("\n")[0].split(",")) if named else ("1", "2")


def test_numbers_are_those_that_a_table_of_numbers_has(corrupted: Corrupted) -> None:
    rng = np.random.default_rng(8)
    table = (rng.standard_normal((200, 4)) * 10.0 ** rng.integers(-30, 30, (200, 4))).tolist()
    path = corrupted("\n".join(",".join(map(repr, row)) for row in table).encode(), "a.csv")
    np.testing.assert_array_equal(read_table(path).matrix(), read_csv(path))
