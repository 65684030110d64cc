"""The options of the verbs that read training data, each declared once, and refused where they do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli.given import refuse_given_options
from sparsenn.errors import UsageError

if TYPE_CHECKING:
    from sparsenn.formats import Array, Scaling

__all__ = [
    "TABLES",
    "Classes",
    "Deviation",
    "Factor",
    "Inputs",
    "Labels",
    "Mean",
    "TargetsOrNone",
    "refuse_idle",
    "scaling_from",
]

TABLES = (".csv", ".tsv", ".parquet")
"""Suffixes of tables: what has columns."""

_DATA = "Data"

Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Samples to run a model on, with or without targets: .csv, .tsv or .parquet, .npy, .npz (arrays, or a "
        "sparse matrix saved by SciPy), .mtx, .h5, IDX images. A table is as wide as the model's inputs, "
        "and holds no targets unless --targets says so, or the model knows its columns by name. "
        "Without targets or labels, neither loss nor accuracy is reported.",
        rich_help_panel=_DATA,
    ),
]

Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels of IDX images; by default, the file beside them, named as for MNIST.",
        rich_help_panel=_DATA,
    ),
]
Factor = Annotated[
    str | None,
    typer.Option(
        "--scale",
        metavar="X",
        help="Multiply the inputs by this number, such as 1/255, or by one per column or channel, separated by commas. "
        "Bytes of IDX images are scaled by 1/255 unless it is given. A model that was trained on scaled inputs scales "
        "them itself.",
        rich_help_panel=_DATA,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="X", help="Subtract this number, or one per column or channel, after --scale.", rich_help_panel=_DATA
    ),
]
Deviation = Annotated[
    str | None,
    typer.Option(
        "--std",
        metavar="X",
        help="Divide by this number, or by one per column or channel, after --mean.",
        rich_help_panel=_DATA,
    ),
]
TargetsOrNone = Annotated[
    int | None,
    typer.Option(
        "--targets",
        metavar="N",
        min=1,
        help="Number of target columns of a table, the last ones. By default none, but those that the model "
        "knows by name.",
        rich_help_panel=_DATA,
    ),
]
Classes = Annotated[
    bool,
    typer.Option(
        "--classes",
        help="The one target column is a class, counted from 0; several are one-hot.",
        rich_help_panel=_DATA,
    ),
]


def refuse_idle(context: typer.Context, files: Iterable[Path], of_tables: Iterable[str] = ("targets",)) -> None:
    """Refuse options that none of the files, by their names, has a use for.

    Parameters
    ----------
    of_tables : names of the parameters that only tables have a use for.

    Raises
    ------
    UsageError
        An option of tables without a table, or `--classes` with IDX files alone, whose labels are classes in any case.
    """
    names = [path.name.lower().removesuffix(".gz") for path in files]
    if not any(name.endswith(TABLES) for name in names):
        refuse_given_options(context, of_tables, "goes with CSV, TSV or Parquet data, which this is not")
    if all(name.endswith((".idx", "ubyte")) for name in names):
        refuse_given_options(context, ["classes"], "does nothing here, as IDX labels are classes in any case")


def scaling_from(factor: str | None, mean: str | None, deviation: str | None) -> Scaling | None:
    """Return the scaling that the options ask for; None where they ask for none.

    Raises
    ------
    UsageError
        One is no number or fraction, nor several separated by commas; or it cannot be a scaling's.
    """
    if factor is None and mean is None and deviation is None:
        return None
    from sparsenn.formats import Scaling

    return Scaling(
        _numbers("--scale", factor or "1"), _numbers("--mean", mean or "0"), _numbers("--std", deviation or "1")
    )


def _numbers(option: str, text: str) -> Array:
    import numpy as np

    try:
        return np.array([_number(part) for part in text.split(",")])
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        remedy = "take a number or a fraction, such as 1/255, or one per column or channel, separated by commas"
        raise UsageError(f"{option} {text}: {remedy}") from error


def _number(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below or 1)
