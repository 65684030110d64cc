"""`sparsenn cache`: the caches on disk, shown or cleared."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sparsenn.cli import options
from sparsenn.cli.console import console
from sparsenn.cli.files import STDOUT, check_files, write_document
from sparsenn.errors import ResourceError, UsageError
from sparsenn.printable import printable


def info(json: options.Json = None) -> None:
    """Show the caches on disk, their sizes and their folders, and the measured choices of kernels.

    \b
    Examples:
      sparsenn cache
      sparsenn cache info
      sparsenn cache info --json -
    """
    check_files({}, {"--json": json})
    from sparsenn.report.caches import cache_record, cache_table, choices_table
    from sparsenn.report.records import to_json
    from sparsenn.runtime import choices
    from sparsenn.runtime.storage import caches

    found, entries = caches(), choices.entries()
    screen = console(sys.stderr if json == STDOUT else sys.stdout)
    screen.print(cache_table(found))
    if entries:
        screen.print(choices_table(entries))
    if json is not None:
        write_document(json, to_json({"caches": cache_record(found), "choices": entries}))


def clear(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="CACHE", help="A cache, as cache info names it; repeatable; by default, all of them."),
    ] = None,
    matching: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Remove only choices with this text in their device, network, rows or form."),
    ] = None,
) -> None:
    """Clear the caches on disk, and say what was removed.

    Only files that sparsenn made are removed, not MNIST images that you put there, nor what other programs share.
    Whatever is missing is made or measured again when it is next needed.

    \b
    Examples:
      sparsenn cache clear
      sparsenn cache clear cpu-kernels gpu-kernels
      sparsenn cache clear choices --matching H200
    """
    from sparsenn.runtime import choices
    from sparsenn.runtime.memory import shown_bytes
    from sparsenn.runtime.storage import CACHES
    from sparsenn.runtime.storage import clear as remove

    if matching is None:
        removed = remove(names or CACHES)
    elif names == [choices.FOLDER]:
        removed = (choices.clear(matching),)
    else:
        raise UsageError(f"--matching goes with one cache, {choices.FOLDER}; name it alone")
    screen = console()
    for done in removed:
        files = "file" if done.files == 1 else "files"
        message = f"{done.name}: {done.files:,} {files} removed, {shown_bytes(done.nbytes)}"
        screen.print(printable(message if done.left is None else f"{message}; {done.left}"), soft_wrap=True)
    stuck = [done for done in removed if done.left is not None and done.name != "cupy"]
    if stuck:
        raise ResourceError(f"{stuck[0].left}")
