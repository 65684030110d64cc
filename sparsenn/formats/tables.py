"""Tables of pandas, polars or Arrow as rows: columns go by the names that a model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.printable import kind_of

_MOST_NAMES = 5  # names that a message lists, as in scikit-learn's


def column_names(inputs: Any) -> list[str] | None:
    """Return the names of a table's columns; None for other inputs, and where columns are not named by texts."""
    names = getattr(inputs, "column_names", None)  # of Arrow
    if hasattr(inputs, "__dlpack__") or (names is None and not hasattr(inputs, "to_numpy")):
        return None
    found = list(getattr(inputs, "columns", ()) if names is None else names)
    return found if found and all(isinstance(name, str) for name in found) else None


def without_table(known: Sequence[str] | None, inputs: Any) -> Any:
    """Return the numbers of a table as an array, and other inputs as they are.

    Parameters
    ----------
    known : names of the numbers of a row, in which order columns are taken; None takes those of any table as they are,
        as names do with a table whose columns are not named by texts.
    inputs : a table, or anything else.
    """
    if hasattr(inputs, "__dlpack__") or not (hasattr(inputs, "column_names") or hasattr(inputs, "to_numpy")):
        return inputs
    found = column_names(inputs)
    places = slice(None) if known is None or found is None else _places(known, found)
    try:
        numbers = _numbers(inputs)
        numbers = numbers.astype(np.float64) if numbers.dtype == object else numbers
        return numbers if numbers.ndim == 1 else numbers[:, places]  # a single column of a table has none
    except (TypeError, ValueError) as error:
        raise InputError(f"the table, {kind_of(inputs)}, does not hold numbers alone: {error}") from error


def _numbers(table: Any) -> Any:
    if hasattr(table, "to_numpy"):
        return np.asarray(table.to_numpy())
    columns = [np.asarray(column) for column in table.columns]
    return np.column_stack(columns) if columns else np.zeros((table.num_rows, 0))


def _places(known: Sequence[str], found: Sequence[str]) -> Any:
    """Return the place of each known column; all of them must be there, and no others."""
    if list(known) == list(found):
        return slice(None)
    differences = {
        "unknown": set(found) - set(known),
        "missing": set(known) - set(found),
        "there more than once": {name for name in found if found.count(name) > 1},
    }
    faults = [f"{kind} are {_listed(sorted(names))}" for kind, names in differences.items() if names]
    if faults:
        raise InputError(f"the feature names should match those that the model was trained with; {'; '.join(faults)}")
    return [found.index(name) for name in known]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
