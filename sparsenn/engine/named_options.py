"""Functions that take options by name: what they show of them to type checkers, `inspect` and `help`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, get_type_hints

from sparsenn.backends import Machine
from sparsenn.engine.options import Options

__all__ = ["DevicesOptions", "NamedOptions", "StreamOptions", "names_options", "names_options_of"]

T = TypeVar("T", bound=Callable[..., Any])


class _CommonOptions(TypedDict, total=False):
    kernel: str
    precision: str
    batch_size: int | None
    weight_memory: int | str | None
    compaction: bool
    deduplication: bool
    merging: bool | None
    reproducible: bool
    check_finite: bool


class DevicesOptions(_CommonOptions, total=False):
    """The fields of `Options`, as callers give them who name several devices."""

    memory_limit: int | str | None


class StreamOptions(_CommonOptions, total=False):
    """The fields of `Options`, as callers give them who limit the memory of a whole run."""

    device: str
    machine: Machine | str | None


class NamedOptions(StreamOptions, total=False):
    """The fields of `Options`, as callers give them."""

    memory_limit: int | str | None


def names_options_of(kind: type) -> Callable[[T], T]:
    """Return a decorator that names options in the signature and the docstring of what takes `**options`.

    Names, defaults and descriptions are those of `Options`. The docstring's entry for `**options` gives way to them.

    Parameters
    ----------
    kind : type
        The dictionary of the options, with their types.

    Returns
    -------
    callable
        Takes a function or a class whose last parameter is `**options`, and returns it.
    """

    def names(made: T) -> T:
        signature, types = inspect.signature(made), get_type_hints(kind)
        # a class derived from one that names them has them already
        own = [given for given in signature.parameters.values() if given.name not in {"options", *types}]
        options = [option for option in inspect.signature(Options).parameters.values() if option.name in types]
        by_name = inspect.Parameter.KEYWORD_ONLY
        named = [option.replace(kind=by_name, annotation=types[option.name]) for option in options]
        made.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        text = inspect.getdoc(made)
        if text:  # there is none where Python leaves docstrings out
            entries = "\n".join(_entry(option.name) for option in options)
            made.__doc__ = re.sub(r"^\*\*options : .*(?:\n    .*)+", lambda _: entries, text, flags=re.MULTILINE) + "\n"
        return made

    return names


names_options = names_options_of(NamedOptions)
"""Names all options in the signature and the docstring of a function, or a class, that takes `**options`."""


def _entry(name: str) -> str:
    """Return what the docstring of `Options` says of one."""
    found = re.search(rf"^{name} : .*(?:\n    .*)+", inspect.getdoc(Options) or "", flags=re.MULTILINE)
    return found[0] if found else ""
