"""What bounds the kernels of sparse layers, as NVIDIA's profiler Nsight Compute (ncu) sees them.

All launches of a warm call are profiled. For each unit, ncu says which share of its peak is reached; the one that is
busiest bounds the launch, and if it were busy all the time, the launch would take what is called its floor. Launches of
one kernel are added up; kernels that take little of the call's time are left out. The profiler runs at the clocks that
the GPU sets by itself, with caches as they are. ncu starts this module as a script, which calls one case.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cases import CASES, Case, add_source_options, sources_of
from record import Row, Run, Table

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis")

LEAST_SHARE = 0.05
"""Of a call's time on the device, for a kernel to be listed."""

UNITS = {
    "busiest_pipe": "SM Busy",
    "issue": "Issue Slots Busy",
    "shared_memory": "L1/TEX Cache Throughput",
    "l2": "L2 Cache Throughput",
    "memory": "DRAM Throughput",
}
"""By the key of a column, what ncu calls a share of a unit's peak, in percent."""

WORDS = {
    "busiest_pipe": "arithmetic",
    "issue": "issuing instructions",
    "shared_memory": "shared memory",
    "l2": "L2 cache",
    "memory": "memory",
}

MILLISECONDS = {
    "s": 1e3,
    "second": 1e3,
    "ms": 1.0,
    "msecond": 1.0,
    "us": 1e-3,
    "usecond": 1e-3,
    "ns": 1e-6,
    "nsecond": 1e-6,
}


class ProfileError(Exception):
    """A case cannot be profiled; the message says why."""


def launches(text: str) -> list[Row]:
    """Return each launch of ncu's details, as CSV: its kernel, milliseconds, and the share of each unit.

    Raises
    ------
    ProfileError
        There is no launch, or one lacks a metric.
    """
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: defaultdict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)
    for line in csv.DictReader(lines[begin:]):
        found[line["ID"]][line["Metric Name"]] = line
    if not found:
        raise ProfileError("the profiler saw no kernel")
    return [_launch(metrics) for metrics in found.values()]


def _launch(metrics: Mapping[str, Mapping[str, str]]) -> Row:
    try:
        duration = metrics["Duration"]
        shares = {key: _number(metrics[name]) / 100 for key, name in UNITS.items()}
        milliseconds = _number(duration) * MILLISECONDS[duration["Metric Unit"]]
    except (KeyError, ValueError) as error:
        raise ProfileError(f"the profiler does not tell {error}") from error
    return {"kernel": duration["Kernel Name"].partition("(")[0], "milliseconds": milliseconds, **shares}


def _number(line: Mapping[str, str]) -> float:
    return float(line["Metric Value"].replace(",", ""))


def rows_of(case: Case, found: Sequence[Row]) -> list[Row]:
    """Return a row for each kernel of a case, that of the longest time first: shares are means by time."""
    total = sum(launch["milliseconds"] for launch in found)
    by_kernel: defaultdict[str, list[Row]] = defaultdict(list)
    for launch in found:
        by_kernel[launch["kernel"]].append(launch)
    rows = [_row(case, kernel, of_kernel, total) for kernel, of_kernel in by_kernel.items()]
    return sorted((row for row in rows if row["share"] >= LEAST_SHARE), key=lambda row: -float(row["milliseconds"]))


def _row(case: Case, kernel: str, found: Sequence[Row], total: float) -> Row:
    """Return what is busiest, and how long the kernel would take if each launch's busiest unit were busy throughout."""
    milliseconds = sum(launch["milliseconds"] for launch in found)
    shares = {key: sum(launch["milliseconds"] * launch[key] for launch in found) / milliseconds for key in UNITS}
    return {
        "key": case.key,
        "call": case.call,
        "precision": case.precision,
        "kernel": kernel,
        "launches": len(found),
        "milliseconds": milliseconds,
        "share": milliseconds / total,
        **shares,
        "bound": WORDS[max(UNITS, key=lambda key: shares[key])],
        "floor_milliseconds": sum(launch["milliseconds"] * max(launch[key] for key in UNITS) for launch in found),
    }


def profiled(case: Case, run: Run) -> list[Row]:
    """Run a case under the profiler, in a process of its own.

    Raises
    ------
    ProfileError
        The profiler failed, or time was up.
    FileNotFoundError
        There is no ncu on the PATH; it comes with the CUDA toolkit.
    """
    if shutil.which("ncu") is None:
        raise FileNotFoundError("no ncu on the PATH; it comes with the CUDA toolkit")
    options = run.options
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = ["ncu", "--csv", "--page", "details", "--clock-control", "none", "--cache-control", "none", *sections]
    command += ["--profile-from-start", "off", sys.executable, __file__, case.key, "--data", str(options.data)]
    command += ["--images", str(options.images)] if options.images else []
    seconds = options.limit - (time.monotonic() - run.began)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired as error:
        raise ProfileError("time was up") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ProfileError(lines[-1] if lines else f"exit code {done.returncode}")
    return rows_of(case, launches(done.stdout))


def cases() -> list[Case]:
    return [case for case in CASES if case.table == "sparse-layers"]


def main(arguments: Sequence[str]) -> None:
    """Make the session of a case and call it as is timed; the profiler looks at the second call.

    The first one may look whether rows die, by another kernel than the one that is then chosen.
    """
    from cupyx.profiler import profile
    from table_session import call_of, place

    from sparsenn import Session

    parser = argparse.ArgumentParser()
    parser.add_argument("key")
    add_source_options(parser)
    options = parser.parse_args(arguments)
    (case,) = (case for case in cases() if case.key == options.key)
    problem = replace(case.make(sources_of(options)), device="cuda", where=case.where, are_categories=case.categories)
    rows = place(problem.rows, problem, case.precision)
    with Session(problem.network, device="cuda", precision=case.precision, merging=case.merging) as session:
        call = call_of(problem, session, rows)
        call()
        with profile():
            call()


TABLES: dict[str, Any] = {
    "profiles": Table(
        title="What bounds the kernels of sparse layers",
        columns=[
            ("call", "work"),
            ("precision", "precision"),
            ("kernel", "kernel"),
            ("launches", "launches", "{:,}"),
            ("milliseconds", "time (ms)", "{:,.3f}"),
            ("share", "% of the call", "{:.0%}"),
            ("busiest_pipe", "busiest pipe", "{:.0%}"),
            ("issue", "issue slots", "{:.0%}"),
            ("shared_memory", "L1 and shared memory", "{:.0%}"),
            ("l2", "L2", "{:.0%}"),
            ("memory", "memory", "{:.0%}"),
            ("bound", "bound by"),
            ("floor_milliseconds", "floor (ms)", "{:,.3f}"),
        ],
        cells=lambda options: cases(),
        measure=profiled,
        notes=[
            "All launches of a warm call, one after the other, as Nsight Compute sees them: shares of each unit's "
            f"peak, of kernels that take {LEAST_SHARE:.0%} of the time or more. Busiest pipe: of those that compute, "
            "tensor cores among them. Floor: the time of the kernel if in each launch the unit that bounds it were "
            "busy all the time.",
        ],
        options=add_source_options,
        configuration=lambda run: {"sections": list(SECTIONS), "limit": run.options.limit},
        limit=180.0,
    )
}

if __name__ == "__main__":
    main(sys.argv[1:])
