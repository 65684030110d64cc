"""Exceptions become one message and an exit code."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
import typer
from children import interrupts_ignored, interrupts_obeyed

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


def raising(error: BaseException) -> Callable[[], None]:
    def verb() -> None:
        raise error

    return verb


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
    with pytest.raises(typer.Exit) as caught:
        guarded(raising(UsageError("no")))()
    assert caught.value.exit_code == 2


def test_guarded_verb_keeps_its_own_exit() -> None:
    with pytest.raises(typer.Exit) as caught:
        guarded(raising(typer.Exit(1)))()
    assert caught.value.exit_code == 1


def test_guarded_verb_keeps_name_and_result() -> None:
    def verb(number: int) -> int:
        return number + 1

    wrapped = guarded(verb)
    assert (wrapped.__name__, wrapped(1)) == ("verb", 2)


@pytest.mark.parametrize(
    ("interrupts", "expected"), [(interrupts_obeyed, signal.SIG_DFL), (interrupts_ignored, signal.SIG_IGN)]
)
def test_at_the_end_an_interrupt_ends_at_once_unless_it_is_ignored(
    interrupts: Callable[[], AbstractContextManager[None]], expected: signal.Handlers
) -> None:
    with interrupts(), signals_as_before():
        with stopping():
            pass
        assert signal.getsignal(signal.SIGINT) is expected


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


def lost_in_a_callback() -> None:
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()


def test_a_second_signal_ends_the_process() -> None:
    with signals_as_before(), suppress(Stopped), stopping():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert {signal.getsignal(number) for number in ENDING} <= {signal.SIG_DFL, signal.SIG_IGN}


def test_what_goes_wrong_because_a_signals_exception_was_lost_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        lost_in_a_callback()
        raise KeyError("what the callback should have made")

    with signals_as_before(), stopping(), pytest.raises(typer.Exit) as caught:
        guarded(work)()
    assert caught.value.exit_code == 143
    assert capsys.readouterr() == ("", "error: terminated\n")


def test_what_a_signal_leaves_half_made_is_neither_deleted_nor_heard_of(capsys: pytest.CaptureFixture[str]) -> None:
    class Made:
        """As llvmlite's objects."""

        def __init__(self) -> None:
            signal.raise_signal(signal.SIGTERM)
            self.handle = 1

        def __del__(self) -> None:
            deleted.append(self.handle)

    class Faulty(Made):
        def __init__(self) -> None:
            pass

    deleted: list[int] = []
    with signals_as_before():
        with suppress(Stopped), stopping():
            Made()
        assert not capsys.readouterr().err
        gc.collect()
        Faulty()
        assert capsys.readouterr() == ("", "")
    assert not deleted
    next(made for made in gc.get_objects() if type(made) is Made).handle = 1  # it is there, and complains no more


def test_another_exception_that_is_lost_is_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError("lost")

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(str(lost.exc_value)))
    with signals_as_before(), stopping():
        Faulty()
    assert told == ["lost"]


def test_a_thread_beside_the_main_one_gets_no_signals() -> None:
    def work() -> None:
        with stopping():
            pass

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


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
