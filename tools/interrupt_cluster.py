#!/usr/bin/env python3
"""Kill a worker, the client or the scheduler of a Dask cluster at random moments, and check what is computed.

    tools/interrupt_cluster.py [--runs N] [--seed S] [--json FILE] [worker|client|scheduler ...]

`sparsenn infer --scheduler` runs to its end once; that gives the bits that are right, and how long it takes. Then it is
started N times for each victim, which gets SIGKILL at a random moment. Where that is a worker, of two, the run must end
well; where it is the scheduler, the run must end well if it was over in time, and else say so in one line. Then it is
run again with --resume on a new cluster: it must end well, with the right bits, and nothing else may be left. Pieces
that were there must not have been computed again.

Exit code 0: nothing was found. 1: something was; it is told. 2: bad usage. The last line counts the runs by victim and
exit code.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from clusters import External, external_cluster  # noqa: E402

from sparsenn.datasets import generate  # noqa: E402
from sparsenn.io import write_dataset  # noqa: E402

VICTIMS = ("worker", "client", "scheduler")
LONGEST = 120.0
"""Seconds after which a run counts as hanging."""
ROWS, PIECE, OUTPUT = 4000, 40, "found.npy"
LOST = ("error: the scheduler at", "error: there is no scheduler at", "error: the cluster at")
"""How the one line begins that a run says whose scheduler is killed."""


def command(problem: Path, folder: Path, cluster: External) -> list[str]:
    words = ["infer", problem, "--device", "cpu", "--scheduler", cluster.address, "--piece", PIECE, "--resume"]
    words += ["--output", folder / OUTPUT, "--json", folder / "told.json"]
    return [sys.executable, "-m", "sparsenn", *map(str, words)]


def done(folder: Path) -> int:
    """How many rows of an output are done."""
    if (folder / OUTPUT).exists():
        return ROWS
    return PIECE * len(list((folder / f"{OUTPUT}.pieces").glob("[0-9]*.json")))


def finished(run: subprocess.Popen[str]) -> tuple[int | None, str]:
    """Wait for a run; its exit code, None if it hung, and what it said on stderr."""
    try:
        _, said = run.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        run.kill()
        return None, run.communicate()[1]
    return run.returncode, said


def started(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def trial(problem: Path, victim: str, right: bytes, usual: float, folder: Path) -> Iterator[str | int | None]:
    """Kill a victim, look, and run again; yields the exit code, then what is wrong."""
    with external_cluster(folder, workers=2) as cluster:
        run = started(command(problem, folder, cluster))
        time.sleep(random.uniform(0, usual))
        {"worker": cluster.workers[0], "client": run, "scheduler": cluster.scheduler}[victim].kill()
        code, said = finished(run)
    yield code
    if code is None:
        yield "hangs"
    if code not in {"worker": {0}, "client": {0, -9}, "scheduler": {0, 2}}[victim]:
        yield f"exit code {code}: {said}"
    if code == 2 and not (said.startswith(LOST) and said.count("\n") == 1):
        yield f"says {said!r}"
    there = done(folder)
    if there < ROWS:
        with external_cluster(folder, workers=1) as cluster:
            code, said = finished(started(command(problem, folder, cluster)))
        if code != 0:
            yield f"the next run: exit code {code}: {said}"
            return
        resumed = json.loads((folder / "told.json").read_text())["resumed"]
        if resumed != there:
            yield f"{there} rows were done, and {resumed} of them taken"
    if (folder / OUTPUT).read_bytes() != right:
        yield "the output has other bits"
    left = {path.name for path in folder.iterdir() if path.name.startswith((OUTPUT, "."))} - {OUTPUT}
    if left:
        yield f"left over: {', '.join(sorted(left))}"


def campaign(victims: list[str], runs: int, folder: Path) -> Counter[str]:
    tally: Counter[str] = Counter()
    problem, usual = folder / "problem.h5", 0.0
    write_dataset(generate(1024, 12, inputs="digits", images=ROWS), problem)
    for name in ("first", "right"):  # the first may compile
        (folder / name).mkdir()
        with external_cluster(folder / name, workers=2) as cluster:
            start = time.monotonic()
            code, said = finished(started(command(problem, folder / name, cluster)))
            usual = time.monotonic() - start
        if code != 0:
            raise SystemExit(f"the run itself fails: {said}")
    right = (folder / "right" / OUTPUT).read_bytes()
    print(f"a run takes {usual:.2f} s, for {ROWS // PIECE} pieces", flush=True)
    for victim in victims:
        for number in range(runs):
            work = folder / f"{victim}-{number}"
            work.mkdir()
            code, *wrong = trial(problem, victim, right, usual, work)
            tally[f"{victim} {code}"] += 1
            for text in wrong:
                tally["found"] += 1
                print(f"{victim}, run {number + 1}: {text}", flush=True)
        print(f"{victim}: done", flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of a Dask cluster at random moments.")
    parser.add_argument("victims", nargs="*", metavar="VICTIM", help=f"{', '.join(VICTIMS)}; all unless given")
    parser.add_argument("--runs", type=int, default=20, help="for each victim; 20 unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the counts here")
    given = parser.parse_args()
    if unknown := set(given.victims) - set(VICTIMS):
        parser.error(f"no such victim: {', '.join(sorted(unknown))}; there are {', '.join(VICTIMS)}")
    random.seed(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        tally = campaign(given.victims or list(VICTIMS), given.runs, Path(folder))
    counts = json.dumps(dict(sorted(tally.items())))
    if given.json is not None:
        given.json.write_text(counts + "\n")
    print(counts)
    return int(tally["found"] > 0)


if __name__ == "__main__":
    sys.exit(main())
