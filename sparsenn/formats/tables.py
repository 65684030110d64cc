"""Tables of pandas, polars or Arrow as rows: their columns must have the names that a model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenn.errors import InputError
from sparsenn.formats.input_layout import InputLayout
from sparsenn.printable import kind_of

__all__ = ["without_table"]

_MOST_NAMES = 5
"""Names that a message lists, as in scikit-learn's."""


def without_table(layout: InputLayout | None, inputs: Any) -> Any:
    """Return the numbers of a table as an array, and other inputs as they are.

    A layout without names for the numbers of a row takes any table. So does one with names a table whose columns are
    not named by texts.

    Raises
    ------
    InputError
        The table's columns have other names than the numbers of a row, or another order; or it holds no numbers alone.
    """
    names = getattr(inputs, "column_names", None)  # of Arrow
    if hasattr(inputs, "__dlpack__") or (names is None and not hasattr(inputs, "to_numpy")):
        return inputs
    known = None if layout is None else layout.names
    found = list(getattr(inputs, "columns", ()) if names is None else names)
    if known is not None and found and all(isinstance(name, str) for name in found):
        _check_names(known, found)
    try:
        numbers = _numbers(inputs)
        return numbers.astype(np.float64) if numbers.dtype == object else numbers
    except (TypeError, ValueError) as error:
        raise InputError(f"the table, {kind_of(inputs)}, does not hold numbers alone: {error}") from error


def _numbers(table: Any) -> Any:
    if hasattr(table, "to_numpy"):
        return np.asarray(table.to_numpy())
    columns = [np.asarray(column) for column in table.columns]
    return np.column_stack(columns) if columns else np.zeros((table.num_rows, 0))


def _check_names(known: Sequence[str], found: Sequence[str]) -> None:
    """Refuse columns that are not the known ones in their order, in the words of scikit-learn."""
    if list(known) == list(found):
        return
    unseen, missing = sorted(set(found) - set(known)), sorted(set(known) - set(found))
    faults = [
        *([f"unknown are {_listed(unseen)}"] if unseen else ()),
        *([f"missing are {_listed(missing)}"] if missing else ()),
    ]
    why = "; ".join(faults) or f"they must be in the same order as in training: {_listed(known)}"
    raise InputError(f"the feature names should match those that the model was trained with; {why}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
