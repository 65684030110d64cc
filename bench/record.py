#!/usr/bin/env python3
"""Record a table, as ./tools/bench TABLE [OPTION ...] does; with --help, its options.

Each cell of the table is one benchmark of `bench_cells.py`. Its outputs are checked before it is timed; a cell that
fails costs the others nothing. The result file is written after each cell. Options of pytest-benchmark are passed on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from recorders import RECORDERS
from results_file import Column, ResultError, commit_of_tree, read_results, results_path, write_results
from timing import Timer

from sparsenn.errors import SparseNNError

__all__ = ["Row", "Run", "Table", "WrongAnswerError", "count", "main", "run_of", "set_speedups"]

HERE = Path(__file__).resolve().parent

Row = dict[str, Any]


class WrongAnswerError(Exception):
    """An answer is not what it should be."""


@dataclass(frozen=True)
class Table:
    """A table of results: its cells, and how each is measured.

    Parameters
    ----------
    title : a line, or made of options and rows.
    columns : key in each row, heading, and format string.
    cells : returns the cells that options select; `str` of a cell names it.
    measure : checks and times a cell; returns its rows. It raises `WrongAnswerError` where an answer is wrong, and
        `FileNotFoundError` or `ImportError` where data or a library is not there.
    notes : lines below the table, or made of options and rows.
    options : adds the table's own options.
    configuration : names of options that the result file states, or made of options and the run's shared values.
    relate : sets what rows say of each other, such as speedups, whenever there are more.
    order : the key that rows are sorted by; the order of cells if None.
    fault : returns why a recorded row does not satisfy, None where it does.
    device : the default of --device, if the table has it.
    file : returns what follows the table's name in the name of the result file; -<device> of another device if None.
    also : names of further tables of the module, which show the same rows; their files are written, too.
    limit : default of --limit, in seconds.
    figure : key of the figure whose history the file keeps; a table's first column with a unit of time if None.
    """

    title: str | Callable[[argparse.Namespace, Sequence[Row]], str]
    columns: Sequence[tuple[str, ...]]
    cells: Callable[[argparse.Namespace], Iterable[Any]]
    measure: Callable[[Any, Run], Row | Iterable[Row]]
    notes: Sequence[str] | Callable[[argparse.Namespace, Sequence[Row]], Sequence[str]] = ()
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    configuration: Sequence[str] | Callable[[Run], Mapping[str, Any]] = ()
    relate: Callable[[Sequence[Row]], None] = lambda rows: None
    order: Callable[[Row], Any] | None = None
    fault: Callable[[Row], str | None] = lambda row: None
    device: str | None = None
    file: Callable[[argparse.Namespace], str] | None = None
    also: Sequence[str] = ()
    limit: float = 3600.0
    figure: str | None = None


def set_speedups(group: str, name: str, base: str, figure: str, rows: Sequence[Row]) -> None:
    """Set the speedup of each row beside the one of its group that is called `base`; None where that is not there.

    Parameters
    ----------
    group, name, figure : keys of what rows of a group have in common, of a row's name, and of its time.
    """
    bases = {row[group]: row[figure] for row in rows if row[name] == base}
    for row in rows:
        row["speedup"] = bases[row[group]] / row[figure] if row[group] in bases else None


@dataclass
class Run:
    """A table that is being recorded.

    Parameters
    ----------
    timer : times the cell in hand.
    rows, notes : recorded so far; notes say which cells are left out.
    shared : values that cells share, such as the peaks of the device.
    stack : closed when all cells are recorded.
    """

    name: str
    table: Table
    options: argparse.Namespace
    timer: Timer = field(default_factory=Timer)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        device = self.options.device if self.table.device else None
        suffix = "" if device == self.table.device else f"-{device}"
        suffix = self.table.file(self.options) if self.table.file else suffix
        self.path = results_path(f"{self.name}{suffix}", folder=self.options.machine)
        if self.options.add and self.path.is_file():
            before = read_results(self.path)
            self.rows = list(before.rows) if before.commit == commit_of_tree() else []

    def cells(self) -> list[Any]:
        """Return the cells that are to be recorded.

        Raises
        ------
        ValueError
            A word of --only names no cell.
        """
        cells = list(self.table.cells(self.options))
        for word in self.options.only or ():
            if not any(_is_named(cell, word) for cell in cells):
                raise ValueError(f"no cell is called {word}; there are {', '.join(map(str, cells))}")
        cells = [cell for cell in cells if not self.options.only or any(_is_named(cell, w) for w in self.options.only)]
        recorded = {row["key"] for row in self.rows}
        return [cell for cell in cells if str(cell) not in recorded]

    def shared_value(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return a value that is made once a run."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def record(self, cell: Any, timer: Timer) -> None:
        """Measure a cell and write the result file."""
        if time.monotonic() - self.began > self.options.limit:
            self._leave_out(cell, "time was up")
        self.timer = timer
        try:
            found = self.table.measure(cell, self)
            rows = [found] if isinstance(found, dict) else list(found)
        except (FileNotFoundError, ImportError) as error:
            self._leave_out(cell, str(error))
        finally:
            _free_memory()
        for row in rows:
            row.setdefault("key", str(cell))
        self.rows += rows
        self.table.relate(self.rows)
        for row in rows:
            print("  ".join(column.show(row.get(column.key)) for column in _columns(self.table)), flush=True)
        self.write()
        faults = [fault for row in rows if (fault := self.table.fault(row))]
        if faults:
            pytest.fail("; ".join(faults), pytrace=False)

    def _leave_out(self, cell: Any, reason: str) -> None:
        self.notes.append(f"{cell}: left out: {reason}.")
        if self.rows:
            self.write()
        pytest.skip(reason)

    def write(self) -> None:
        """Write the result file, and those of tables that show the same rows."""
        for name in (self.name, *self.table.also):
            self._write(name, self.table if name == self.name else _table(name))

    def _write(self, name: str, table: Table) -> None:
        options = self.options
        rows = sorted(self.rows, key=table.order) if table.order else self.rows
        notes = table.notes(options, rows) if callable(table.notes) else table.notes
        if callable(table.configuration):
            configuration = table.configuration(self)
        else:
            configuration = {key: getattr(options, key) for key in table.configuration}
        write_results(
            self.path.with_name(self.path.name.replace(self.name, name)),
            table=name,
            title=table.title(options, rows) if callable(table.title) else table.title,
            columns=_columns(table),
            rows=rows,
            configuration=configuration,
            notes=[*notes, *dict.fromkeys(self.notes)],
            figure=table.figure,
        )


class Plugin:
    """Gives `bench_cells.py` its cells."""

    def __init__(self, run: Run, cells: Sequence[Any]) -> None:
        self.run, self.cells = run, cells

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one benchmark of each cell."""
        if "cell" in metafunc.fixturenames:
            metafunc.parametrize("cell", self.cells, ids=map(str, self.cells))

    @pytest.fixture(name="run")
    def run_of_table(self) -> Run:
        """The table in hand."""
        return self.run


def run_of(words: Sequence[str]) -> tuple[Run, list[Any], list[str]]:
    """Return the run of a table with options, its cells, and the words that are left for pytest-benchmark.

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
    parser = argparse.ArgumentParser(
        prog=f"tools/bench {name}", description=f"Needs: {RECORDERS[name].needs or 'nothing'}"
    )
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="record the cells with these names or beginnings")
    parser.add_argument("--limit", type=float, default=table.limit, help="begin no cell after so many seconds")
    parser.add_argument("--add", action="store_true", help="add to the cells that the same commit recorded")
    if table.device:
        parser.add_argument("--device", choices=("cuda", "cpu"), default=table.device)
    table.options(parser)
    options, rest = parser.parse_known_args(words[1:])
    try:
        run = Run(name, table, options)
        return run, run.cells(), rest
    except (ValueError, ResultError, SparseNNError) as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a table; return the exit code: 0 recorded, 1 a cell failed or none was recorded, 2 bad usage."""
    run, cells, rest = run_of(sys.argv[1:] if arguments is None else arguments)
    settings = ["-c", str(HERE / "pytest.ini"), "--rootdir", str(HERE), "-q", "--no-header", "--capture=no"]
    with run.stack:
        code = pytest.main(
            [*settings, "--benchmark-quiet", str(HERE / "bench_cells.py"), *rest], plugins=[Plugin(run, cells)]
        )
    if not run.rows:
        print("bench: no cell was recorded", file=sys.stderr)
        return 1
    print(run.path)
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


def count(text: str) -> int:
    """Return a number of things that an option takes: 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _table(name: str) -> Table:
    return import_module(RECORDERS[name].module).TABLES[name]  # type: ignore[no-any-return]


def _columns(table: Table) -> list[Column]:
    return [Column(*each) for each in table.columns]


def _is_named(cell: Any, word: str) -> bool:
    return str(cell) == word or str(cell).startswith((f"{word}-", f"{word},"))


def _free_memory() -> None:
    """Give a GPU's memory back between cells."""
    if (cupy := sys.modules.get("cupy")) is not None and cupy.cuda.is_available():
        cupy.get_default_memory_pool().free_all_blocks()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
