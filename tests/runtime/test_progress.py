"""The line about compiling: where somebody may read it, once."""

import io
import sys

import pytest

from sparsenn.runtime import progress
from sparsenn.runtime.progress import COMPILING, announce_compilation, compilation_announced_by


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


def test_a_closed_stream_stops_nothing(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    shown.close()
    announce_compilation()


def test_another_function_announces_in_its_block(monkeypatch):
    shown, said = Terminal(), []
    monkeypatch.setattr(sys, "stderr", shown)
    with compilation_announced_by(lambda: said.append(1)):
        announce_compilation()
        announce_compilation()
    announce_compilation()
    assert said == [1]
    assert not shown.getvalue()
