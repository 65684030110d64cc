"""The command line: one module a verb, which parses, calls and prints. Nothing is computed here."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, NoReturn, TextIO

from sparsenn.cli.exits import ExitCode, finish, leave, prepare_streams, report_error
from sparsenn.cli.signals import Stopped, stopping
from sparsenn.cli.startup import begin
from sparsenn.printable import printable

if TYPE_CHECKING:
    import typer

__all__ = ["main", "run"]


def run() -> NoReturn:
    """Run the program as `main` does, and end the process with its exit code."""
    begin()
    leave(main())


def main() -> int:
    """Run the program with the arguments in `sys.argv`; returns the exit code.

    The codes are 0: done, and verified where there was a truth; 1: verification failed; 2: bad usage or bad input;
    130: interrupted; 143: terminated; 129: the terminal was closed; 141: whoever read the output stopped reading; 70: a
    fault in sparsenn itself.
    """
    prepare_streams()
    warnings.showwarning = _show_warning
    try:
        with stopping():
            code = _exit_code()
    except Stopped as stopped:  # while an error was reported
        code = report_error(stopped)
    return finish(code)


def _exit_code() -> int:
    try:
        words = sys.argv[1:]
        _application(words)(words)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException as error:
        return report_error(error)
    return int(ExitCode.DONE)


def _application(words: list[str]) -> typer.Typer:
    """Return the application with the verb that a command line begins with; with all verbs if it begins with none."""
    from sparsenn.cli.program import program, verb_of

    verb = verb_of(words)
    if verb is not None:
        return program([verb])
    from sparsenn.cli.app import app

    return app


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Say a warning's message on stderr; where in the code it arose is of no use to users."""
    print(f"warning: {printable(str(message))}", file=sys.stderr, flush=True)
