"""A Dask cluster of this machine beside `stream`: its start, and many rows of a file.

The challenge's 1024 × 120 network runs digits, the same 60,000 over and over, from an HDF5 file to categories in a
file: by `sparsenn.stream` in this process, and by clusters of workers, all in turn. Start: from nothing to the first
answer, of 1,000 rows, in a process of its own, Python's start included. Categories must be those of the rows in memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from record import Row, Run, Table, WrongAnswerError, count
from table_row_files import IMAGES, LAYERS, NEURONS, write_repeated

from sparsenn import stream
from sparsenn.datasets import radixnet
from sparsenn.datasets.digits import digit_inputs
from sparsenn.distributed import infer, local_cluster
from sparsenn.io.challenge.layout import challenge_bias

FIRST_ROWS = 1000

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


def cluster_rows(cell: str, run: Run) -> list[Row]:
    """Time this process and the clusters in turn.

    Raises
    ------
    WrongAnswerError
        Categories are not the true ones.
    """
    options, device = run.options, run.options.device
    network = radixnet(NEURONS, LAYERS, bias=challenge_bias(NEURONS))
    images = digit_inputs(NEURONS, min(IMAGES, options.file_rows))
    with TemporaryDirectory(dir=options.folder) as name, ExitStack() as clusters:
        folder = Path(name)
        path, few, output = folder / "rows.h5", folder / "few.h5", folder / "found.tsv"
        truth = write_repeated(network, images, options.file_rows, path)
        write_repeated(network, images, min(FIRST_ROWS, options.file_rows), few)
        (folder / "first.py").write_text(FIRST)
        here = partial(stream, network, path, output, device=device, statistics=False)
        runs: dict[str, tuple[int, Callable[[], Any]]] = {"stream, in one process": (0, here)}
        for workers in options.workers:
            client = clusters.enter_context(local_cluster(workers, device=device))
            title = f"cluster, {workers} worker{'' if workers == 1 else 's'}"
            runs[title] = workers, partial(infer, path, path, client, output=output, device=device)

        def checked(title: str) -> Callable[[], None]:
            def call() -> None:
                if not np.array_equal(runs[title][1]().categories, truth):
                    raise WrongAnswerError(f"{title}: the categories are not those of the rows in memory")

            return call

        timings = run.timer.in_turn(list(map(checked, runs)), runs=options.runs, warm_up=1)
        starts = [
            float(np.median([first_answer(folder, few, workers, device) for _ in range(3)]))
            for workers, _ in runs.values()
        ]
    return [
        {
            "key": how,
            "how": how,
            "start_seconds": start,
            "seconds": timing.median / 1e3,
            "spread_seconds": timing.spread / 1e3,
            "rows_per_second": 1e3 * options.file_rows / timing.median,
            "overhead": timing.median / timings[0].median - 1 if number else None,
        }
        for number, (how, start, timing) in enumerate(zip(runs, starts, timings, strict=True))
    ]


def first_answer(folder: Path, few: Path, workers: int, device: str) -> float:
    """Return the seconds of a process that computes a few rows, from its start to its end, cluster included."""
    words = [folder / "first.py", few, folder / "first.tsv", workers, device]
    start = time.perf_counter()
    subprocess.run([sys.executable, *map(str, words)], check=True)
    return time.perf_counter() - start


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file-rows", type=count, default=6_000_000)
    parser.add_argument("--workers", type=count, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=count, default=5)
    parser.add_argument("--folder", help="where files of rows are written; the system's unless given")


TABLES = {
    "dask": Table(
        title=lambda options, rows: (
            f"{options.file_rows:,} rows × {NEURONS} × {LAYERS}, from an HDF5 file to categories"
        ),
        columns=[
            ("how", "how"),
            ("start_seconds", "start to first answer (s)", "{:.2f}"),
            ("seconds", "all rows (s)", "{:.2f}"),
            ("spread_seconds", "spread (s)", "{:.2f}"),
            ("rows_per_second", "rows/s", "{:,.0f}"),
            ("overhead", "more than stream", "{:.0%}"),
        ],
        cells=lambda options: ["dask"],
        measure=cluster_rows,
        notes=lambda options, rows: [
            f"Medians and interquartile ranges of {options.runs} runs of each, in turn, on clusters that are ready; "
            "stream makes its session each time. Workers share the machine's cores. Start: a process from its start to "
            f"its end, cluster included, for {FIRST_ROWS:,} rows; median of 3.",
        ],
        options=add_options,
        configuration=("file_rows", "workers", "device", "runs"),
        device="cpu",
        figure="seconds",
    )
}
