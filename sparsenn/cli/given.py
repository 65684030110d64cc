"""Options that were given, to refuse those that would do nothing."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from sparsenn.errors import UsageError

__all__ = ["given_options", "refuse_given_options"]


def given_options(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return those of the parameters that were given, as they were written; of `--x/--no-x` the one that was."""
    written = {}
    for parameter in context.command.params:
        off = context.params.get(parameter.name or "") is False and parameter.secondary_opts
        written[parameter.name] = (off or parameter.opts)[0]
    sources = {name: context.get_parameter_source(name) for name in names}
    return [written[name] for name, source in sources.items() if getattr(source, "name", "DEFAULT") != "DEFAULT"]


def refuse_given_options(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse the first of the parameters that was given though it would do nothing.

    Parameters
    ----------
    why : what follows the option in the message.

    Raises
    ------
    UsageError
        One was given; the message names it.
    """
    for option in given_options(context, names):
        raise UsageError(f"{option} {why}; leave it out")
