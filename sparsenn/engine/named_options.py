"""Functions that take options by name: what they show of them to type checkers, `inspect` and `help`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, get_type_hints

from sparsenn.backends import Machine
from sparsenn.engine.options import Options

__all__ = ["NamedOptions", "names_options"]

T = TypeVar("T", bound=Callable[..., Any])


class NamedOptions(TypedDict, total=False):
    """The fields of `Options`, as callers give them."""

    device: str
    machine: Machine | str | None
    kernel: str
    precision: str
    batch_size: int | None
    memory_limit: int | str | None
    weight_memory: int | str | None
    compaction: bool
    deduplication: bool
    merging: bool | None
    reproducible: bool


def names_options(made: T) -> T:
    """Name each option in the signature and the docstring of a function, or a class, that takes `**options`.

    Names, defaults and descriptions are those of `Options`, and types those of `NamedOptions`. The docstring's
    entry for `**options` gives way to them.

    Parameters
    ----------
    made : callable
        A function or a class whose last parameter is `**options`.

    Returns
    -------
    callable
        The same.
    """
    signature = inspect.signature(made)
    types, by_name = get_type_hints(NamedOptions), inspect.Parameter.KEYWORD_ONLY
    # a class derived from one that names them has them already
    own = [given for given in signature.parameters.values() if given.name not in {"options", *types}]
    options = inspect.signature(Options).parameters.values()
    named = [option.replace(kind=by_name, annotation=types[option.name]) for option in options]
    made.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    text, every = inspect.getdoc(made), inspect.getdoc(Options)
    if text and every:  # there are none where Python leaves docstrings out
        entries = every.partition("Parameters\n----------\n")[2].partition("\n\nRaises")[0]
        made.__doc__ = re.sub(r"^\*\*options : .*(?:\n    .*)+", lambda _: entries, text, flags=re.MULTILINE) + "\n"
    return made
