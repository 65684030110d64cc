"""How columns of a table become the numbers that a network takes: by name, texts one-hot, missing ones filled in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sparsenn.errors import FileFormatError, InputError, ShapeError
from sparsenn.formats.arrays import Array
from sparsenn.formats.table import Table, Texts, is_number, listed, width_fault
from sparsenn.runtime.memory import check_memory

T = TypeVar("T")

_MOST_CATEGORIES = 1000
"""Different texts that a column may hold; each is an input of the network."""

_FEW = 10
"""Different texts of which no more than half as many as rows may be: more identify rows rather than categories."""

_HOLDS_NOTHING = "holds nothing; leave it out (--ignore)"
_REMEDY = "fill it in, leave the column out (--ignore), or have it filled in (--impute)"


@dataclass(frozen=True)
class Column:
    """One column that a network takes.

    Parameters
    ----------
    name : the column's.
    categories : its different texts, of which each is an input, 1 where the row holds it and 0 elsewhere; None for a
        column of numbers, which is one input.
    fill : what stands for what is missing: a number, or one of the categories; None where nothing may be missing.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None

    @property
    def width(self) -> int:
        """Inputs of the network that the column takes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class TableEncoding:
    """What a network takes of a table.

    Parameters
    ----------
    columns : those that are inputs, in the network's order.
    targets : names of those that say what the network should give.
    named : whether the first table had names; else columns are found by their places.
    """

    columns: tuple[Column, ...]
    targets: tuple[str, ...]
    named: bool

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        sound = bool(names) and len({*names, *self.targets}) == len(names) + len(self.targets)
        for column in self.columns:
            kinds = column.categories
            if kinds is None:
                sound &= column.fill is None or (isinstance(column.fill, float) and not np.isinf(column.fill))
            else:
                sound &= bool(kinds) and len(set(kinds)) == len(kinds) and column.fill in (None, *kinds)
        if not sound:
            raise InputError("columns of a table need different names, different categories, and fills among them")

    @property
    def width(self) -> int:
        """Inputs of the network."""
        return sum(column.width for column in self.columns)

    @classmethod
    def learn(
        cls, table: Table, targets: Sequence[int], texts: Collection[int] = (), impute: bool = False
    ) -> TableEncoding:
        """Return what makes inputs of all columns of a table but its targets.

        Parameters
        ----------
        targets : the columns, counted from 0, that are no inputs but targets.
        texts : columns that are categories though they hold numbers.
        impute : whether missing numbers are to become the column's mean, and missing texts its most frequent one.
        """
        inputs = [number for number in range(len(table.names)) if number not in targets]
        if not inputs:
            raise InputError(f"{table.path}: no column is left as input")
        columns = _each(inputs, lambda number: _column(table, number, number in texts, impute))
        return cls(tuple(columns), tuple(table.names[number] for number in targets), table.named)

    def encode(self, table: Table, labelled: bool = False) -> Array:
        """Return what the network takes of each row: float32 of shape (rows, width)."""
        places = self.places(table, labelled)
        check_memory(4 * table.rows * self.width, f"{table.path}: {table.rows:,} rows of {self.width:,} inputs")
        inputs = np.zeros((table.rows, self.width), np.float32)
        firsts = np.cumsum([0, *(column.width for column in self.columns)])

        def encode_column(number: int) -> None:
            column, place, first = self.columns[number], places[number], firsts[number]
            if column.categories is None:
                inputs[:, first] = _numbers(table, place, column.fill)
            else:
                codes = _codes(table, place, column.categories, column.fill)
                inputs[np.arange(table.rows), first + codes] = 1

        _each(range(len(places)), encode_column)
        return inputs

    def places(self, table: Table, labelled: bool = False) -> list[int]:
        """Return the place of each column in a table, counted from 0: by name where there are names, else in order.

        `labelled`: whether a table whose columns go by no names holds the targets, too.
        """
        if self.by_name(table, labelled):
            return [table.names.index(column.name) for column in self.columns]
        known = len(self.columns)
        if not (table.named and self.named):
            if len(table.names) != known + labelled * len(self.targets):
                raise ShapeError(width_fault(table.names, known, len(self.targets), labelled))
            return list(range(known))
        names = {column.name for column in self.columns}
        missing = listed([column.name for column in self.columns if column.name not in table.names])
        extra = [name for name in table.names if name not in (*names, *self.targets)]
        others = f"; it does not take {listed(extra)}" if extra else ""
        raise ShapeError(f"the table has no column {missing}, which the model takes{others}")

    def target_places(self, table: Table, labelled: bool) -> list[int]:
        """Return the places of the targets in a table that has the columns; none where it does not hold them all.

        Where columns are not found by name, they are the last ones.
        """
        if self.by_name(table, labelled):
            held = all(name in table.names for name in self.targets)
            return [table.names.index(name) for name in self.targets] if held else []
        return list(range(len(self.columns), len(table.names)))

    def by_name(self, table: Table, labelled: bool) -> bool:
        """Return whether a table's columns are found by their names.

        Where neither has names, they go by their numbers, if the table holds targets and its last column is known.
        """
        names = [column.name for column in self.columns]
        if self.named or table.named:
            return self.named and table.named and all(name in table.names for name in names)
        known = {*names, *self.targets}
        return labelled and known <= {*table.names} and table.names[-1] in known


def class_names(table: Table, column: int, surely: bool = False) -> tuple[str, ...]:
    """Return the classes of a column, sorted.

    `surely`: whether they are classes however few rows have one in common.
    """
    found = table.texts(column)
    if not surely:
        _refuse_different(table, column, found)
    return tuple(sorted(found.values))


def class_codes(table: Table, column: int, names: Sequence[str]) -> Array:
    """Return the class of each row, counted from 0: int64 of shape (rows,)."""
    return _codes(table, column, names, None)


def _each(columns: Iterable[int], read: Callable[[int], T]) -> list[T]:
    """Return what `read` returns for each column; of several faults, raise the one on the first line of the file."""
    found: list[T] = []
    faults: list[FileFormatError] = []
    for column in columns:
        try:
            found.append(read(column))
        except FileFormatError as fault:
            faults.append(fault)
    if faults:
        raise min(faults, key=lambda fault: fault.line or 0)
    return found


def _column(table: Table, number: int, as_text: bool, impute: bool) -> Column:
    found = table.texts(number) if as_text else table.columns[number]
    name = table.names[number]
    if isinstance(found, np.ndarray):
        there = found[~np.isnan(found)]
        if not there.size:
            raise table.fault(number, _HOLDS_NOTHING)
        if there.size < found.size and not impute:
            raise table.fault(number, f"holds nothing here: {_REMEDY}", int(np.isnan(found).argmax()))
        return Column(name, None, float(np.float32(there.mean(dtype=np.float64))) if impute else None)
    found = table.texts(number)
    if not found.values:
        raise table.fault(number, _HOLDS_NOTHING)
    if not as_text:
        _refuse_mixed(table, number, found)
        _refuse_different(table, number, found)
    if len(found.values) > _MOST_CATEGORIES:
        reason = f"holds {len(found.values):,} different texts, more than {_MOST_CATEGORIES:,}; leave it out (--ignore)"
        raise table.fault(number, reason)
    if (found.codes < 0).any() and not impute:
        raise table.fault(number, f"holds nothing here: {_REMEDY}", int((found.codes < 0).argmax()))
    counts = np.bincount(found.codes[found.codes >= 0], minlength=len(found.values))
    return Column(name, tuple(sorted(found.values)), found.values[int(counts.argmax())] if impute else None)


def _refuse_mixed(table: Table, number: int, found: Texts) -> None:
    numeric = np.array([is_number(text) for text in found.values], bool)
    if numeric.any() and not numeric.all():
        row = int(np.isin(found.codes, np.flatnonzero(~numeric)).argmax())
        reason = (
            f"holds {found.values[found.codes[row]][:40]!r} here and numbers elsewhere: correct it, "
            f"or declare all of them"
        )
        raise table.fault(number, f"{reason} categories (--text)", row)


def _refuse_different(table: Table, number: int, found: Texts) -> None:
    count = len(found.values)
    if count > _FEW and 2 * count > table.rows:
        reason = f"holds {count:,} different texts in {table.rows:,} rows, most of them in few rows"
        raise table.fault(number, f"{reason}: leave it out (--ignore), or declare them categories (--text)")


def _numbers(table: Table, place: int, fill: float | str | None) -> Array:
    found = table.numbers(place)
    missing = np.isnan(found)
    if not missing.any():
        return found
    if fill is None:
        reason = "holds nothing here: fill it in, or have it filled in (--impute)"
        raise table.fault(place, reason, int(missing.argmax()))
    return np.where(missing, np.float32(fill), found)


def _codes(table: Table, place: int, known: Sequence[str], fill: float | str | None) -> Array:
    """Return the number, from 0, of each row's text among those that are known."""
    found = table.texts(place)
    number = {text: code for code, text in enumerate(known)}
    filled = -1 if fill is None else number[str(fill)]
    codes = np.array([*(number.get(text, -1) for text in found.values), filled], np.int64)[found.codes]
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        shown = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        held = "nothing" if found.codes[row] < 0 else repr(found.values[found.codes[row]][:40])
        raise table.fault(place, f"holds {held} here; known: {shown}", row)
    return codes
