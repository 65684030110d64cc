"""How the program ends: exit codes, and the one place where exceptions become messages."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import wraps
from typing import NoReturn, ParamSpec, TextIO, TypeVar

from sparsenn.cli.signals import Stopped, end_at_once, stopped
from sparsenn.errors import SparseNNError
from sparsenn.printable import printable

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """The exit codes of the program: for faults as in sysexits.h; for signals 128 and the signal, as in shells."""

    DONE = 0
    VERIFICATION_FAILED = 1
    BAD_INPUT = 2
    FAULT = 70
    HUNG_UP = 129
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


_STOPPED = {ExitCode.HUNG_UP: "the terminal is closed", ExitCode.TERMINATED: "terminated"}
"""What is said of a signal, by the exit code; of all others that the program was interrupted."""


def guarded(verb: Callable[P, R]) -> Callable[P, R]:
    """Wrap a verb so that whatever it raises becomes a message and an exit code."""

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        import typer

        try:
            return verb(*args, **kwargs)
        except typer.Exit:
            raise
        except BaseException as error:
            raise typer.Exit(report_error(error)) from None

    return run


def report_error(error: BaseException) -> int:
    """Say on stderr what went wrong and return the exit code; only a fault in sparsenn itself shows a traceback.

    Whatever goes wrong after a signal has come that asks the program to end, that signal is the reason.
    """
    error = stopped() or error
    code, message = ExitCode.BAD_INPUT, _message(error)
    if isinstance(error, BrokenPipeError):
        return int(ExitCode.READER_GONE)
    if isinstance(error, KeyboardInterrupt | Stopped):
        end_at_once()
        code = ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode(128 + error.number)
        message = _STOPPED.get(code, "interrupted")
    elif message is None:
        code, message = ExitCode.FAULT, "a fault in sparsenn; please report it together with the lines above"
    with suppress(OSError):
        if code == ExitCode.FAULT:
            traceback.print_exception(error)
        print(f"error: {printable(message)}", file=sys.stderr, flush=True)
    return int(code)


def _message(error: BaseException) -> str | None:
    if isinstance(error, SparseNNError):
        return str(error)
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({error or 'no details'}); "
            "try a lower --memory-limit or --batch-size, or fewer rows"
        )
    if isinstance(error, ImportError) and not (error.name or "").startswith("sparsenn"):
        source = ": pip install -U 'cupy-cuda13x[ctk]', or the CUDA Toolkit" if "libcu" in str(error) else ""
        return f"a required library cannot be loaded ({' '.join(str(error).split())}); install it{source}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}"
    return None


def prepare_streams() -> None:
    """Make stdout and stderr safe to write to: present, and never failing on a character they cannot encode."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        stream: TextIO = getattr(sys, name)
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]


def finish(code: int) -> int:
    """Flush stdout while a failure can still be reported, and return the exit code of the whole run."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _abandon_stdout()
        return code if code == ExitCode.BAD_INPUT else report_error(error)  # perhaps this one, already reported
    if code == ExitCode.READER_GONE:
        _abandon_stdout()
    return code


def leave(code: int) -> NoReturn:
    """End the process with an exit code, once what is registered for its end has run and its streams are flushed.

    The interpreter's own end would take all modules apart first, object by object, for a third of a second.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _abandon_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter fails once more when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
