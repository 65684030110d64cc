"""The typer application: all verbs, and `--version`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsenn import __version__
from sparsenn.cli.convert import convert
from sparsenn.cli.download import download
from sparsenn.cli.exits import guarded
from sparsenn.cli.generate import generate
from sparsenn.cli.infer import infer
from sparsenn.cli.info import info
from sparsenn.cli.kernels import kernels
from sparsenn.cli.ladder import ladder
from sparsenn.cli.roofline import roofline
from sparsenn.cli.train import train
from sparsenn.cli.tune import tune
from sparsenn.cli.verify import verify

__all__ = ["app"]

app = typer.Typer(
    name="sparsenn",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for verb in (infer, train, generate, convert, verify, info, kernels, ladder, roofline, tune, download):
    app.command()(guarded(verb))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparsenn {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Exact and fast inference for sparse deep neural networks.

    \b
    Examples:
      sparsenn infer radixnet-1024x120     run and verify the smallest problem
      sparsenn train digits.csv --classes --hidden 64 --output model.h5
      sparsenn kernels                     list what --kernel can be
      sparsenn infer --help                show all options of a verb
    """
