"""The columns of a table that a model takes, chosen before any row is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.formats import Column, Table, TableEncoding
from sparsenn.formats.table import is_nameless, listed
from sparsenn.io.tables.csv import TextTable
from sparsenn.io.tables.parquet import ParquetTable
from sparsenn.model import Model, feature_names, fills_gaps
from sparsenn.network import Network


@dataclass(frozen=True)
class ChosenColumns:
    """The columns of a table that a model takes.

    encoding : how they become inputs.
    places : of each of them in the table, counted from 0.
    id_place : of the column that is copied; None where there is none.
    notes : sentences on columns that are left out, and on missing numbers.
    """

    encoding: TableEncoding
    places: list[int]
    id_place: int | None
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> set[int]:
        """The places of the columns of texts."""
        columns = zip(self.places, self.encoding.columns, strict=True)
        return {place for place, column in columns if column.categories is not None}


def features_of(model: Model) -> TableEncoding | None:
    """Return the columns that a model knows; None where it knows the number of its inputs alone."""
    return model.encoding or columns_of(model.network)


def columns_of(network: Network) -> TableEncoding | None:
    """Return the columns that a network names; None where it names none."""
    names = feature_names(network)
    return None if names is None else TableEncoding(tuple(map(Column, names)), (), named=True)


def choose_columns(
    model: Model,
    file: TextTable | ParquetTable,
    columns: Sequence[str] | None = None,
    ignore: Collection[str] = (),
    id_name: str | None = None,
) -> ChosenColumns:
    """Choose the columns that a model takes: by their names where both have names, else all in their order.

    columns : names of the columns, in the model's order where it knows no names; all others unless given.
    ignore : names of columns that the model does not take.
    id_name : of a column that is copied, and that the model does not take.
    """
    others = [*ignore, *([] if id_name is None else [id_name])]
    _check_names(file, [*(columns or ()), *others], columns or (), others)
    names, features, notes = file.names, features_of(model), list[str]()
    places = [place for place, name in enumerate(names) if name not in others]
    if columns is not None:
        places = [_place_of(file, name) for name in columns]
    if features is not None and features.named and file.named:
        places = _places_by_name(file, features, places, columns)
        if columns is None:
            notes.append(unused_note([name for name in names if name not in others], features))
    else:
        width = model.network.inputs if features is None else len(features.columns)
        if columns is None and file.named and len(places) != width:
            places = [place for place in places if not is_nameless(names[place])]
            notes.append(left_out_note(names))
        _check_width(file, places, width, features is None)
        numbered = tuple(Column(str(number)) for number in range(width))
        features = features or TableEncoding(numbered, (), named=False)
    if fills_gaps(model.network):
        features = replace(features, columns=tuple(replace(column, fill=np.nan) for column in features.columns))
    id_place = None if id_name is None else _place_of(file, id_name)
    return ChosenColumns(features, places, id_place, tuple(filter(None, notes)))


def _check_names(
    file: TextTable | ParquetTable, asked: Sequence[str], columns: Sequence[str], others: Sequence[str]
) -> None:
    for name in asked:
        if name not in file.names:
            near = get_close_matches(name, file.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{file.path}: there is no column {name!r}; there are {listed(file.names)}{hint}")
    twice = [name for number, name in enumerate(columns) if name in columns[:number] or name in others]
    if twice:
        raise UsageError(f"{file.path}: column {twice[0]!r} is named twice by --columns, --ignore and --id")


def _places_by_name(
    file: TextTable | ParquetTable, features: TableEncoding, places: Sequence[int], columns: Sequence[str] | None
) -> list[int]:
    known, there = [column.name for column in features.columns], [file.names[place] for place in places]
    if columns is not None and {*columns} != {*known}:
        raise ShapeError(f"{file.path}: the columns named are {listed(columns)}; the model takes {listed(known)}")
    missing = [name for name in known if name not in there]
    if missing:
        raise ShapeError(
            f"{file.path}: the table has no column {listed(missing)}, which the model takes; it has {listed(there)}"
        )
    return [_place_of(file, name) for name in known]


def _place_of(file: TextTable | ParquetTable, name: str) -> int:
    if (count := file.names.count(name)) > 1:
        raise FileFormatError(file.path, f"has {count} columns {name!r}: leave one of them, or rename the others")
    return file.names.index(name)


def _check_width(file: TextTable | ParquetTable, places: Sequence[int], width: int, takes_numbers: bool) -> None:
    """Refuse more or fewer columns than a model takes, and texts where it takes numbers."""
    names = [file.names[place] for place in places]
    texts = [file.names[place] for place in places if place in file.texts]
    ignored = " ".join(f"--ignore {name}" for name in texts[:3])
    if len(places) != width:
        held = f" ({listed(names)})" if file.named else ""
        more = f"name those that it takes (--columns A,B,...), or leave others out ({ignored or '--ignore NAME'})"
        remedy = more if len(places) > width else "add those that are missing"
        columns = f"{len(places):,} column{'' if len(places) == 1 else 's'}"
        raise ShapeError(f"{file.path}: the table has {columns}{held}; the model takes {width:,}: {remedy}")
    if texts and takes_numbers:
        found = f"column {texts[0]!r} holds" if len(texts) == 1 else f"columns {listed(texts)} hold"
        remedy = f"leave out columns that it does not take ({ignored})"
        if file.decimal_commas.intersection(places):
            remedy = "write them with a decimal point, 0.5 in place of 0,5"
        raise FileFormatError(file.path, f"{found} texts, and the model takes numbers: {remedy}")


def impute_means(chosen: ChosenColumns, model: Model, path: str, tables: Iterable[Table]) -> ChosenColumns:
    """Have missing numbers replaced by the means of the training data, or else of the table."""
    columns = chosen.encoding.columns
    if fills_gaps(model.network):
        return replace(
            chosen, notes=(*chosen.notes, "missing numbers are left to the model, which replaces them itself")
        )
    is_open = [column.categories is None and column.fill is None for column in columns]
    if not any(is_open):
        return chosen
    means = _training_means(model, columns)
    note = "missing numbers were replaced by the means of the training data, which the model stores"
    if means is None:
        means, missing = _means(tables, is_open)
        counted = "1 missing number was" if missing == 1 else f"{missing:,} missing numbers were"
        note = f"{counted} replaced by means of {Path(path).name}: the model stores none" if missing else ""
    filled = [
        replace(column, fill=float(np.float32(mean))) if is_filled else column
        for column, mean, is_filled in zip(columns, means, is_open, strict=True)
    ]
    encoding = replace(chosen.encoding, columns=tuple(filled))
    return replace(chosen, encoding=encoding, notes=(*chosen.notes, *filter(None, [note])))


def _training_means(model: Model, columns: Sequence[Column]) -> list[float] | None:
    if model.encoding is None or model.scaling is None or model.scaling.mean.size != model.network.inputs:
        return None
    first = np.cumsum([0, *(column.width for column in columns)])[:-1]
    found: list[float] = (model.scaling.mean / model.scaling.factor)[first].tolist()
    return found


def _means(tables: Iterable[Table], is_open: Sequence[bool]) -> tuple[list[float], int]:
    sums, counts, missing = np.zeros(len(is_open)), np.zeros(len(is_open), np.int64), 0
    last: Table | None = None
    for last in tables:
        for place in np.flatnonzero(is_open).tolist():
            numbers = last.numbers(place)
            there = ~np.isnan(numbers)
            sums[place] += numbers[there].sum(dtype=np.float64)
            counts[place] += np.count_nonzero(there)
            missing += len(numbers) - int(np.count_nonzero(there))
    empty = np.flatnonzero(np.array(is_open) & (counts == 0))
    if empty.size and last is not None:
        raise last.fault(int(empty[0]), "holds no number, so that it has no mean")
    return (sums / np.maximum(counts, 1)).tolist(), missing


def left_out_note(names: Sequence[str]) -> str:
    """Return a sentence on the columns without names; an empty text where there are none."""
    nameless = [f"{number:,}" for number, name in enumerate(names, start=1) if is_nameless(name)]
    if len(nameless) > 1:
        return f"columns {', '.join(nameless)} have no names, and are left out, as row numbers are"
    return f"column {nameless[0]} has no name, and is left out, as row numbers are" if nameless else ""


def unused_note(names: Sequence[str], encoding: TableEncoding) -> str:
    """Return a sentence on the columns that a model neither takes nor has as targets; empty where there are none."""
    used = {column.name for column in encoding.columns} | set(encoding.targets)
    more = [name for name in names if not is_nameless(name) and name not in used]
    return f"not used: the {'column' if len(more) == 1 else 'columns'} {listed(more)}" if more else ""
