"""Whole commands, from a fresh process to its exit: tables end-to-end and cold-start.

Fresh processes run one after the other, files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import Row, Run, Table, count
from timing import summary

RUNS, FIRST_RUNS = 20, 3
CACHES = {"cuda": "CUPY_CACHE_DIR", "cpu": "NUMBA_CACHE_DIR"}
"""Where each device's compiled kernels are kept."""

PHASES = ("read", "plan", "prepare", "transfer", "compile", "compute")

# ---- Where the time of infer goes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """A file that infer reads."""

    path: Path

    def __str__(self) -> str:
        return self.path.name


def end_to_end_rows(cell: Dataset, run: Run) -> list[Row]:
    """Run a dataset with empty caches, a new one each time, then with the last of them; return the row of each."""
    options, device = run.options, run.options.device
    fill_page_cache(cell.path)
    first: list[Row] = []
    for _ in range(options.first_runs):
        with tempfile.TemporaryDirectory(prefix="sparsenn-kernels-") as cache:
            environment = {CACHES[device]: cache}
            first.append(infer(cell.path, device, environment))
            if len(first) == options.first_runs:
                again = [infer(cell.path, device, environment) for _ in range(options.runs)]
    return [phases_row("compiled in the run", first), phases_row("compiled before", again)]


def infer(dataset: Path, device: str, environment: Mapping[str, str]) -> Row:
    """Run the command once, which must end well; return its wall time and the record that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        seconds, _ = command(["infer", str(dataset), "--device", device, "--json", str(target)], environment)
        return {"wall": seconds, **json.loads(target.read_text(encoding="utf-8"))}


def phases_row(kernels: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    """Return the medians over some runs of one problem, in seconds."""
    walls = [found["wall"] for found in runs]
    quartiles = statistics.quantiles(walls, n=4) if len(walls) >= 4 else None
    problem = runs[0]
    name = f"{problem['neurons']} × {problem['layers']}, {problem['inputs']:,} inputs"
    return {
        "key": f"{name}, {kernels}",
        "problem": name,
        "kernels": kernels,
        "wall": statistics.median(walls),
        "spread": quartiles[2] - quartiles[0] if quartiles else None,
        **{phase: statistics.median(found["seconds"][phase] for found in runs) for phase in PHASES},
        "rest": statistics.median(found["wall"] - found["seconds"]["total"] for found in runs),
        "runs": len(runs),
        "wall_seconds": walls,
        "kernel": problem["plan"]["kernel"],
        "steps": problem["plan"]["steps"],
        "streams": problem["plan"]["streams"],
        "verified": problem["verified"],
        "device": problem["device"],
    }


def fill_page_cache(path: Path) -> None:
    """Read a file once, so that the first run does not wait for the disk alone."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def command(words: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[float, int]:
    """Run sparsenn once, which must end well; return its seconds, and the most bytes that were resident.

    Python keeps what it compiles modules to, as installing a package does.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "sparsenn", *words], stdout=subprocess.DEVNULL, env=kept | dict(environment or {})
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"sparsenn {' '.join(words)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024


def end_to_end_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", type=Path, nargs="+", metavar="FILE.h5")
    parser.add_argument("--runs", type=count, default=RUNS, help="runs with compiled kernels")
    parser.add_argument("--first-runs", type=count, default=FIRST_RUNS, help="runs with an empty cache")


END_TO_END = Table(
    title=lambda options, rows: f"Whole commands: sparsenn infer FILE.h5 --device {options.device}, from start to exit",
    columns=[
        ("problem", "problem"),
        ("kernels", "kernels"),
        ("wall", "whole command (s)", "{:.3f}"),
        ("spread", "spread (s)", "{:.3f}"),
        *((phase, f"{phase} (s)", "{:.3f}") for phase in PHASES),
        ("rest", "start-up and report (s)", "{:.3f}"),
    ],
    cells=lambda options: map(Dataset, options.datasets),
    measure=end_to_end_rows,
    notes=lambda options, rows: [
        f"Fresh processes, one after the other, files in the page cache; medians of {options.first_runs} runs with an "
        f"empty {CACHES[options.device]} and of {options.runs} with a full one. Spread: interquartile range, a dash "
        "where there are fewer than 4 runs.",
        "Plan: merging equal outputs, choosing kernels. Compile: making the project's CUDA kernels, or loading them; "
        "compiling CuPy's and numba's kernels counts towards the phase that uses them. Start-up and report: the whole "
        "command minus the measured phases.",
    ],
    options=end_to_end_options,
    configuration=lambda run: {
        "datasets": [dataset.name for dataset in run.options.datasets],
        **{name: getattr(run.options, name) for name in ("device", "first_runs", "runs")},
    },
    device="cuda",
)

# ---- What a user waits for --------------------------------------------------------------------------------------

COMMANDS = {
    "sparsenn --help": ["--help"],
    "sparsenn infer FILE.h5": ["infer", "FILE.h5"],
    "sparsenn infer FILE.h5 --no-merging": ["infer", "FILE.h5", "--no-merging"],
    "… --no-merging --no-deduplication --no-compaction": [
        *("infer", "FILE.h5", "--no-merging", "--no-deduplication", "--no-compaction")
    ],
}


def cold_start_row(cell: str, run: Run) -> Row:
    """Time a command, start-up included, and look at its memory."""
    words = [str(run.options.dataset) if word == "FILE.h5" else word for word in COMMANDS[cell]]
    command(words)
    found = [command(words) for _ in range(5 if "--no-compaction" in words else run.options.runs)]
    timing = summary([seconds for seconds, _ in found])
    return {
        "command": cell,
        "seconds": timing.median,
        "spread": timing.spread,
        "peak_megabytes": max(peak for _, peak in found) / 1e6,
        "runs": timing.runs,
    }


def cold_start_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", type=Path, metavar="FILE.h5", help="the 1024 × 120 problem with all inputs")
    parser.add_argument("--runs", type=count, default=RUNS)


COLD_START = Table(
    title="Whole commands, start-up included: 1024 × 120 with 60,000 inputs",
    columns=[
        ("command", "command"),
        ("seconds", "median wall time (s)", "{:.2f}"),
        ("spread", "spread (s)", "{:.2f}"),
        ("peak_megabytes", "peak memory (MB)", "{:.0f}"),
    ],
    cells=lambda options: COMMANDS,
    measure=cold_start_row,
    notes=[
        "Fresh processes, one after the other; files in the page cache, kernels compiled before. Spread: interquartile "
        "range."
    ],
    options=cold_start_options,
    configuration=lambda run: {
        "dataset": run.options.dataset.name,
        "runs": {row["command"]: row["runs"] for row in run.rows},
    },
)

TABLES = {"end-to-end": END_TO_END, "cold-start": COLD_START}
