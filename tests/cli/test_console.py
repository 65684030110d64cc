"""Where the program prints, and when it shows progress."""

from __future__ import annotations

import io
import os
import pty
import sys
import time

import numba
import pytest
from rich.table import Table

from sparsenn.cli.console import console, reporting
from sparsenn.runtime.bars import PIPE_WIDTH
from sparsenn.runtime.progress import silent
from sparsenn.runtime.spans import span


def test_no_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(None) as report:
        assert report is silent
        report("infer", 1, 1)
    assert capsys.readouterr() == ("", "")


def test_progress_asked_for_in_a_pipe_comes_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True) as report:
        for done in range(1, 1201):
            report("infer", done, 1200)
        report("write", 1, 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "infer: 1 of 1,200\ninfer: 1,200 of 1,200\nwrite: 1 of 1\n"


def compile_twice() -> None:
    """Have numba compile two functions, as if they were the package's."""
    for function in (lambda: 1, lambda: 2):
        function.__module__ = "sparsenn.of_the_package"
        numba.njit(function)()


def on_terminal(monkeypatch: pytest.MonkeyPatch, wanted: bool | None) -> str:
    """Compile, and report one task, with stderr on a pseudo-terminal; returns what the terminal was sent."""
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(leader, "rb", buffering=0) as shown, os.fdopen(follower, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with reporting(wanted) as report:
            compile_twice()
            for done in range(1, 4):
                report("infer [x]", done, 3)
        stream.write("\nEND")
        stream.flush()
        monkeypatch.undo()
        text = b""
        while b"END" not in text:
            text += shown.read(4096)
    return text.decode()


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch, None)
    assert "infer [x]" in text
    assert "3 of 3" in text
    assert text.count("compiling kernels, once …") == 1


def test_something_moves_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch, None)
    assert "working" in text
    assert "0 of" not in text


def test_what_is_done_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned() -> None:
        with span("look for equal outputs", "plan"):
            time.sleep(0.2)  # two pictures long

    monkeypatch.setattr(sys.modules[__name__], "compile_twice", planned)
    assert "look for equal outputs" in on_terminal(monkeypatch, None)


def test_no_progress_overrides_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch, False)
    assert "infer" not in text
    assert "compiling" not in text


@pytest.mark.parametrize(("wanted", "told"), [(None, ""), (True, "compiling kernels, once …\n")])
def test_compiling_is_told_where_progress_is(
    capsys: pytest.CaptureFixture[str], wanted: bool | None, told: str
) -> None:
    with reporting(wanted):
        compile_twice()
    compile_twice()
    assert capsys.readouterr() == ("", told)


def test_a_table_in_a_pipe_is_wide_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    table = Table.grid()
    table.add_row("x" * (PIPE_WIDTH - 20) + " [bold]not markup[/bold]"[:20])
    console(stream).print(table)
    assert stream.getvalue().splitlines()[0].startswith("x" * (PIPE_WIDTH - 20))
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("columns", "width"), [("0", 80), ("000", 80), ("40", 40), ("", PIPE_WIDTH), ("x", PIPE_WIDTH)]
)
def test_the_width_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console(io.StringIO()).width == width


def test_a_task_with_a_name_that_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True) as report:
        report("read \x1b[2J\nPASSED", 1, 1)
    assert capsys.readouterr().err == "read \\x1b[2J\\nPASSED: 1 of 1\n"


def test_a_stream_that_only_knows_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    table = Table("a")
    table.add_row("1 × 2")
    console(stream).print(table)
    stream.flush()
    assert b"1 ? 2" in raw.getvalue()
    assert b"|" in raw.getvalue()
