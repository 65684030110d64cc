"""Record what a Dask cluster of this machine costs beside `stream`: its start, and many rows of a file.

Usage: python bench/record_dask.py [--file-rows F] [--workers W ...] [--device cpu|cuda] [--runs R] [--folder FOLDER]
[--machine NAME]

The challenge's 1024 × 120 network runs F digits, the same 60,000 over and over, from an HDF5 file to categories in a
file: by `sparsenn.stream` in this process, and by clusters of W workers. Start: from nothing to the first answer, of
1,000 rows, in a process of its own, Python's start included. Categories must be those of the rows in memory. Writes
bench/results/<machine>/dask.json; the exit code is 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record_row_files import IMAGES, LAYERS, NEURONS, WrongAnswerError, write_repeated
from results_file import Column, results_path, write_results

from sparsenn import stream
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.distributed import infer, local_cluster
from sparsenn.io.challenge.layout import challenge_bias

FIRST_ROWS = 1000

COLUMNS = (
    Column("how", "how"),
    Column("start_seconds", "start to first answer (s)", "{:.2f}"),
    Column("seconds", "all rows (s)", "{:.2f}"),
    Column("spread_seconds", "spread (s)", "{:.2f}"),
    Column("rows_per_second", "rows/s", "{:,.0f}"),
    Column("overhead", "more than stream", "{:.0%}"),
)

FIRST = """
import sys

import sparsenn

if __name__ == "__main__":
    path, output, workers, device = sys.argv[1:]
    if workers == "0":
        sparsenn.stream(sparsenn.load(path, limit_inputs=1).network, path, output, device=device, statistics=False)
    else:
        with sparsenn.distributed.local_cluster(int(workers), device=device) as client:
            sparsenn.distributed.infer(path, path, client, output=output, device=device)
"""

Row = dict[str, Any]
Way = tuple[str, int, Callable[[], Any]]
"""What is run, by how many workers, 0 for this process, and the run."""


def record(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Time all ways."""
    network = radixnet(NEURONS, LAYERS, bias=challenge_bias(NEURONS))
    images = digit_inputs(NEURONS, min(IMAGES, options.file_rows))
    path, few, output = folder / "rows.h5", folder / "few.h5", folder / "found.tsv"
    truth = write_repeated(network, images, options.file_rows, path)
    write_repeated(network, images, min(FIRST_ROWS, options.file_rows), few)
    (folder / "first.py").write_text(FIRST)

    here = {"device": options.device, "statistics": False}
    ways: list[Way] = [("stream, in one process", 0, lambda: stream(network, path, output, **here))]
    with ExitStack() as clusters:
        for workers in options.workers:
            client = clusters.enter_context(local_cluster(workers, device=options.device))
            run = partial(infer, path, path, client, output=output, device=options.device)
            ways.append((f"cluster, {workers} worker{'' if workers == 1 else 's'}", workers, run))
        seconds = in_turn(ways, 1 + options.runs, truth)[1:]  # the first makes sessions ready
    rows: list[Row] = []
    for (how, workers, _), (quarter, median, three_quarters) in zip(
        ways, np.percentile(seconds, (25, 50, 75), axis=0).T.tolist(), strict=True
    ):
        row = {
            "how": how,
            "start_seconds": float(np.median([first_answer(folder, few, workers, options) for _ in range(3)])),
            "seconds": median,
            "spread_seconds": three_quarters - quarter,
            "rows_per_second": options.file_rows / median,
            "overhead": median / rows[0]["seconds"] - 1 if rows else None,
        }
        print("  ".join(column.show(row[column.key]) for column in COLUMNS), flush=True)
        rows.append(row)
    return rows


def in_turn(ways: Sequence[Way], runs: int, truth: Any) -> list[list[float]]:
    """Return the seconds of all ways, run after run: whatever disturbs one disturbs all.

    Raises
    ------
    WrongAnswerError
        Categories are not the true ones.
    """
    found = []
    for _ in range(runs):
        seconds = []
        for how, _, run in ways:
            start = time.perf_counter()
            categories = run().categories
            seconds.append(time.perf_counter() - start)
            if not np.array_equal(categories, truth):
                raise WrongAnswerError(f"{how}: the categories are not those of the rows in memory")
        found.append(seconds)
    return found


def first_answer(folder: Path, few: Path, workers: int, options: argparse.Namespace) -> float:
    """Return the seconds from the start of a process to the answer for a few rows, and the end of all that it began."""
    words = [folder / "first.py", few, folder / "first.tsv", workers, options.device]
    start = time.perf_counter()
    subprocess.run([sys.executable, *map(str, words)], check=True)
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-rows", type=int, default=6_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where files of rows go meanwhile; the system's unless given")
    parser.add_argument("--machine")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(dir=options.folder) as folder:
        try:
            rows = record(options, Path(folder))
        except WrongAnswerError as error:
            print(error, file=sys.stderr)
            return 1
    path = results_path("dask", folder=options.machine)
    write_results(
        path,
        table="dask",
        title=f"{options.file_rows:,} rows × {NEURONS} × {LAYERS}, from an HDF5 file to categories",
        columns=COLUMNS,
        rows=rows,
        configuration={name: getattr(options, name) for name in ("file_rows", "workers", "device", "runs")},
        notes=[
            f"Medians and interquartile ranges of {options.runs} runs of each, in turn, on clusters that are ready; "
            "stream makes its session each time. Workers share the machine's cores. Start: a process from its start to "
            f"its end, cluster included, for {FIRST_ROWS:,} rows; median of 3.",
        ],
    )
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
