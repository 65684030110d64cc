"""The options of the verbs that read training data, each declared once, and refused where they do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli.given import refuse_given_options

__all__ = ["Classes", "Inputs", "Labels", "Targets", "TargetsOrNone", "refuse_idle"]

_DATA = "Data"

Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Rows to run a model on, with or without targets: .csv or .tsv, .npy, .npz (of arrays, or a sparse "
        "matrix that SciPy saved), .h5, IDX images, FANN's text. A table as wide as the model's inputs holds no "
        "targets; of a wider one the last columns are targets (--targets). Without targets, or labels, neither loss "
        "nor accuracy is told.",
        rich_help_panel=_DATA,
    ),
]

Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels of IDX images; unless given, the file beside them, named as MNIST does.",
        rich_help_panel=_DATA,
    ),
]
Targets = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Target columns of a CSV file, the last ones.", rich_help_panel=_DATA),
]
TargetsOrNone = Annotated[
    int | None,
    typer.Option(
        "--targets",
        metavar="N",
        min=1,
        help="Target columns of a CSV or TSV file, the last ones. Unless given: none of a table that is as wide as the "
        "model's inputs, else one where the model tells classes apart, or as many as it has outputs.",
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


def refuse_idle(context: typer.Context, files: Iterable[Path], tables: tuple[str, ...] = (".csv",)) -> None:
    """Refuse options that none of the files, told by their names, has a use for.

    Parameters
    ----------
    tables : suffixes of the files that `--targets` is for.

    Raises
    ------
    UsageError
        `--targets` without a table, or `--classes` with IDX files alone, whose labels are classes in any case.
    """
    names = [path.name.lower().removesuffix(".gz") for path in files]
    if not any(name.endswith(tables) for name in names):
        kinds = " or ".join(suffix[1:].upper() for suffix in tables)
        refuse_given_options(context, ["targets"], f"goes with {kinds} data, which this is not")
    if all(name.endswith((".idx", "ubyte")) for name in names):
        refuse_given_options(context, ["classes"], "does nothing here, as IDX labels are classes in any case")
