"""Tables as training data and as rows to predict: which columns are inputs, which are targets, and what classes are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from sparsenn.errors import InputError, UsageError
from sparsenn.formats import Array, Table, TableEncoding, Texts, class_codes, class_names
from sparsenn.formats.table import is_nameless
from sparsenn.io.tables.choosing import left_out_note, unused_note
from sparsenn.training.data import InputRows, TrainingData, of_columns


def training_data_of(
    table: Table,
    *,
    target: Sequence[str] = (),
    targets: int = 1,
    classes: bool = False,
    outputs: int | None = None,
    ignore: Collection[str] = (),
    texts: Collection[str] = (),
    impute: bool = False,
) -> TrainingData:
    """Return a table as training data, with what it takes to make other tables such.

    target : names of the target columns; the last `targets` ones unless given.
    classes : whether the one target column is a class, counted from 0, or several are one-hot. Texts are classes in
        any case.
    outputs : how many classes there are, where they are numbers; one more than the largest unless given.
    ignore : columns that are left out.
    texts : columns that are categories, or classes, though they hold numbers.
    impute : whether what is missing is filled in: by the column's mean, or its most frequent text.
    """
    _check_known(table, "ignore", ignore)
    _check_known(table, "text", texts)
    if len({*target}) < len(target) or {*target} & {*ignore}:
        raise UsageError(f"{table.path}: a column cannot be a target twice, or be ignored as well")
    note = left_out_note(table.names)
    table = without(table, ignore)
    _check_known(table, "target", target)
    columns = len(table.names)
    if not target and not 1 <= targets < columns:
        raise UsageError(f"{table.path}: cannot take {targets} target columns of {columns}")
    places = [table.names.index(name) for name in target] or list(range(columns - targets, columns))
    as_texts = [number for number, name in enumerate(table.names) if name in texts]
    encoding = TableEncoding.learn(table, places, as_texts, impute)
    names = None
    if len(places) == 1 and (places[0] in as_texts or isinstance(table.columns[places[0]], Texts)):
        names = class_names(table, places[0], places[0] in as_texts)
    found = _with_targets(table, encoding, places, classes, names, outputs)
    notes = list(filter(None, (note, _empty_classes(found) if names is None and outputs is None else None)))
    return replace(found, note="; ".join(notes) or None)


def encoded(
    table: Table,
    encoding: TableEncoding,
    classes: bool,
    names: tuple[str, ...] | None,
    outputs: int | None,
    labelled: bool,
) -> TrainingData | InputRows:
    """Return a table's rows as a model takes them, with targets where the table holds all of them.

    encoding : what the model takes of a table.
    classes : whether its targets are classes.
    names : what the classes are called; None where they are counted from 0.
    outputs : how many classes there are; None where there are none.
    labelled : whether a table whose columns go by no names holds targets.
    """
    places = encoding.target_places(table, labelled)
    if not places:
        return InputRows(encoding.encode(table, labelled), note=_note(table, encoding))
    return _with_targets(table, encoding, places, classes, names, outputs)


def _with_targets(
    table: Table,
    encoding: TableEncoding,
    places: Sequence[int],
    classes: bool,
    names: tuple[str, ...] | None,
    outputs: int | None,
) -> TrainingData:
    inputs = encoding.encode(table, labelled=True)
    if names is not None:
        found = TrainingData.of_labels(inputs, class_codes(table, places[0], names), len(names))
    else:
        found = of_columns(inputs, _targets(table, places), classes, outputs)
    return replace(found, encoding=encoding, class_names=names, note=_note(table, encoding))


def _targets(table: Table, places: Sequence[int]) -> Array:
    columns = [table.numbers(place) for place in places]
    for place, column in zip(places, columns, strict=True):
        if np.isnan(column).any():
            reason = "holds no target here; leave the row out, or the column where no target is known"
            raise table.fault(place, reason, int(np.isnan(column).argmax()))
    return np.column_stack(columns)


def _check_known(table: Table, what: str, names: Collection[str]) -> None:
    for name in names:
        if name not in table.names:
            known = ", ".join(filter(None, table.names[:20])) + (", …" if len(table.names) > 20 else "")
            raise InputError(f"{table.path}: there is no column {name!r} to {_VERBS[what]}; there are {known}")


_VERBS = {"ignore": "ignore", "text": "take as text", "target": "train for"}


def without(table: Table, ignored: Collection[str]) -> Table:
    """Return a table without some columns, and without those that have no name."""
    columns = {
        name: column
        for name, column in zip(table.names, table.columns, strict=True)
        if not is_nameless(name) and name not in ignored
    }
    return replace(table, names=tuple(columns), columns=tuple(columns.values()))


def _empty_classes(data: TrainingData) -> str | None:
    """Say which classes, counted from 0, no row is of."""
    empty = np.flatnonzero(~data.targets.any(axis=0)) if data.classes else np.empty(0, int)
    if not empty.size:
        return None
    shown = ", ".join(map(str, empty[:8].tolist())) + (", …" if empty.size > 8 else "")
    return (
        f"no row is of class {shown} of {data.targets.shape[1]:,}: classes are counted from 0 (--text makes them names)"
    )


def _note(table: Table, encoding: TableEncoding) -> str | None:
    return unused_note(table.names, encoding) or None if table.named and encoding.named else None
