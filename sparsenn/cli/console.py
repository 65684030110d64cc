"""Where the program prints: results to stdout, everything else, progress too, to stderr."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from sparsenn.printable import printable
from sparsenn.runtime.progress import COMPILING, Progress, compilation_announced_by, silent
from sparsenn.runtime.spans import Span, watching

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["compilation_reported", "console", "drawn_progress", "reporting"]

USUAL_WIDTH = 80
"""Columns where COLUMNS says 0, which stands for a width that is not known."""

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise."""

WORKING = "working"
"""The description of a bar before any task begins."""

LINE_INTERVAL = 1.0
"""Seconds between two progress lines where there is no terminal to draw a bar on."""


def console(stream: TextIO | None = None) -> Console:
    """Return the console for `stream`, stdout unless given."""
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader is gone")  # rich would end the program with code 1

    file = sys.stdout if stream is None else stream
    return Pipe(file=file, width=_width(file), highlight=False, markup=False, emoji=False)


def _width(file: TextIO) -> int | None:
    """Return the columns to fill; None to ask the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns) or USUAL_WIDTH
    return None if file.isatty() else PIPE_WIDTH


@contextmanager
def reporting(wanted: bool | None) -> Iterator[Progress]:
    """Yield the progress report for the work inside.

    Parameters
    ----------
    wanted : True reports in any case, a bar on a terminal and lines elsewhere; False never; None only on a terminal.
    """
    terminal = sys.stderr.isatty()
    if wanted is False or (wanted is None and not terminal):
        with compilation_announced_by(lambda: None):
            yield silent
    elif terminal:
        with drawn_progress() as draw:
            yield lambda task, done, total: draw(task, done, total, "")
    else:
        with compilation_reported():
            yield _Lines(sys.stderr)


def compilation_reported() -> AbstractContextManager[None]:
    """Return a context in which a line on stderr says that kernels are compiled, once."""
    return compilation_announced_by(lambda: print(COMPILING, file=sys.stderr, flush=True))


@contextmanager
def drawn_progress() -> Iterator[Callable[[str, int, int, str], None]]:
    """Yield a function that draws a bar per task on the terminal at stderr: (name, steps done, all steps, remark).

    The first line moves from the beginning on, whatever is done, and says what; a task has a bar, with its rate and the
    time left, once a step of it is done. All of it vanishes at the end.
    """
    from rich.progress import BarColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s")

    tasks: dict[str, TaskID] = {}
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.fields[status]}", markup=False),
        Rate(""),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console(sys.stderr), transient=True) as bars, compilation_reported():
        now = bars.add_task(WORKING, total=None, status="")

        @contextmanager
        def show(span: Span) -> Iterator[None]:
            bars.update(now, description="compile kernels" if span.category == "compile" else printable(span.name))
            yield
            bars.update(now, description=WORKING)

        def draw(task: str, done: int, total: int, remark: str) -> None:
            if done <= 0:
                return
            if task not in tasks:
                tasks[task] = bars.add_task(printable(task), total=total, status="")
            status = f"{done:,} of {total:,}" + (f"  {remark}" if remark else "")
            bars.update(tasks[task], completed=done, total=total, status=status)

        with watching(show, "read", "plan", "prepare", "compile", "write"):
            yield draw


class _Lines:
    """Progress as lines of text: the end of each task, and at most one line a second before it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now >= self._next:
            self._next = now + LINE_INTERVAL
            print(f"{printable(task)}: {done:,} of {total:,}", file=self._stream, flush=True)
