#!/usr/bin/env python3
"""Record a table, as ./tools/bench TABLE [OPTION ...] does; with --help, its options.

Each case of the table is one benchmark of `bench_cells.py`. Its outputs are checked before it is timed; a case that
fails costs the others nothing. The result file is written after each case. Options of pytest-benchmark are passed on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from recorders import RECORDERS
from results_file import ROOT, Column, ResultError, commit_of_tree, read_results, results_path, write_results
from timing import Timer

from sparsenn.errors import SparseNNError

__all__ = ["Case", "Row", "Run", "Table", "WrongAnswerError", "cases_of", "main", "run_of"]

HERE = Path(__file__).resolve().parent

DATA = Path(os.environ.get("SPARSENN_TEST_DATA") or ROOT.parent / "shared" / "data")
"""Where data is looked for: the folders abalone, mnist, networks and the official network."""

Row = dict[str, Any]


class WrongAnswerError(Exception):
    """An answer is not what it should be."""


@dataclass(frozen=True)
class Case:
    """A line of a table.

    Parameters
    ----------
    name : names it on the command line.
    columns : what its row holds before anything is measured: network, rows, precision and the like.
    measure : checks and times it; returns the rest of its row, or of several rows. It raises `WrongAnswerError` where
        an answer is wrong, and `FileNotFoundError` or `ImportError` where data or a library is not there.
    """

    name: str
    columns: Row
    measure: Callable[[Run], Row | Iterable[Row]]

    def __str__(self) -> str:
        return self.name


def cases_of(measure: Callable[..., Any], keys: str, values: Iterable[tuple[Any, ...]]) -> Iterator[Case]:
    """Yield a case for each tuple of values, which name it, are its columns, and are what `measure` takes before a run.

    Parameters
    ----------
    keys : of the columns, separated by blanks.
    """
    for each in values:
        name = "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in each)
        yield Case(name, dict(zip(keys.split(), each, strict=True)), partial(measure, *each))


@dataclass(frozen=True)
class Table:
    """A table of results.

    Parameters
    ----------
    title : a line, or made of options and rows.
    columns : key in each row, heading, and format string.
    cases : returns the cases that options select.
    notes : lines below the table.
    options : defaults of the table's own options, which the result file states; a list takes several values.
    configuration : returns what the result file states besides these.
    order : the key that rows are sorted by; the order of cases if None.
    device : the default of --device, if the table has it.
    """

    title: str | Callable[[argparse.Namespace, Sequence[Row]], str]
    columns: Sequence[tuple[str, ...]]
    cases: Callable[[argparse.Namespace], Iterable[Case]]
    notes: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    configuration: Callable[[argparse.Namespace], Row] = lambda options: {}
    order: Callable[[Row], Any] | None = None
    device: str | None = None


@dataclass
class Run:
    """A table that is being recorded.

    Parameters
    ----------
    case, timer : the case in hand, and what times it.
    rows, notes : recorded so far; notes say which cases are left out.
    """

    name: str
    table: Table
    options: argparse.Namespace
    case: Case | None = None
    timer: Timer = field(default_factory=Timer)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        is_default = not self.table.device or self.options.device == self.table.device
        suffix = "" if is_default else f"-{self.options.device}"
        self.path = results_path(f"{self.name}{suffix}", folder=self.options.machine)
        if self.options.add and self.path.is_file():
            before = read_results(self.path)
            self.rows = list(before.rows) if before.commit == commit_of_tree() else []

    def cases(self) -> list[Case]:
        """Return the cases that are to be recorded.

        Raises
        ------
        ValueError
            A word of --only names no case.
        """
        cases, words = list(self.table.cases(self.options)), self.options.only or ()
        for word in words:
            if not any(_is_named(case, word) for case in cases):
                raise ValueError(f"no case is called {word}; there are {', '.join(map(str, cases))}")
        recorded = {row["key"] for row in self.rows}
        wanted = [case for case in cases if not words or any(_is_named(case, word) for word in words)]
        return [case for case in wanted if case.name not in recorded]

    def record(self, case: Case, timer: Timer) -> None:
        """Measure a case and write the result file."""
        self.case, self.timer = case, timer
        if time.monotonic() - self.began > self.options.limit:
            self._leave_out("time was up")
        try:
            found = case.measure(self)
            rows = [{"key": case.name} | case.columns | row for row in ([found] if isinstance(found, dict) else found)]
        except (FileNotFoundError, ImportError) as error:
            self._leave_out(str(error))
        finally:
            _free_memory()
        self.rows += rows
        for row in rows:
            print("  ".join(Column(*column).show(row.get(column[0])) for column in self.table.columns), flush=True)
        self.write()

    def note(self, text: str) -> None:
        """Add a note on the case in hand."""
        self.notes.append(f"{self.case}: {text}.")

    def _leave_out(self, reason: str) -> None:
        self.note(f"left out: {reason}")
        if self.rows:
            self.write()
        pytest.skip(reason)

    def write(self) -> None:
        """Write the result file."""
        table, options = self.table, self.options
        rows = sorted(self.rows, key=table.order) if table.order else self.rows
        write_results(
            self.path,
            table=self.name,
            title=table.title(options, rows) if callable(table.title) else table.title,
            columns=table.columns,
            rows=rows,
            configuration={name: getattr(options, name) for name in table.options} | table.configuration(options),
            notes=[*table.notes, *dict.fromkeys(self.notes)],
        )


class Plugin:
    """Gives `bench_cells.py` its cases."""

    def __init__(self, run: Run, cases: Sequence[Case]) -> None:
        self.run, self.cases = run, cases

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one benchmark of each case."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=map(str, self.cases))

    @pytest.fixture(name="run")
    def run_of_table(self) -> Run:
        """The table in hand."""
        return self.run


def run_of(words: Sequence[str]) -> tuple[Run, list[Case], list[str]]:
    """Return the run of a table with options, its cases, and the words that are left for pytest-benchmark.

    Raises
    ------
    SystemExit
        The words are not as they should be; code 2.
    """
    name = words[0] if words else ""
    if name not in RECORDERS:
        print(f"bench: unknown table {name!r}; there are {', '.join(RECORDERS)}", file=sys.stderr)
        raise SystemExit(2)
    table = _table(name)
    parser = argparse.ArgumentParser(prog=f"tools/bench {name}", description=f"Needs: {RECORDERS[name][1]}")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="record the cases with these names or beginnings")
    parser.add_argument("--limit", type=float, default=3600.0, help="begin no case after this time in seconds")
    parser.add_argument("--add", action="store_true", help="add to the cases that the same commit recorded")
    parser.add_argument("--data", type=Path, default=DATA, help="folder that holds mnist, networks and the like")
    if table.device:
        parser.add_argument("--device", choices=("cuda", "cpu"), default=table.device)
    for option, default in table.options.items():
        several = isinstance(default, list)
        kind = type(default[0]) if several and default else int if several else type(default)
        type_of = count if kind is int else kind
        parser.add_argument(f"--{option}", nargs="+" if several else None, type=type_of, default=default)
    options, rest = parser.parse_known_args(words[1:])
    try:
        run = Run(name, table, options)
        return run, run.cases(), rest
    except (ValueError, ResultError, SparseNNError) as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a table; return the exit code: 0 recorded, 1 a case failed or none was recorded, 2 bad usage."""
    run, cases, rest = run_of(sys.argv[1:] if arguments is None else arguments)
    settings = ["-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE), "-q", "--no-header", "--capture=no"]
    code = pytest.main(
        [*settings, "--benchmark-quiet", str(HERE / "bench_cells.py"), *rest], plugins=[Plugin(run, cases)]
    )
    if not run.rows:
        print("bench: no case was recorded", file=sys.stderr)
        return 1
    print(run.path)
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


def count(text: str) -> int:
    """Return a number of things that an option takes: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _table(name: str) -> Table:
    return import_module(RECORDERS[name][0]).TABLES[name]  # type: ignore[no-any-return]


def _is_named(case: Case, word: str) -> bool:
    return case.name == word or case.name.startswith((f"{word}-", f"{word},"))


def _free_memory() -> None:
    """Give a GPU's memory back between cases."""
    if (cupy := sys.modules.get("cupy")) is not None and cupy.cuda.is_available():
        cupy.get_default_memory_pool().free_all_blocks()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
