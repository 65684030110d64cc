"""The training data of FANN, the Fast Artificial Neural Network Library: `.data`, `.train`, `.test`.

Text: a line with the numbers of rows, inputs and outputs, then for each row a line of its inputs and a line of its
outputs, separated by blanks.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats import Array
from sparsenn.io.bounded import Source
from sparsenn.io.challenge.text import faulty_lines
from sparsenn.runtime.memory import check_memory
from sparsenn.runtime.storage import open_to_write, replacing

__all__ = ["read_fann", "write_fann"]

_MOST = 1 << 62
_HEADER = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]*")


def read_fann(path: str | os.PathLike[str]) -> tuple[Array, Array]:
    """Read training data, through gzip if the name ends in `.gz`; empty lines are passed over.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    inputs : array, shape (rows, inputs), float32
        One row a sample.
    targets : array, shape (rows, outputs), float32
        One row a sample.

    Raises
    ------
    FileFormatError
        The header is not three positive whole numbers, a line does not hold as many numbers as it should, a number is
        not one or not finite in float32, or there are fewer or more lines. The message names the line.
    InputError, ResourceError
        The file is not there, cannot be read, or declares more than memory holds.
    """
    with Source(path) as source:
        text = source.read(_MOST)
    lines = text.splitlines()
    found = _HEADER.fullmatch(lines[0]) if lines else None
    if found is None or not all(int(number) for number in found.groups()):
        raise FileFormatError(path, "the first line must hold three positive numbers: rows, inputs and outputs", 1)
    rows, inputs, outputs = (int(number) for number in found.groups())
    filled = [(number, line) for number, line in enumerate(lines[1:], start=2) if line.strip()]
    if len(filled) != 2 * rows:
        raise FileFormatError(
            path,
            f"declares {rows:,} rows, a line of inputs and a line of outputs each, and has {len(filled):,} lines "
            f"instead of {2 * rows:,}",
            len(lines),
        )
    longest = max(len(line) for _, line in filled)
    if max(inputs, outputs) > longest:  # a number takes a byte at least; nothing is allocated for fewer
        raise FileFormatError(path, f"declares {inputs:,} inputs and {outputs:,} outputs; its lines are shorter", 1)
    check_memory(4 * rows * (inputs + outputs), f"{os.fspath(path)}: its data")
    values = _values(text[len(lines[0]) :], filled, path, (inputs, outputs))
    table = values.reshape(rows, inputs + outputs)
    return np.ascontiguousarray(table[:, :inputs]), np.ascontiguousarray(table[:, inputs:])


def write_fann(path: str | os.PathLike[str], inputs: Array, outputs: Array) -> None:
    """Write training data, through gzip if the name ends in `.gz`; whole or not at all.

    Every float32 is written with so many digits that it is read back as the same.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    inputs : array, shape (rows, inputs)
        One row a sample.
    outputs : array, shape (rows, outputs)
        One row a sample.

    Raises
    ------
    ResourceError
        The file cannot be written.
    """
    rows = [f"{len(inputs)} {inputs.shape[1]} {outputs.shape[1]}"]
    for pair in zip(inputs.tolist(), outputs.tolist(), strict=True):
        rows.extend(" ".join(f"{value:.9g}" for value in values) for values in pair)
    with replacing(path) as temporary, open_to_write(temporary, path) as file:
        file.write(("\n".join(rows) + "\n").encode("ascii"))


def _values(
    text: bytes, lines: Sequence[tuple[int, bytes]], path: str | os.PathLike[str], widths: tuple[int, int]
) -> Array:
    """Return all numbers of a text, whose lines alternate between inputs and outputs, or raise the first fault."""
    values = _parsed(text, lines, widths, 0)
    if values is not None:
        return values

    def sound(first: int, last: int) -> bool:
        part = lines[first:last]
        return _parsed(b" ".join(line for _, line in part), part, widths, first) is not None

    first, last = faulty_lines(sound, len(lines))
    for index in range(first, last):
        _numbers(*lines[index], path, index % 2, widths)
    raise FileFormatError(path, "cannot be parsed", lines[first][0])


def _parsed(text: bytes, lines: Sequence[tuple[int, bytes]], widths: tuple[int, int], first: int) -> Array | None:
    """Return the numbers of a text, parsed all at once, float32; None unless each is finite, and where it should be.

    A word such as 1-2 makes two numbers, which more numbers than words give away.

    Parameters
    ----------
    lines : the text's, numbered; the first holds inputs if `first` is even, and outputs if not.
    """
    counts = [widths[index % 2] for index in range(first, first + len(lines))]
    if any(len(line.split()) != count for (_, line), count in zip(lines, counts, strict=True)):
        return None
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("error", DeprecationWarning)  # NumPy's warning of a text that it cannot parse
        try:
            values = np.fromstring(text, np.float32, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    return values if values.size == sum(counts) and np.isfinite(values).all() else None


def _numbers(number: int, line: bytes, path: str | os.PathLike[str], kind: int, widths: tuple[int, int]) -> None:
    """Check the numbers of a line, one by one, and raise the first fault."""
    fields = line.split()
    if len(fields) != widths[kind]:
        what = ("inputs", "outputs")[kind]
        raise FileFormatError(path, f"{len(fields):,} {what} instead of {widths[kind]:,}", number)
    for field in fields:
        shown = field[:40].decode("utf-8", "replace")
        try:
            with np.errstate(over="ignore"):
                value = np.float32(float(field.replace(b"_", b"?")))
        except ValueError:
            raise FileFormatError(path, f"{shown!r} is not a number", number) from None
        if not np.isfinite(value):
            raise FileFormatError(path, f"{shown} is not a finite float32 number", number)
