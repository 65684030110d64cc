"""Record what bounds the kernels of sparse layers, as NVIDIA's profiler Nsight Compute (ncu) sees them.

Usage: python bench/record_profiles.py [--only KEY ...] [--data FOLDER] [--images FOLDER] [--seconds S] [--machine NAME]

KEY names a case of `session_cases.py`, of its table sparse-layers. Of a warm call, all launches are looked at. For each
unit, ncu says which part of its peak is reached; the one that is busiest bounds the launch, and if it were busy all the
time, the launch would take what is called its floor. Launches of one kernel are added up; kernels that take little of
the call's time are left out. The profiler runs at the clocks that the GPU sets by itself, with caches as they are.

Writes bench/results/<machine>/profiles.json. A case that does not fit into S seconds, or whose data is not there, is
left out, and the result says so. The exit code is 1 if a case failed, 2 if there is no ncu.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results_file import ROOT, Column, results_path, write_results
from session_cases import CASES, Case, Sources

TABLE = "sparse-layers"

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

COLUMNS = (
    Column("call", "work"),
    Column("precision", "precision"),
    Column("kernel", "kernel"),
    Column("launches", "launches", "{:,}"),
    Column("milliseconds", "time (ms)", "{:,.3f}"),
    Column("share", "% of the call", "{:.0%}"),
    Column("busiest_pipe", "busiest pipe", "{:.0%}"),
    Column("issue", "issue slots", "{:.0%}"),
    Column("shared_memory", "L1 and shared memory", "{:.0%}"),
    Column("l2", "L2", "{:.0%}"),
    Column("memory", "memory", "{:.0%}"),
    Column("bound", "bound by"),
    Column("floor_milliseconds", "floor (ms)", "{:,.3f}"),
)

Row = dict[str, Any]


class ProfileError(Exception):
    """A case cannot be profiled; the message says why."""


def launches(text: str) -> list[Row]:
    """Return what ncu's details, as CSV, say of each launch: its kernel, milliseconds, and the share of each unit.

    Raises
    ------
    ProfileError
        They hold no launch, or not all that is wanted of it.
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


def profiled(case: Case, options: argparse.Namespace, seconds: float) -> list[Row]:
    """Run a case under the profiler, in a process of its own."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = ["ncu", "--csv", "--page", "details", "--clock-control", "none", "--cache-control", "none", *sections]
    command += ["--profile-from-start", "off", sys.executable]
    given = ["--data", str(options.data), *(["--images", str(options.images)] if options.images else [])]
    try:
        done = subprocess.run(
            [*command, __file__, "--call", case.key, *given],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProfileError(f"it took longer than {seconds:.0f} s") from error
    if done.returncode:
        told = (done.stderr + done.stdout).strip().splitlines()
        raise ProfileError(told[-1] if told else f"exit code {done.returncode}")
    return rows_of(case, launches(done.stdout))


def call(case: Case, options: argparse.Namespace) -> None:
    """Make a case's session and call it as is timed; the profiler looks at the second call.

    The first one may look whether rows die, by another kernel than the one that is then chosen.
    """
    from cupyx.profiler import profile
    from record_session import call_of, place

    from sparsenn import Session

    problem = case.make(Sources(options.data, options.images, ROOT / "datasets"))
    rows = place(problem.rows, case)
    with Session(problem.network, device="cuda", precision=case.precision, merging=case.merging) as session:
        timed = call_of(case, session, rows)
        timed()
        with profile():
            timed()


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile all cases that are asked for; return the exit code."""
    options = _parsed(arguments)
    cases = {case.key: case for case in CASES if case.table == TABLE}
    if unknown := sorted({*options.only, *filter(None, [options.call])} - set(cases)):
        print(f"record_profiles: no case {', '.join(unknown)}; there are {', '.join(cases)}", file=sys.stderr)
        return 2
    if options.call:
        call(cases[options.call], options)
        return 0
    if shutil.which("ncu") is None:
        print("record_profiles: no ncu on the PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    return record([cases[key] for key in options.only or cases], options)


def record(cases: Iterable[Case], options: argparse.Namespace) -> int:
    """Profile cases one after the other, and write the result after each; return the exit code."""
    end, rows, notes, failed = time.monotonic() + options.seconds, list[Row](), list[str](), False
    for case in cases:
        left = end - time.monotonic()
        if left <= 0:
            notes.append(f"{case.call}, {case.precision}: left out, time was up.")
            continue
        try:
            found = profiled(case, options, left)
        except ProfileError as error:
            print(f"{case.key}: {error}", file=sys.stderr)
            notes.append(f"{case.call}, {case.precision}: not profiled.")
            failed = True
            continue
        rows += found
        for row in found:
            print("  ".join(column.show(row[column.key]) for column in COLUMNS), flush=True)
        _write(rows, notes, options)
    return 1 if failed or not rows else 0


def _write(rows: Sequence[Row], notes: Sequence[str], options: argparse.Namespace) -> None:
    write_results(
        results_path("profiles", folder=options.machine),
        table="profiles",
        title="What bounds the kernels of sparse layers",
        columns=COLUMNS,
        rows=rows,
        configuration={"sections": list(SECTIONS), "seconds": options.seconds},
        notes=[
            "All launches of a warm call, one after the other, as Nsight Compute sees them: parts of each unit's peak, "
            f"of kernels that take {LEAST_SHARE:.0%} of the time or more. Busiest pipe: of those that compute, tensor "
            "cores among them. Floor: what the kernel would take if in each launch the unit that bounds it were busy "
            "all the time.",
            *notes,
        ],
    )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    data = Path(os.environ.get("SPARSENN_TEST_DATA", ROOT / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="KEY")
    parser.add_argument("--call", metavar="KEY", help="call this case, and record nothing")
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--images", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
