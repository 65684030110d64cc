"""Record what a user waits for: whole commands, from a fresh process to its exit, and their peak memory.

Usage: python bench/record_cold_start.py FILE.h5

The file holds the 1024 x 120 problem with all inputs. Writes bench/results/<machine>/cold-start.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from results_file import results_path, write_results

RUNS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Time whole commands, from fresh processes.")
    parser.add_argument("dataset", type=Path, metavar="FILE.h5", help="the 1024 x 120 problem with all inputs")
    dataset = parser.parse_args().dataset
    commands = {
        "sparsenn --help": ["--help"],
        "sparsenn infer FILE.h5": ["infer", str(dataset)],
        "sparsenn infer FILE.h5 --no-merging": ["infer", str(dataset), "--no-merging"],
        "… --no-merging --no-deduplication --no-compaction": [
            *("infer", str(dataset), "--no-merging", "--no-deduplication", "--no-compaction")
        ],
    }
    rows = []
    for name, arguments in commands.items():
        run(arguments)
        runs = [run(arguments) for _ in range(5 if "--no-compaction" in arguments else RUNS)]
        seconds = [seconds for seconds, _ in runs]
        quartiles = statistics.quantiles(seconds, n=4)
        rows.append(
            {
                "command": name,
                "seconds": statistics.median(seconds),
                "spread": quartiles[2] - quartiles[0],
                "peak_megabytes": max(peak for _, peak in runs) / 1e6,
                "runs": len(runs),
            }
        )
    write_results(
        results_path("cold-start"),
        table="cold-start",
        title="Whole commands, start-up included: 1024 × 120 with 60,000 inputs",
        columns=[
            ("command", "command"),
            ("seconds", "median wall time (s)", "{:.2f}"),
            ("spread", "spread (s)", "{:.2f}"),
            ("peak_megabytes", "peak memory (MB)", "{:.0f}"),
        ],
        rows=rows,
        configuration={"dataset": dataset.name, "runs": {row["command"]: row["runs"] for row in rows}},
        notes=[
            "Fresh processes, one after the other; files in the page cache, kernels compiled before. "
            "Spread: interquartile range."
        ],
    )


def run(arguments: list[str]) -> tuple[float, int]:
    """Run the command line once; return (seconds, peak bytes resident). It must end well.

    Python keeps what it compiles modules to, as installing a package does.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "sparsenn", *arguments], stdout=subprocess.DEVNULL, env=kept)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"sparsenn {' '.join(arguments)} failed")
    return seconds, usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
