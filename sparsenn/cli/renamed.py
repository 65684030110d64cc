"""Names of verbs and options that have changed: the old ones are taken for one release more, and a note tells the new.

This and `sparsenn.renamed`, for values, are what knows old names. What is in it goes with the release after the next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sparsenn.printable import printable
from sparsenn.renamed import VALUES, told

__all__ = ["OPTIONS", "renewed", "tell_renamed"]

_MOVED = {
    "ladder": ("kernels", "ladder"),
    "roofline": ("kernels", "roofline"),
    "tune": ("kernels", "tune"),
}
"""Verbs, by their old names."""

_SAMPLES = {"--limit-inputs": "--samples", "--rows": "--samples"}

OPTIONS: dict[str, dict[str, str]] = {
    "infer": {
        "--limit-inputs": "--samples",
        "--no-dedup": "--no-deduplication",
        "--no-merge": "--no-merging",
    },
    "info": _SAMPLES,
    "convert": {"--limit-inputs": "--samples"},
    "benchmark": {"--rows": "--samples"},
    "generate": {"--images": "--samples", "--inputs": "--input-kind"},
    "download": {"--layers": "--depth"},
    "train": {"--checkpoint-every": "--checkpoint-seconds"},
    "kernels ladder": _SAMPLES,
    "kernels roofline": _SAMPLES,
    "kernels tune": _SAMPLES,
}
"""Options of a verb, by their old names."""

_OF_KERNELS = ("list", "ladder", "roofline", "tune", "-h", "--help")
"""What may follow the verb `kernels`; whatever else follows is meant for `kernels list`."""


def renewed(words: Sequence[str]) -> list[str]:
    """Return a command line with the names of now; each old one is told on stderr."""
    verb, rest = list(words[:1]), list(words[1:])
    if verb and verb[0] in _MOVED:
        new = _MOVED[verb[0]]
        tell_renamed(f"sparsenn {verb[0]}", f"sparsenn {' '.join(new)}")
        verb = list(new)
    elif verb == ["kernels"] and rest[:1] not in ([word] for word in _OF_KERNELS):
        verb = ["kernels", "list"]
    elif verb == ["kernels"]:
        verb, rest = ["kernels", *rest[:1]], rest[1:]
    names = OPTIONS.get(" ".join(verb), {})
    ended = False
    for number, word in enumerate(rest):
        ended = ended or word == "--"
        option, equals, value = word.partition("=")
        if option in names and not ended:
            tell_renamed(option, names[option])
            rest[number] = f"{names[option]}{equals}{value}"
        if not ended:
            _renew_value(rest, number)
    return [*verb, *rest]


def _renew_value(words: list[str], number: int) -> None:
    """Put the value of now in place of an old one, which stands in a word after its option's or in the same."""
    option, equals, value = words[number].partition("=")
    if not equals:
        option, value = words[number - 1] if number else "", words[number]
    new = VALUES.get(option.removeprefix("--"), {}).get(value)
    if option.startswith("--") and new is not None:
        tell_renamed(f"{option} {value}", f"{option} {new}")
        words[number] = f"{option}={new}" if equals else new


def tell_renamed(old: str, new: str) -> None:
    """Say on stderr that a name, or a form, has changed."""
    print(printable(f"note: {told(old, new)}"), file=sys.stderr, flush=True)
