"""Tables that fit the terminal: no number is cut, and columns in which nothing stands are left out."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

NOTHING = ("", "–")  # cells without information


class FittedTable(Table):
    """A table that is as narrow as the terminal.

    Columns of which nothing is known are left out. Where the rest is too wide, there are no lines between columns, and
    then columns that may be left out are, those of the greatest importance last; a line below names them. Texts are
    broken between words, numbers are not.

    columns : headings of texts; `numbers` and `unbroken` make other columns.
    importance : of the columns that may be left out, by their headings.
    """

    def __init__(self, *columns: Column | str, importance: Mapping[str, float] = MappingProxyType({}), **options: Any):
        super().__init__(*columns, **{"title_justify": "left", "caption_justify": "left", **options})
        self._importance = importance

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of as much of the table as fits."""
        yield from Table.__rich_console__(self._fitted(console, options.max_width), console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how wide what fits is."""
        return Table.__rich_measure__(self._fitted(console, options.max_width), console, options)

    def _fitted(self, console: Console, most: int) -> Table:
        shown = copy(self)
        columns = [
            column
            for column in self.columns
            if not self.rows or any(_plain(cell) not in NOTHING for cell in column.cells)
        ]
        shown.columns = _numbered(columns)
        if Table.__rich_measure__(shown, console, console.options.update(max_width=10_000)).maximum <= most:
            return shown
        between, left_out = 3, []  # columns of the terminal, from one of the table's to the next
        if _least_width(columns, between) > most:
            shown.box, shown.padding, between = box.HORIZONTALS, (0, 1, 0, 0), 2
        droppable = sorted(columns, key=self._importance_of)
        while _least_width(columns, between) > most and self._importance_of(droppable[0]) < float("inf"):
            left_out.append(str(droppable[0].header))
            columns.remove(droppable.pop(0))
        slack = most - _least_width(columns, between)
        shown.columns = _numbered(columns)
        for column in shown.columns:
            more = max(0, min(slack, _natural(column) - _least(column)))
            column.width, column.no_wrap, slack = _least(column) + more, False, slack - more
        if left_out:
            note = f"Not shown in {most} columns: {', '.join(left_out)}."
            shown.caption = f"{self.caption} {note}" if self.caption else note
        return shown

    def _importance_of(self, column: Column) -> float:
        return self._importance.get(str(column.header), float("inf"))


def numbers(*headings: str) -> list[Column | str]:
    """Return columns of numbers."""
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def unbroken(*headings: str) -> list[Column | str]:
    """Return columns of texts that take one line."""
    return [Column(heading, no_wrap=True) for heading in headings]


def _least_width(columns: list[Column], between: int) -> int:
    return sum(map(_least, columns)) + between * len(columns) + 1


def _numbered(columns: list[Column]) -> list[Column]:
    return [replace(column, _index=index) for index, column in enumerate(columns)]


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _least(column: Column) -> int:
    """Return the least width at which no word of the column, and no number, is broken."""
    cells = [_plain(cell) for cell in column.cells]
    parts = cells if column.no_wrap else [word for cell in cells for word in cell.split()]
    return max(map(cell_len, [*str(column.header).split(), *parts]), default=1)


def _natural(column: Column) -> int:
    """Return the width at which nothing of the column is broken."""
    cells = [line for cell in column.cells for line in _plain(cell).splitlines()]
    return max(map(cell_len, [str(column.header), *cells]), default=1)
