"""Make the challenge's inputs of all four sizes from MNIST and record how many non-zeros they have.

Each size is made once, in a process of its own, so that its peak memory is its own. Usage::

    python bench/record_input_sizes.py MNIST_FOLDER [--neurons N ...] [--machine NAME]

The result goes to bench/results/<machine>/input_sizes.json. The exit code is 1 if a count is not the official one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results_file import Column, results_path, write_results

COLUMNS = (
    Column("neurons", "neurons", "{:,}"),
    Column("non_zeros", "non-zeros", "{:,}"),
    Column("official", "official", "{:,}"),
    Column("equal", "equal"),
    Column("seconds", "time (s)", "{:.1f}"),
    Column("peak_gb", "peak memory (GB)", "{:.2f}"),
)

NOTE = (
    "One run each, in a process of its own, reading MNIST and compiling included, at low priority on a shared machine: "
    "the counts are the result, the times are no benchmark."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record the sizes of the challenge's inputs, made from MNIST.")
    parser.add_argument("mnist", type=Path, help="folder with train-images-idx3-ubyte, plain or .gz")
    parser.add_argument("--neurons", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        os.nice(15)
        print(json.dumps(measure(options.neurons[0], options.mnist)))
        return 0
    rows = [measured_apart(neurons, options.mnist) for neurons in options.neurons]
    path = results_path("input_sizes", folder=options.machine)
    write_results(
        path,
        table="input-sizes",
        title="The challenge's inputs, made from the MNIST training images",
        columns=COLUMNS,
        rows=rows,
        configuration={"images": 60_000, "runs": 1},
        notes=(NOTE,),
    )
    print(path)
    return 0 if all(row["equal"] for row in rows) else 1


def measured_apart(neurons: int, mnist: Path) -> dict[str, Any]:
    """Measure one size in a process of its own."""
    command = [sys.executable, __file__, str(mnist), "--neurons", str(neurons), "--one"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(f"{neurons}: {row['non_zeros']:,} of {row['official']:,} non-zeros", file=sys.stderr)
    return row


def measure(neurons: int, mnist: Path) -> dict[str, Any]:
    """Make the inputs of one size; return the row of the table."""
    start = time.perf_counter()
    from sparsenn.datasets import OFFICIAL_NONZEROS, mnist_inputs

    inputs = mnist_inputs(neurons, mnist).validate()
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return {
        "neurons": neurons,
        "non_zeros": inputs.nnz,
        "official": OFFICIAL_NONZEROS[neurons],
        "equal": inputs.nnz == OFFICIAL_NONZEROS[neurons],
        "seconds": time.perf_counter() - start,
        "peak_gb": kilobytes * 1024 / 1e9,
    }


if __name__ == "__main__":
    sys.exit(main())
