"""The options of the verbs that read training data, each declared once, and refused where they do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sparsenn.cli.given import refuse_given_options

__all__ = ["Classes", "Labels", "Targets", "refuse_idle"]

_DATA = "Data"

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
Classes = Annotated[
    bool,
    typer.Option(
        "--classes",
        help="The one target column is a class, counted from 0; several are one-hot.",
        rich_help_panel=_DATA,
    ),
]


def refuse_idle(context: typer.Context, files: Iterable[Path]) -> None:
    """Refuse options that none of the files, told by their names, has a use for.

    Raises
    ------
    UsageError
        `--targets` without a CSV file, or `--classes` with IDX files alone, whose labels are classes in any case.
    """
    names = [path.name.lower().removesuffix(".gz") for path in files]
    if not any(name.endswith(".csv") for name in names):
        refuse_given_options(context, ["targets"], "goes with CSV data, which this is not")
    if all(name.endswith((".idx", "ubyte")) for name in names):
        refuse_given_options(context, ["classes"], "does nothing here, as IDX labels are classes in any case")
