"""Where the program prints: results to stdout, everything else, progress too, to stderr."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, TextIO

from sparsenn.runtime.bars import compilation_reported, drawn_progress, reporting, shown_width

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["compilation_reported", "console", "drawn_progress", "reporting"]


def console(stream: TextIO | None = None) -> Console:
    """Return the console for `stream`, stdout unless given."""
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader is gone")  # rich would end the program with code 1

    file = sys.stdout if stream is None else stream
    return Pipe(file=file, width=shown_width(file), highlight=False, markup=False, emoji=False)
