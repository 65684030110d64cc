"""The options of the verbs that read training data, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Classes", "Labels", "Targets"]

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
