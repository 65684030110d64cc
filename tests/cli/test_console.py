"""Where the program prints, and when it shows progress."""

from __future__ import annotations

import os
import pty
import sys

import numba
import pytest

from sparsenn.cli.console import reporting


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


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> str:
    """Compile, and report one task, with stderr on a pseudo-terminal; returns what the terminal was sent."""
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(leader, "rb", buffering=0) as shown, os.fdopen(follower, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with reporting(None) as report:
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


def test_bars_on_a_terminal_move_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch)
    assert [part for part in ("working", "infer [x]", "3 of 3") if part not in text] == []
    assert "0 of" not in text
    assert text.count("compiling kernels, once …") == 1


@pytest.mark.parametrize(("wanted", "told"), [(None, ""), (True, "compiling kernels, once …\n")])
def test_compiling_is_told_where_progress_is(
    capsys: pytest.CaptureFixture[str], wanted: bool | None, told: str
) -> None:
    with reporting(wanted):
        compile_twice()
    compile_twice()
    assert capsys.readouterr() == ("", told)
