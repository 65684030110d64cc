"""Record where the time of a whole command goes: `sparsenn infer FILE.h5` from a fresh process to its exit.

Usage: python bench/record_end_to_end.py FILE.h5 [FILE.h5 …] [--device cuda|cpu] [--machine NAME] [--runs N]
[--first-runs N]

Each file is run with an empty cache of compiled kernels, a new one each time, then again and again with the last of
them, which holds everything. Writes bench/results/<machine>/end-to-end.json.
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
from pathlib import Path
from typing import Any

from results_file import results_path, write_results

RUNS, FIRST_RUNS = 20, 3
CACHES = {"cuda": "CUPY_CACHE_DIR", "cpu": "NUMBA_CACHE_DIR"}
"""Where each device's compiled kernels are kept."""

PARTS = ("read", "plan", "prepare", "transfer", "compile", "compute")
COLUMNS = [
    ("problem", "problem"),
    ("kernels", "kernels"),
    ("wall", "whole command (s)", "{:.3f}"),
    ("spread", "spread (s)", "{:.3f}"),
    *((part, f"{part} (s)", "{:.3f}") for part in PARTS),
    ("rest", "start-up and report (s)", "{:.3f}"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record where the time of sparsenn infer goes.")
    parser.add_argument("datasets", type=Path, nargs="+", metavar="FILE.h5")
    parser.add_argument("--device", choices=tuple(CACHES), default="cuda")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs with compiled kernels")
    parser.add_argument("--first-runs", type=int, default=FIRST_RUNS, help="runs with an empty cache")
    options = parser.parse_args(arguments)
    if min(options.runs, options.first_runs) < 1:
        parser.error("--runs and --first-runs must be at least 1")
    rows = []
    for dataset in options.datasets:
        rows += measure(dataset, options.device, options.first_runs, options.runs)
        for row in rows[-2:]:
            print({key: value for key, value in row.items() if key != "wall_seconds"}, flush=True)
    path = results_path("end-to-end", folder=options.machine)
    write_results(
        path,
        table="end-to-end",
        title=f"Whole commands: sparsenn infer FILE.h5 --device {options.device}, from start to exit",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "datasets": [dataset.name for dataset in options.datasets],
            "device": options.device,
            "first_runs": options.first_runs,
            "runs": options.runs,
        },
        notes=[
            f"Fresh processes, one after the other, files in the page cache; medians of {options.first_runs} runs with "
            f"an empty {CACHES[options.device]} and of {options.runs} with a full one. Spread: interquartile range, "
            "a dash where there are fewer than 4 runs.",
            "Plan: merging equal outputs, choosing kernels. Compile: making the project's CUDA kernels, or loading "
            "them; what CuPy's own kernels and numba take is part of the work that needs them. Start-up and report: "
            "the whole command without the parts that the program measures.",
        ],
    )
    return 0


def measure(dataset: Path, device: str, first_runs: int, runs: int) -> list[dict[str, Any]]:
    """Run one dataset with empty caches, then with a full one; return the row of each."""
    fill_page_cache(dataset)
    first = []
    for number in range(first_runs):
        with tempfile.TemporaryDirectory(prefix="sparsenn-kernels-") as cache:
            environment = {CACHES[device]: cache}
            first.append(run(dataset, device, environment))
            if number + 1 == first_runs:
                again = [run(dataset, device, environment) for _ in range(runs)]
    return [row("compiled in the run", first), row("compiled before", again)]


def run(dataset: Path, device: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the command once, which must end well; return its wall time and the record that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        command = [sys.executable, "-m", "sparsenn", "infer", str(dataset), "--device", device, "--json", str(target)]
        start = time.perf_counter()
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        wall = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return {"wall": wall, **json.loads(target.read_text(encoding="utf-8"))}


def row(kernels: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over some runs of one problem, in seconds."""
    walls = [found["wall"] for found in runs]
    quartiles = statistics.quantiles(walls, n=4) if len(walls) >= 4 else None
    problem = runs[0]
    return {
        "problem": f"{problem['neurons']} × {problem['layers']}, {problem['inputs']:,} inputs",
        "kernels": kernels,
        "wall": statistics.median(walls),
        "spread": quartiles[2] - quartiles[0] if quartiles else None,
        **{part: statistics.median(found["seconds"][part] for found in runs) for part in PARTS},
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


if __name__ == "__main__":
    sys.exit(main())
