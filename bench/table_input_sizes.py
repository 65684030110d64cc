"""The challenge's inputs of all four sizes, made from MNIST, and how many non-zeros they have.

Each size is made once, in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cases import Sources, add_data_option
from record import Row, Run, Table, WrongAnswerError, count

SIZES = (1024, 4096, 16384, 65536)


def size_row(neurons: int, run: Run) -> Row:
    """Make the inputs of a size in a process of its own.

    Raises
    ------
    WrongAnswerError
        The number of non-zeros is not the official one.
    """
    command = [sys.executable, __file__, str(neurons), str(Sources(run.options.data).needed("mnist"))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: Row = json.loads(done.stdout)
    if not row["equal"]:
        raise WrongAnswerError(f"{neurons}: {row['non_zeros']:,} of {row['official']:,} non-zeros")
    return row


def measure(neurons: int, mnist: Path) -> Row:
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


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--neurons", type=count, nargs="+", choices=SIZES, default=list(SIZES))


def main(arguments: Sequence[str]) -> None:
    """Print the row of one size."""
    neurons, mnist = arguments
    print(json.dumps(measure(int(neurons), Path(mnist))))


TABLES = {
    "input-sizes": Table(
        title="The challenge's inputs, made from the MNIST training images",
        columns=[
            ("neurons", "neurons", "{:,}"),
            ("non_zeros", "non-zeros", "{:,}"),
            ("official", "official", "{:,}"),
            ("equal", "equal"),
            ("seconds", "time (s)", "{:.1f}"),
            ("peak_gb", "peak memory (GB)", "{:.2f}"),
        ],
        cells=lambda options: options.neurons,
        measure=size_row,
        notes=[
            "One run each, in a process of its own, reading MNIST and compiling included: the counts are the result, "
            "the times are no benchmark."
        ],
        options=add_options,
        configuration=lambda run: {"images": 60_000, "runs": 1},
    )
}

if __name__ == "__main__":
    main(sys.argv[1:])
