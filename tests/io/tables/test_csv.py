"""Tables as text: forms of text, headers, missing fields, faults with their lines, and blocks."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from file_comparisons import Corrupted, refused_at

from sparsenn.errors import FileFormatError
from sparsenn.io.tables.files import open_table, read_table

TABLE = np.array([[1, -2.5, 0.001], [4, 5, 6e7]], np.float32)


@pytest.mark.parametrize(
    "text",
    [
        b"1,-2.5,1e-3\n4,5,6e7\n",
        b"1,-2.5,1e-3\n4,5,6e7",
        b"1;-2.5;1e-3\n4;5;6e7",
        b"1\t-2.5\t1e-3\n4\t5\t6e7",
        b"a,b,c\n1,-2.5,1e-3\n4,5,6e7\n\n \n\r\n",
        b'"a","b","c"\r\n1,-2.5,1e-3\r\n4, 5,"6e7"\r\n',
        b"\xef\xbb\xbfa,b,c\n1,-2.5,1e-3\n4,+5,6e7\n",
    ],
)
def test_forms_of_text(corrupted: Corrupted, text: bytes) -> None:
    for data, name in ((text, "a.csv"), (gzip.compress(text), "a.csv.gz")):
        found = read_table(corrupted(data, name)).matrix()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, TABLE)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"", 1, "no rows"),
        (b" \n\n", 1, "no rows"),
        (b"a,b\n", 2, "no rows"),
        (b"1,2\n3\n", 2, "1 columns instead of 2"),
        (b"1,2\n3,4\n5,6,7\n", 3, "3 columns instead of 2"),
        (b"a,b\n1,x\n2\n", 3, "1 columns instead of 2"),
        (b"a,b\n1,x\n\xff,2,3\n", 3, "3 columns instead of 2"),
        (b"1,2\n\n3,4\n", 2, "is empty"),
        (b"a,b\n\n3,4\n", 2, "is empty"),
        (b"a,b\r\n1,2\r\n\r\n3,4\r\n", 3, "is empty"),
        (b"a,b\n1,2\n \n3,4\n", 3, "is empty"),
        (b"1,2\n3,1e39\n", 2, "column 2 holds a number that is not finite in float32"),
        (b"a,b\n1,-inf\n", 2, "column 'b' holds a number that is not finite"),
        (b"a,b\n1,x\n2,\xff\n", 3, "is not UTF-8 text"),
        (b"a,a\n1,2\n", 1, "two columns are called 'a'"),
    ],
)
def test_faults_name_their_line(corrupted: Corrupted, text: bytes, line: int, message: str) -> None:
    refused_at(read_table, corrupted(text, "a.csv"), line, message)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"a,b\n1,2\n3,x\n", 3, "column 'b' holds 'x' where a number is needed"),
        (b"1,2\n3,\n", 2, "column 2 holds nothing where a number is needed"),
        (b"1,2\n3,nan\n", 2, "holds nothing"),
        (b"1,x\n3,4\n", 1, "column 2 holds 'x'"),
        (b"1,2\n3,1_0\n", 2, "column 2 holds '1_0'"),
        (b'1,2\n3,"4\n5"\n', 2, "a line end within a row"),
        (b"1,2\n3,4\r5,6\n", 2, "a line end within a row"),
        (b"1,2\n3,4\r5,6\r7\n", 2, "a line end within a row"),
    ],
)
def test_faults_of_matrices(corrupted: Corrupted, text: bytes, line: int, message: str) -> None:
    refused_at(lambda path: read_table(path).matrix(), corrupted(text, "a.csv"), line, message)


def blocks_of(path: Path, size: int) -> list[np.ndarray]:
    with open_table(path, block_bytes=size) as file:
        found = list(file.blocks(range(len(file.names))))
    assert 0 < found[0].position <= found[-1].position <= file.size
    return [block.table.matrix() for block in found]


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blocks_make_one_table(corrupted: Corrupted, size: int, end: bytes) -> None:
    table = np.arange(60, dtype=np.float32).reshape(20, 3)
    lines = [b",".join(b"%d" % value for value in row) for row in table]
    found = blocks_of(corrupted(end.join([b"a,b,c", *lines, b"", b" ", b""]), "a.csv"), size)
    assert len(found) > 1
    np.testing.assert_array_equal(np.concatenate(found), table)
    for number in (0, 10, 19):
        wrong = [*lines[:number], b"1,2", *lines[number:]]
        with pytest.raises(FileFormatError, match=rf"csv:{number + 2}: 2 columns instead of 3"):
            blocks_of(corrupted(end.join([b"a,b,c", *wrong]), "b.csv"), size)
        wrong = [*lines[:number], b"", *lines[number:]]
        with pytest.raises(FileFormatError, match=rf"csv:{number + 2}: is empty"):
            blocks_of(corrupted(end.join([b"a,b,c", *wrong]), "b.csv"), size)


def test_columns_that_turn_out_to_be_texts(corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsenn.io.tables.files.BLOCK_BYTES", 8)
    monkeypatch.setattr(open_table, "__defaults__", ((), 8))
    rows = [b"007,1", b"1.0,x", b"2,y", b"NA,2", b"z,3"]
    found = read_table(corrupted(b"\n".join([b"a,b", *rows, b""]), "a.csv"))
    texts = [
        [column.values[code] if code >= 0 else None for code in column.codes] for column in map(found.texts, (0, 1))
    ]
    assert texts == [["007", "1.0", "2", None, "z"], ["1", "x", "y", "2", "3"]]


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
    ("text", "known", "named"),
    [
        (b"1,2\n3,4", (), False),
        (b"5,red\n3,blue", (), False),
        (b"a,b\nred,blue", (), True),
        (b"a,2020\n1,2", (), False),
        (b"a,2020\n1,2", ("a",), True),
        (b"1,2\n3,4", ("1",), False),
        (b",\n3,4", (), False),
        (b"NA,\n3,4", (), False),
        (b"NA,b\n3,4", (), True),
    ],
)
def test_what_is_a_header(corrupted: Corrupted, text: bytes, known: tuple[str, ...], named: bool) -> None:
    found = read_table(corrupted(text, "a.csv"), known=known)
    assert found.named == named
    assert found.names == tuple(text.decode().split("\n")[0].split(",")) if named else ("1", "2")


def test_numbers_read_as_numbers_or_as_texts_are_equal(corrupted: Corrupted) -> None:
    rng = np.random.default_rng(8)
    table = (rng.standard_normal((200, 4)) * 10.0 ** rng.integers(-30, 30, (200, 4))).tolist()
    path = corrupted("\n".join(",".join(map(repr, row)) for row in table).encode(), "a.csv")
    slow = corrupted(
        "\n".join(",".join(f"  {value} " for value in row) for row in [*table, [" na  "] * 4]).encode(), "b.csv"
    )
    np.testing.assert_array_equal(read_table(path).matrix(), np.float32(table))
    for column in range(4):
        np.testing.assert_array_equal(read_table(slow).numbers(column)[:-1], np.float32(table)[:, column])
