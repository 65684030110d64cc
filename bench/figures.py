"""The page of figures: which result file, commit and command each figure of the README and of docs/ comes from.

Only the standard library is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from results_file import ResultError, ResultFile

__all__ = ["prose_sources", "recorded"]

NOT_PROSE = re.compile(
    r"^<!-- \w+:\S+[^\n]*-->\n.*?^<!-- /table -->$|^ *```.*?^ *```$|`[^`]+`|^ {4}[^\n]*$", re.DOTALL | re.MULTILINE
)
"""Generated tables, blocks of code, and code within a line."""

FIGURE = re.compile(
    r"\b\d[\d,.]*(?:(?: to | and | or )\d[\d,.]*)?\s+(?:ns|µs|ms|s|seconds?|minutes?|times as|[GTM]B/s|TeraEdges/s)\b"
    r"|\b\d[\d,.]*\s+×(?!\s+\d)"
)
"""A time, a rate or a factor; 1024 × 120 is none."""

SOURCE = re.compile(r"<!-- source: (.+?) -->")


def recorded(page: Path, results: Mapping[Path, ResultFile], shown: Iterable[tuple[Path, Path]]) -> Iterator[list[str]]:
    """Yield the cells of a table of all result files, with the pages that show each.

    Parameters
    ----------
    page : the page that the table stands on; links lead from there.
    results : result files by path.
    shown : pages, and the path of a result file whose figures each shows.
    """
    yield ["result file", "shown on", "commit", "command that recorded it"]
    pages = sorted(set(shown))
    for path, result in results.items():
        name = f"{path.parent.name}/{path.stem}"
        places = [_link(page, place, place.stem) for place, file in pages if file == path]
        command = f"`{result.command}`" if result.command else "–"
        yield [_link(page, path, name), ", ".join(places) or "–", f"{result.commit[:10]}, {result.date[:10]}", command]


def prose_sources(page: Path, root: Path, pages: Iterable[Path]) -> Iterator[list[str]]:
    """Yield the cells of a table of figures in prose, each with the files that its paragraph names as their source.

    Raises
    ------
    ResultError
        A paragraph has a figure and names no source, or names one that is not there.
    """
    yield ["page", "figures in prose", "source"]
    for place in pages:
        for paragraph in re.split(r"\n\s*\n", NOT_PROSE.sub("", place.read_text(encoding="utf-8"))):
            figures = [" ".join(figure.split()) for figure in FIGURE.findall(SOURCE.sub("", paragraph))]
            named = SOURCE.search(paragraph)
            where = place.relative_to(root).as_posix()
            if not figures:
                if named:
                    raise ResultError(f"{where}: {named[0]} in a paragraph without a figure; remove it")
                continue
            if named is None:
                raise ResultError(
                    f"{where}: {figures[0]!r} is in no generated table; name the file it comes from in its paragraph, "
                    "<!-- source: FILE -->, or leave it out"
                )
            files = [root / name for name in named[1].split()]
            if lost := [file for file in files if not file.exists()]:
                raise ResultError(f"{where}: the source {lost[0].relative_to(root).as_posix()} does not exist")
            links = [_link(page, file, file.relative_to(root).as_posix()) for file in files]
            yield [_link(page, place, place.stem), "; ".join(figures), ", ".join(links)]


def _link(page: Path, target: Path, text: str) -> str:
    if target.suffix == ".md" and target.parent != page.parent:
        return text  # the site has no such page
    return f"[{text}]({Path(os.path.relpath(target, page.parent)).as_posix()})"
