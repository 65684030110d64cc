from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsenn.errors import FileFormatError, InputError
from sparsenn.io import read_fann, write_fann
from sparsenn.io.tables import fann

Corrupted = Callable[[bytes, str], Path]
SOUND = b"2 3 1\n1 2.5 -3\n0.25\n4e-1 5 6\n1\n"


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [np.exp(rng.normal(0, 20, (rows, width))).astype(np.float32) for width in (inputs, outputs)]
    path = tmp_path_factory.mktemp("fann") / "a.data"
    write_fann(path, *arrays)
    for found, expected in zip(read_fann(path), arrays, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("text", [SOUND, SOUND[:-1], SOUND.replace(b"\n", b"\r\n"), SOUND.replace(b"\n", b" \n\n")])
@pytest.mark.parametrize("zipped", [False, True])
def test_forms_of_text(corrupted: Corrupted, text: bytes, zipped: bool) -> None:
    path = corrupted(gzip.compress(text), "a.data.gz") if zipped else corrupted(text, "a.data")
    inputs, outputs = read_fann(path)
    np.testing.assert_array_equal(inputs, np.array([[1, 2.5, -3], [0.4, 5, 6]], np.float32))
    np.testing.assert_array_equal(outputs, np.array([[0.25], [1]], np.float32))


def test_numbers_are_those_that_python_reads(corrupted: Corrupted) -> None:
    """Rounded to float64 first, as single numbers are; two of these lie beside the middle of two float32."""
    words = [b"1.00000005960464478", b"1.00000017881393433", b"+.5", b"-7.", b"1e-46", b"-0", b"3.4028235e38", b"1E3"]
    path = corrupted(b"1 7 1\n%s\n%s\n" % (b"\t".join(words[:7]), words[7]), "a.data")
    inputs, outputs = read_fann(path)
    expected = np.array([float(word) for word in words]).astype(np.float32)
    assert np.append(inputs, outputs).tobytes() == expected.tobytes()
    assert inputs.flags.c_contiguous
    assert outputs.flags.c_contiguous


def test_sound_text_is_parsed_all_at_once(corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fann, "_numbers", lambda *_: pytest.fail("parsed one by one"))
    read_fann(corrupted(SOUND, "a.data"))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (b"", 1, "three positive numbers"),
        (b"\n", 1, "three positive numbers"),
        (b"2 3\n", 1, "three positive numbers"),
        (b"2 3 x\n", 1, "three positive numbers"),
        (b"0 3 1\n", 1, "three positive numbers"),
        (b"-2 3 1\n", 1, "three positive numbers"),
        (b"2 3 1 \n1 2 3\n1\n", 3, "declares 2 rows, .* and has 2 lines instead of 4"),
        (SOUND + b"7 7 7\n", 6, "has 5 lines instead of 4"),
        (b"2 3 1\n1 2\n1\n1 2 3\n1\n", 2, "2 inputs instead of 3"),
        (b"2 3 1\n1 2 3\n1\n1 2 3\n1 0\n", 5, "2 outputs instead of 1"),
        (b"1 3 1\n1 2 three\n1\n", 2, "'three' is not a number"),
        (b"1 3 1\n1 2 1_0\n1\n", 2, "not a number"),
        (b"1 3 1\n1 2 nan\n1\n", 2, "nan is not a finite"),
        (b"1 3 1\n\n1 2 1e39\n1\n", 3, "1e39 is not a finite"),
        (b"1 3 1\n1 2 \xff\n1\n", 2, "is not a number"),
        (b"1 3 1\n1 2 \0\n1\n", 2, "is not a number"),
        (b"1 3 1\n1 2 3\n1\0\n", 3, "is not a number"),
        (b"1 3 1\n1 2-3 4\n1\n", 2, "'2-3' is not a number"),
        (b"1 3 1\n1 2.5.5 4\n1\n", 2, "'2.5.5' is not a number"),
        (b"1 2 1\n1 2-3\n1\n", 2, "'2-3' is not a number"),
        (b"1 3 1\n1 2 0x10\n1\n", 2, "'0x10' is not a number"),
        (b"1 3 1\n1 2 1e\n1\n", 2, "'1e' is not a number"),
        (b"1 3 1\n1 2 nan(7)\n1\n", 2, "is not a number"),
        (b"1 3 1\n1 2 -inf\n1\n", 2, "-inf is not a finite"),
        (b"2 3 1\n1 2 3\n1\n4 5 6\n1e400\n", 5, "1e400 is not a finite"),
        (b"999999999999999999 3 1\n1 2 3\n1\n", 3, "declares"),
        (b"1 999999999999999999 1\n1 2 3\n1\n", 1, "its lines are shorter"),
        (b"9999999999999999999999 1 1\n1 2 3\n1\n", 1, "three positive numbers"),
    ],
)
def test_faults_are_told_with_their_line(
    corrupted: Corrupted, refused_at: Any, text: bytes, line: int, told: str
) -> None:
    refused_at(read_fann, corrupted(text, "a.train"), line, told)


@pytest.mark.parametrize("line", [2, 11_234, 20_001])
def test_a_fault_is_found_by_parsing_at_most_as_much_again(
    corrupted: Corrupted, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    lines = [b"10000 2 1", *[b"0.125 1", b"0"] * 10_000]
    lines[line - 1] += b"x"
    text = b"\n".join(lines)
    parsed: list[int] = []
    looked: list[object] = []
    parse, look = fann._parsed, fann._numbers
    monkeypatch.setattr(fann, "_parsed", lambda part, *form: parsed.append(len(part)) or parse(part, *form))
    monkeypatch.setattr(fann, "_numbers", lambda *line: looked.append(line) or look(*line))
    with pytest.raises(FileFormatError, match="x' is not a number") as caught:
        read_fann(corrupted(text, "a.data"))
    assert caught.value.line == line
    assert sum(parsed) <= 2 * len(text)
    assert len(looked) <= 100


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_fann(tmp_path / "a.data")
    with pytest.raises(InputError, match="is a folder"):
        read_fann(tmp_path)
