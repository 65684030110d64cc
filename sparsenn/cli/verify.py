"""`sparsenn challenge verify`: compare the categories of two files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsenn.cli.console import console
from sparsenn.cli.exits import ExitCode
from sparsenn.cli.files import check_files, is_hdf5

if TYPE_CHECKING:
    from sparsenn.formats import Array


def verify(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="The categories found: .tsv, or .h5 as run --output writes it.")
    ],
    truth: Annotated[
        Path, typer.Argument(metavar="TRUTH", help="The true categories: .tsv, or .h5 of a dataset or a result.")
    ],
) -> None:
    """Compare the categories of a result with the true ones.

    Exit code 0: the two are equal.
    Exit code 1: they differ.
    Exit code 2: a file cannot be read or does not hold categories.

    \b
    Examples:
      sparsenn challenge verify found.tsv neuron1024-l120-categories.tsv
      sparsenn challenge verify found.h5 problem.h5
    """
    check_files({"RESULT": result, "TRUTH": truth}, {})
    from rich.text import Text

    from sparsenn.report import compare_categories

    verdict = compare_categories(_read(result), _read(truth))
    console().print(Text(str(verdict), style="bold green" if verdict.passed else "bold red"), soft_wrap=True)
    if not verdict.passed:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _read(path: Path) -> Array:
    from sparsenn.io.challenge import tsv
    from sparsenn.io.hdf5 import dataset

    return dataset.read_categories(path) if is_hdf5(path) else tsv.read_categories(path)
