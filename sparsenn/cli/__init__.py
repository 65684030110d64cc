"""The command line: one module a verb, which parses, calls and prints. Nothing is computed here."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

from sparsenn.cli.exits import ExitCode, finish, prepare_streams, report_error

__all__ = ["main"]


def main() -> int:
    """Run the program with the arguments in `sys.argv`; returns the exit code.

    The codes are 0: done, and verified where there was a truth; 1: verification failed; 2: bad usage or bad input;
    130: interrupted; 141: whoever read the output stopped reading; 70: a fault in sparsenn itself.
    """
    prepare_streams()
    warnings.showwarning = _show_warning
    try:
        from sparsenn.cli.app import app

        app()
        code = int(ExitCode.DONE)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException as error:
        code = report_error(error)
    return finish(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Say a warning's message on stderr; where in the code it arose is of no use to users."""
    print(f"warning: {message}", file=sys.stderr, flush=True)
