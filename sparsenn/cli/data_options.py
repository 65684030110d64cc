"""The options of the verbs that read tables and other data, and what their texts mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.errors import UsageError

if TYPE_CHECKING:
    from sparsenn.formats import Array, Scaling

TABLES = (".csv", ".tsv", ".parquet")  # suffixes of tables: files that have columns


Factor = Annotated[
    str | None,
    typer.Option(metavar="X", help="Multiply inputs by 1/255, say, or by a number per column or channel."),
]
Mean = Annotated[str | None, typer.Option(metavar="X", help="Then subtract this; likewise.")]
Deviation = Annotated[str | None, typer.Option(metavar="X", help="Then divide by this; likewise.")]


def is_table(path: Path) -> bool:
    """Return whether a file's name says that it has columns."""
    return path.name.lower().removesuffix(".gz").endswith(TABLES)


def check_table(option: str, *files: Path | None) -> None:
    """Refuse an option of tables where no file is a table."""
    if not any(path is not None and is_table(path) for path in files):
        raise UsageError(f"{option} goes with CSV, TSV or Parquet data, which this is not; leave it out")


def scaling_from(factor: str | None, mean: str | None, deviation: str | None) -> Scaling | None:
    """Return the scaling that the options ask for; None where they ask for none."""
    if factor is None and mean is None and deviation is None:
        return None
    from sparsenn.formats import Scaling

    return Scaling(
        _numbers("--factor", factor or "1"), _numbers("--mean", mean or "0"), _numbers("--deviation", deviation or "1")
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
