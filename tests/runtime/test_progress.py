"""Progress from Python, and the line about compiling: where somebody may read them."""

import io
import sys
from types import ModuleType

import pytest

from sparsenn.errors import UsageError
from sparsenn.runtime import bars, progress
from sparsenn.runtime.progress import COMPILING, announce_compilation, compilation_announced_by, shown_progress, silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Notebook(io.StringIO):
    """What a notebook's kernel has in the place of stderr."""


Notebook.__module__ = "ipykernel.iostream"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(progress, "_announced", False)


@pytest.mark.parametrize(("stream", "lines"), [(Terminal, 1), (Notebook, 1), (io.StringIO, 0)])
def test_compilation_is_announced_once_where_somebody_reads(stream, lines, monkeypatch):
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    for _ in range(3):
        announce_compilation()
    assert shown.getvalue() == lines * f"{COMPILING}\n"


def test_another_function_announces_in_its_block(monkeypatch):
    shown, said = Terminal(), []
    monkeypatch.setattr(sys, "stderr", shown)
    with compilation_announced_by(lambda: said.append(1)):
        announce_compilation()
        announce_compilation()
    announce_compilation()
    assert said == [1]
    assert not shown.getvalue()


def report_all(wanted, steps=3):
    with shown_progress(wanted) as report:
        for done in range(1, steps + 1):
            report("rows <i>", done, steps)
    return report


def test_a_function_of_the_callers_own_is_called():
    calls = []
    report_all(lambda *call: calls.append(call), 2)
    assert calls == [("rows <i>", 1, 2), ("rows <i>", 2, 2)]


def test_nothing_is_shown_in_a_pipe(capsys):
    assert report_all(None) is silent
    assert report_all(False) is silent
    assert capsys.readouterr() == ("", "")
    report_all(True)
    assert "rows <i>: 3 of 3" in capsys.readouterr().err


@pytest.mark.parametrize("wanted", ["yes", 1, []])
def test_other_progress_is_refused(wanted):
    with pytest.raises(UsageError, match="give True, False, or a function"):
        report_all(wanted)


def test_only_longer_work_shows_bars_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    report_all(None)
    assert shown.getvalue() == ""
    monkeypatch.setattr(progress, "UNSHOWN_SECONDS", 0)
    report_all(None)
    assert "3 of 3" in shown.getvalue()
    assert progress._bars.acquire(blocking=False)
    progress._bars.release()


def notebook(monkeypatch):
    """Have stderr be a notebook's; return the list of texts that its cell shows, one after the other."""
    shown = []

    class Handle:
        def update(self, text):
            shown.append(text)

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, lambda text, display_id: shown.append(text) or Handle()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(sys, "stderr", Notebook())
    return shown


def test_bars_in_a_notebook_vanish_at_the_end(monkeypatch):
    cell = notebook(monkeypatch)
    monkeypatch.setattr(bars, "NOTEBOOK_INTERVAL", 0)
    report_all(True)
    assert (cell[0], cell[-1]) == ("", "")
    assert cell[-2] == '<div>rows &lt;i&gt; <progress value="3" max="3"></progress> 3 of 3</div>'
    assert len(cell) == 5
