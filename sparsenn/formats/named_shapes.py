"""Several inputs or outputs of a network: their names, shapes, and columns in a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from operator import index
from typing import Any, TypeAlias

from sparsenn.errors import ShapeError, UsageError

NamedShapes: TypeAlias = dict[str, tuple[int, ...]]
"""The shape of one sample of each input or output, by name, in the order of the columns."""


def checked_shapes(shapes: Mapping[str, Any], what: str) -> NamedShapes:
    """Return names and shapes as a dictionary of their own."""
    if not isinstance(shapes, Mapping) or not shapes or not all(map(_is_name, shapes)):
        raise UsageError(
            f"the {what} are {shapes!r}; give a dictionary of names and shapes, such as {{'image': (3, 8, 8)}}"
        )
    checked: NamedShapes = {}
    for name, shape in shapes.items():
        try:
            checked[name] = tuple(map(index, shape))
        except TypeError:
            checked[name] = (0,)
        if min(checked[name], default=1) < 1:
            raise ShapeError(f"the {what} have {name!r} of shape {shape!r}; a tuple of sizes from 1 on is needed")
    return checked


def _is_name(name: Any) -> bool:
    """Return whether a name is a text that UTF-8 can hold: half of a surrogate pair is none."""
    return isinstance(name, str) and name != "" and not any("\ud800" <= letter <= "\udfff" for letter in name)


def check_names(arrays: Collection[str], known: Collection[str]) -> None:
    """Refuse names of inputs that are not those of the network's."""
    differences = {"missing": set(known).difference(arrays), "unknown": set(arrays).difference(known)}
    faults = [f"{kind} are {', '.join(sorted(map(repr, names)))}" for kind, names in differences.items() if names]
    if faults:
        raise UsageError(f"{'; '.join(faults)}; the network takes {', '.join(map(repr, known))}")


def total_width(shapes: NamedShapes) -> int:
    """Return the width of a row that holds all inputs or outputs."""
    return sum(map(prod, shapes.values()))


def named_columns(shapes: NamedShapes) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
    """Yield each name and shape, with its first column in a row and the one after its last."""
    first = 0
    for name, shape in shapes.items():
        yield name, shape, first, first + prod(shape)
        first += prod(shape)


def cut_columns(shapes: NamedShapes | None, matrix: Any) -> dict[str, Any]:
    """Return the columns of each name in a matrix of all of them, of shape (rows, ...): views where shapes allow."""
    columns, rows = named_columns(shapes or {}), matrix.shape[0]
    return {name: matrix[:, first:last].reshape(rows, *shape) for name, shape, first, last in columns}
