"""Exceptions become one message and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import typer
from children import interrupts_obeyed

from sparsenn.cli import signals
from sparsenn.cli.exits import ExitCode, guarded, report_error
from sparsenn.cli.signals import ENDING, Stopped, stopping
from sparsenn.errors import FileFormatError, UsageError

KEPT: list[list[Stopped]] = []
"""What the program never deletes either: half-made objects complain."""


@pytest.fixture(autouse=True)
def no_signal_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Stopped] = []
    KEPT.append(raised)
    monkeypatch.setattr(signals, "_raised", raised)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("no such thing"), 2, "error: no such thing\n"),
        (FileFormatError("a.tsv", "bad number", 3), 2, "error: a.tsv:3: bad number\n"),
        (FileNotFoundError(2, "No such file or directory", "x.h5"), 2, "error: x.h5: No such file or directory\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (OSError("odd"), 2, "error: odd\n"),
        (UsageError("\x1b[2Ja\nerror: b\u202e\x9b"), 2, "error: \\x1b[2Ja\\nerror: b\\u202e\\x9b\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (
            ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
            2,
            "error: a required library cannot be loaded (No module named 'matplotlib'); install it\n",
        ),
        (
            ImportError('Failure finding "libcublas.so.13":\nNo such file\n'),
            2,
            'error: a required library cannot be loaded (Failure finding "libcublas.so.13": No such file); '
            "install it: pip install -U 'cupy-cuda13x[ctk]', or the CUDA Toolkit\n",
        ),
    ],
)
def test_one_message_and_its_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(error) == code
    assert capsys.readouterr() == ("", message)


def test_memory_message_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(MemoryError("cannot allocate 80 GiB")) == 2
    shown = capsys.readouterr().err
    assert "cannot allocate 80 GiB" in shown
    assert "--memory-limit" in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (KeyError("lost"), "KeyError: 'lost'"),
        (ModuleNotFoundError("No module named 'sparsenn.lost'", name="sparsenn.lost"), "'sparsenn.lost'"),
    ],
)
def test_a_fault_of_the_program_shows_where(error: Exception, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(error) == ExitCode.FAULT
    shown = capsys.readouterr().err
    assert named in shown
    assert shown.endswith("error: a fault in sparsenn; please report it together with the lines above\n")


def test_guarded_verb_exits_with_the_code() -> None:
    def verb() -> None:
        raise UsageError("no")

    with pytest.raises(typer.Exit) as caught:
        guarded(verb)()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "error: interrupted\n"),
        (signal.SIGTERM, 143, "error: terminated\n"),
        (signal.SIGHUP, 129, "error: the terminal is closed\n"),
    ],
)
def test_a_signal_stops_what_runs_and_gives_the_code(
    number: signal.Signals, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with interrupts_obeyed(), signals_as_before():
        signal.signal(number, signal.SIG_DFL)  # under nohup, some are ignored
        with pytest.raises(Stopped) as caught, stopping():
            signal.raise_signal(number)
        assert report_error(caught.value) == code
    assert capsys.readouterr() == ("", message)


@contextmanager
def signals_as_before() -> Iterator[None]:
    """Whatever is done with signals, and with exceptions that are lost, within is undone."""
    before, hooks = {number: signal.getsignal(number) for number in ENDING}, (sys.unraisablehook, sys.excepthook)
    try:
        yield
    finally:
        sys.unraisablehook, sys.excepthook = hooks
        for number, action in before.items():
            signal.signal(number, action)
