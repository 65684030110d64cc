"""The typer application, made of all verbs or of the one that is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from sparsenn import __version__
from sparsenn.cli.exits import guarded

__all__ = ["VERBS", "program"]

VERBS = (
    *("infer", "benchmark", "train", "generate", "convert", "verify", "info", "kernels", "ladder", "roofline", "tune"),
    "download",
)
"""In the order that --help lists them; each is a function of the module of its name."""


def program(verbs: Iterable[Callable[..., Any]]) -> typer.Typer:
    """Return the application with these verbs, and with `--version`.

    Typer makes the parameters of every verb that an application has, also of those that are not run.
    """
    made = typer.Typer(
        name="sparsenn",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in verbs:
        made.command()(guarded(verb))
    made.callback()(_program)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sparsenn {__version__}")
        raise typer.Exit


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
