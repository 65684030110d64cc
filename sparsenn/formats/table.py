"""Tables as people keep them: named columns of numbers or texts, in which some may be missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsenn.errors import FileFormatError
from sparsenn.formats.arrays import Array
from sparsenn.printable import one_line

_SHOWN = 8  # columns that a message names

_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""The names of columns without names, by pandas also: they count the rows."""


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts.

    Parameters
    ----------
    codes : (rows,) integers: for each row the number, from 0, of its text among `values`; -1 where it is missing.
    values : the different texts.
    """

    codes: Array
    values: tuple[str, ...]

    __repr__ = one_line


@dataclass(frozen=True)
class Unread:
    """A column of something that is neither number nor text, such as dates; it may be there if nobody uses it."""

    kind: str


@dataclass(frozen=True, eq=False)
class Table:
    """A table that was read from a file.

    Parameters
    ----------
    path : the file, for messages.
    names : of the columns, empty where one has none; their numbers, counted from 1, where the file gives no names.
    columns : numbers, float32 of shape (rows,), NaN where one is missing; or texts.
    rows : how many there are.
    named : whether the file gives names.
    first_line : number of the line of the first row; None where the file is not text.
    first_row : number of the first row in the file, counted from 0.
    """

    path: str
    names: tuple[str, ...]
    columns: tuple[Array | Texts | Unread, ...]
    rows: int
    named: bool
    first_line: int | None = None
    first_row: int = 0

    __repr__ = one_line

    def __post_init__(self) -> None:
        names = [name for name in self.names if name]
        if len(set(names)) < len(names):
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            line = None if self.first_line is None else 1
            raise FileFormatError(self.path, f"two columns are called {twice!r}; give each its own name", line)

    def fault(self, column: int, message: str, row: int | None = None) -> FileFormatError:
        """Return the error of a column, counted from 0, in one of its rows or in all."""
        where = f"column {self.names[column]!r}" if self.named else f"column {self.names[column]}"
        if row is None:
            return FileFormatError(self.path, f"{where} {message}")
        if self.first_line is None:
            return FileFormatError(self.path, f"row {self.first_row + row + 1:,}, {where} {message}")
        return FileFormatError(self.path, f"{where} {message}", self.first_line + row)

    @staticmethod
    def concatenate(tables: Sequence[Table]) -> Table:
        """Return the rows of tables of equal columns, in their order, as one table."""
        columns = [list(parts) for parts in zip(*(table.columns for table in tables), strict=True)]
        rows = sum(table.rows for table in tables)
        return replace(tables[0], columns=tuple(map(_concatenate, columns)), rows=rows)

    @property
    def text_places(self) -> set[int]:
        """The places of the columns of texts, counted from 0."""
        return {place for place, column in enumerate(self.columns) if isinstance(column, Texts)}

    def checked(self) -> Table:
        """Return the table, whose numbers must be finite in float32."""
        for place, column in enumerate(self.columns):
            if isinstance(column, np.ndarray) and np.isinf(column).any():
                message = "holds a number that is not finite in float32"
                raise self.fault(place, message, int(np.isinf(column).argmax()))
        return self

    def numbers(self, column: int) -> Array:
        """Return a column, counted from 0, as float32 numbers, NaN where one is missing."""
        found = self._read(column)
        if not isinstance(found, Texts):
            return found
        wrong = [number for number, text in enumerate(found.values) if not is_number(text)]
        if wrong:
            row = int(np.isin(found.codes, wrong).argmax())
            raise self.fault(column, f"holds {found.values[found.codes[row]][:40]!r} where a number is needed", row)
        return np.array([*map(float, found.values), np.nan], np.float32)[found.codes]

    def matrix(self) -> Array:
        """Return all columns as numbers, none of which may be missing: float32 of shape (rows, columns)."""
        found = np.empty((self.rows, len(self.columns)), np.float32)
        for column in range(len(self.columns)):
            found[:, column] = self.numbers(column)
        if np.isnan(found).any():
            row, column = np.argwhere(np.isnan(found))[0]
            raise self.fault(int(column), "holds nothing where a number is needed", int(row))
        return found

    def texts(self, column: int) -> Texts:
        """Return a column, counted from 0, as texts, numbers in the fewest digits that read back as the same."""
        found = self._read(column)
        if isinstance(found, Texts):
            return found
        values, codes = np.unique(found, return_inverse=True)
        missing = np.isnan(found)
        return Texts(np.where(missing, -1, codes), tuple(f"{value:.9g}" for value in values[~np.isnan(values)]))

    def _read(self, column: int) -> Array | Texts:
        found = self.columns[column]
        if isinstance(found, Unread):
            raise self.fault(column, f"holds {found.kind}, neither numbers nor texts; leave the column out")
        return found


def _concatenate(parts: list[Array | Texts | Unread]) -> Array | Texts | Unread:
    first = parts[0]
    if isinstance(first, Unread):
        return first
    if not isinstance(first, Texts):
        return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    numbers: dict[str, int] = {}
    codes = []
    for part in [part for part in parts if isinstance(part, Texts)]:
        renumbered = [*(numbers.setdefault(text, len(numbers)) for text in part.values), -1]
        codes.append(np.array(renumbered)[part.codes])
    return Texts(np.concatenate(codes), tuple(numbers))


def column_numbers(columns: int) -> tuple[str, ...]:
    """Return what columns without names are called: their numbers, counted from 1."""
    return tuple(map(str, range(1, columns + 1)))


def is_nameless(name: str) -> bool:
    """Return whether a column has no name, or one that pandas makes for such a column."""
    return _NAMELESS.fullmatch(name) is not None


def listed(names: Sequence[str]) -> str:
    """Return names of columns for a message: the first few, and how many there are besides."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more


def width_fault(names: Sequence[str], inputs: int, targets: int, labelled: bool) -> str:
    """Return what is wrong with a table whose width alone says what its columns are.

    Parameters
    ----------
    names : of the columns; their numbers where they have none.
    inputs : how many columns the model takes.
    targets : how many are targets if the table holds any; 0 where that is not known.
    labelled : whether the table was said to hold them.
    """
    width = len(names)
    held = "" if tuple(names) == column_numbers(width) else f" ({listed(names)})"
    found = f"the table has {width:,} column{'' if width == 1 else 's'}{held}; the model takes {inputs:,}"
    if labelled:
        return f"{found} and then {targets:,} of targets"
    if width <= inputs:
        return found
    last = targets or width - inputs
    return f"{found}; remove the others, or, if the last are targets, pass --targets {last}"


def is_number(text: str) -> bool:
    """Return whether a text is a number that is finite in float32."""
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(text.replace("_", "?")))))
    except ValueError:
        return False
