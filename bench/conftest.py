"""Fixtures of the benchmarks: the real problem, a table that is filled row by row, and its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from results_file import results_path, write_results

from sparsenn.datasets import mnist_inputs
from sparsenn.formats import CSR
from sparsenn.io import Dataset
from sparsenn.io.challenge.folder import read_official

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write bench/results/<machine>/<table>.json")


class Table:
    """The rows of one result file; `write_results` says what its parts are."""

    def __init__(self, name: str, title: str, columns: list[tuple[str, ...]], configuration: dict[str, Any]) -> None:
        self.name = name
        self.title = title
        self.columns = columns
        self.configuration = configuration
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def add(self, benchmark: Any, **row: Any) -> dict[str, Any]:
        """Add a row with the median, the interquartile range (both in seconds) and the number of runs."""
        stats = benchmark.stats.stats
        row |= {"seconds": stats.median, "spread": stats.iqr, "runs": stats.rounds}
        benchmark.extra_info.update({key: value for key, value in row.items() if isinstance(value, str | int | float)})
        self.rows.append(row)
        return row

    def relate(self, key: str, to: Callable[[dict[str, Any], dict[str, Any]], bool]) -> None:
        """Set row[key] to how many times faster each row is than the row that `to(row, other)` picks for it."""
        for row in self.rows:
            base = [other for other in self.rows if to(row, other)]
            row[key] = base[0]["seconds"] / row["seconds"] if base else None


@pytest.fixture(scope="module")
def new_table(request: pytest.FixtureRequest) -> Iterator[Callable[..., Table]]:
    """Make tables that are written at the end of the module if --record is given."""
    made: list[Table] = []

    def make(*arguments: Any) -> Table:
        made.append(Table(*arguments))
        return made[-1]

    yield make
    if request.config.getoption("--record"):
        for table in made:
            write_results(
                results_path(table.name),
                table=table.name,
                title=table.title,
                columns=table.columns,
                rows=table.rows,
                configuration=table.configuration,
                notes=table.notes,
            )


@pytest.fixture(scope="session")
def official_folder() -> Path:
    return _present(DATA / "challenge-1024x120-first1200")


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    return _present(DATA / "mnist")


@pytest.fixture(scope="session")
def official_inputs(mnist_folder: Path) -> CSR:
    """All 60,000 official inputs of 1024 pixels."""
    return mnist_inputs(1024, folder=mnist_folder)


@pytest.fixture(scope="session")
def official(official_folder: Path, official_inputs: CSR) -> Dataset:
    """The official 1024 x 120 network with all 60,000 inputs; only the first 1,200 true categories are at hand."""
    network = read_official(official_folder).network
    return Dataset("radixnet-1024x120", network, official_inputs)


def _present(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: no folder {folder}")
    return folder
