"""Progress as people see it, on stderr: bars on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from importlib import import_module
from typing import Any, TextIO, TypeAlias

from sparsenn.printable import printable
from sparsenn.runtime.progress import (
    COMPILING,
    Progress,
    compilation_announced_by,
    has_reader,
    is_notebook,
    silent,
)
from sparsenn.runtime.spans import Span, watching

USUAL_WIDTH = 80
"""Columns where COLUMNS says 0, which stands for a width that is not known."""

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise."""

WORKING = "working"  # the description of a bar before any task begins

LINE_INTERVAL = 1.0
"""Seconds between two progress lines where there is no terminal to draw a bar on."""

NOTEBOOK_INTERVAL = 0.2
"""Seconds between two pictures of the bars in a notebook."""

Draw: TypeAlias = Callable[[str, int, int, str], None]
"""A function of a task's name, steps done, all steps, and a remark."""


@contextmanager
def reporting(wanted: bool | None) -> Iterator[Progress]:
    """Yield the progress report for the work inside.

    `wanted`: True reports in any case, by bars where somebody may read them and by lines elsewhere; False never; None
    only by bars.
    """
    is_read = has_reader(sys.stderr)
    if wanted is False or (wanted is None and not is_read):
        with compilation_announced_by(lambda: None):
            yield silent
    elif is_read:
        with drawn_progress() as draw, compilation_reported():
            yield lambda task, done, total: draw(task, done, total, "")
    else:
        with compilation_reported():
            yield _Lines(sys.stderr)


def compilation_reported() -> AbstractContextManager[None]:
    """Return a context in which a line on stderr says that kernels are compiled, once."""
    return compilation_announced_by(lambda: print(COMPILING, file=sys.stderr, flush=True))


def drawn_progress() -> AbstractContextManager[Draw]:
    """Return a context with a function that draws a bar per task; all of them vanish at the end."""
    return _notebook_bars() if is_notebook(sys.stderr) else _terminal_bars()


def shown_width(stream: TextIO) -> int | None:
    """Return the columns to fill; None to ask the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns) or USUAL_WIDTH
    return None if stream.isatty() else PIPE_WIDTH


@contextmanager
def _terminal_bars() -> Iterator[Draw]:
    """Draw on the terminal at stderr.

    The first line moves from the beginning on, whatever is done, and says what; a task has a bar, with its rate and the
    time left, once a step of it is done.
    """
    from rich.console import Console
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
    screen = Console(file=sys.stderr, width=shown_width(sys.stderr), highlight=False, markup=False, emoji=False)
    with Bars(*columns, console=screen, transient=True) as bars:
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
            bars.update(tasks[task], completed=done, total=total, status=_status(done, total, remark))

        with watching(show, "read", "plan", "prepare", "compile", "write"):
            yield draw


@contextmanager
def _notebook_bars() -> Iterator[Draw]:
    display: Any = import_module("IPython.display")
    shown = display.display(display.HTML(""), display_id=True)
    tasks: dict[str, str] = {}
    next_picture = 0.0

    def draw(task: str, done: int, total: int, remark: str) -> None:
        nonlocal next_picture
        name, status = (escape(printable(text)) for text in (task, _status(done, total, remark)))
        tasks[task] = f'<div>{name} <progress value="{done}" max="{total}"></progress> {status}</div>'
        if done >= total or time.monotonic() >= next_picture:
            next_picture = time.monotonic() + NOTEBOOK_INTERVAL
            shown.update(display.HTML("".join(tasks.values())))

    try:
        yield draw
    finally:
        shown.update(display.HTML(""))


def _status(done: int, total: int, remark: str) -> str:
    return f"{done:,} of {total:,}" + (f"  {remark}" if remark else "")


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
