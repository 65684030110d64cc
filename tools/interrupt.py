#!/usr/bin/env python3
"""End verbs that write files at random moments, by SIGKILL, SIGINT and SIGTERM, and check what they leave.

    tools/interrupt.py [--runs N] [--seed S] [--seconds S] [--json FILE] [VERB ...]

Each verb is run to its end once; that gives the bits that are right, and how long it takes. Then it is started N times
for each signal, which comes at a random moment, or shortly after a temporary file has appeared; every other time over
files of an earlier run. After that each file must be absent, as it was before, or whole; an exit code must be the
signal's, or 0 if it came in the last moments; nothing may be said of a fault; and only SIGKILL may leave temporaries,
or some of the files that a verb adds to a folder of the user's. Then the verb is run again, training and streaming with
--resume: it must end well with the same bits, and leave no temporaries.

Every run is a fork of this process, which has loaded the package and does nothing else. Exit code 0: nothing was found.
1: something was; it is told. 2: bad usage. The last line counts the runs by verb, signal and exit code.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sparsenn.cli import run
from sparsenn.cli.program import VERBS
from sparsenn.datasets import generate
from sparsenn.io import read_checkpoint, write_dataset, write_model, write_official
from sparsenn.layers import Linear, ReLU
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.runtime.storage import cache_folder

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
"""The first cannot be handled or blocked."""
LONGEST = 120.0
"""Seconds after which a process counts as hanging."""
LAST_MOMENTS = 0.5
"""Seconds that a process may go on after a signal and still end well; more, and the signal was lost."""
LOOK_EVERY = 0.0005
BEFORE = "{}"
"""Content of a file that is there before a run."""
ENDS = {".html": "</html>", ".svg": "</svg>", ".tex": "\\end{tabular}"}
"""Last bytes of whole documents, by suffix."""
CHOICES = "choices"
"""Folder of measured choices in the cache folder, whose files differ from run to run."""
PIECES = ".pieces"
"""Suffix of a folder of what a run has done, which the next one resumes."""
STARTS_WITH = ("cli", "engine", "io.files", "io.challenge.folder", "io.tables.csv", "datasets", "training", "report")
"""Modules loaded before anything is started."""


class Verb:
    """One way to use a verb: its words, and the files that must be the same each time."""

    def __init__(
        self,
        *words: str,
        folder: str = "",
        resumed: str = "",
        timed: tuple[str, ...] = (),
        over: bool = False,
        adds: bool = False,
        cache: bool = False,
    ) -> None:
        self.words = words
        self.adds = adds  # several files to a folder that is there
        self.folder = folder  # made by it, as a whole
        self.resumed = resumed  # a checkpoint
        self.timed = timed  # files that differ from run to run
        self.over = over  # whether it writes over files that are there
        self.cache = cache  # whether the cache folder is in the folder that it runs in

    def command(self, work: Path) -> list[str]:
        resume = self.resumed and (work / self.resumed).exists()
        return [*(word.format(work=work) for word in self.words), *(["--resume"] if resume else [])]


def verbs(scratch: Path, address: str) -> dict[str, Verb]:
    data, problem = str(scratch / "data.csv"), str(scratch / "problem.h5")
    new = ["--neurons", "1024", "--layers", "4", "--images", "100", "--inputs", "digits", "--no-progress"]
    train = ["train", data, "--hidden", "64,64", "--epochs", "5", "--seed", "3", "--device", "cpu"]
    pieces = ["infer", problem, "--stream", "--resume", "--memory-limit", "10M", "--device", "cpu"]
    # a result's description has the plan's measured times, which a reproducible session does without
    files = ["--output", "{work}/found.h5", "--json", "{work}/found.json", "--device", "cpu", "--reproducible"]
    convert = ["challenge", "convert", "--layers", "4", problem]
    model, rows = str(scratch / "model.h5"), str(scratch / "rows")
    drawn = ["--report", "{work}/found.html", "--trace", "{work}/trace.json.gz", "--plot", "{work}/layers.svg"]
    return {
        "infer": Verb("infer", problem, *files, timed=("found.json",), over=True),
        "infer-drawn": Verb("infer", problem, *drawn, timed=("found.html", "trace.json.gz", "layers.svg"), over=True),
        "predict": Verb("predict", model, rows + ".csv", "--scores", "--output", "{work}/found.csv", over=True),
        "predict-arrays": Verb(
            *("predict", model, rows + ".npy", "--json", "{work}/found.json", "--output", "{work}/found.npz"),
            timed=("found.json",),
            over=True,
        ),
        "predict-stream": Verb(
            *("predict", model, rows + ".npy", "--stream", "--resume", "--memory-limit", "2M"),
            *("--output", "{work}/found.npy"),
        ),
        "convert-model": Verb("convert", model, "{work}/model.onnx", over=True),
        "tune": Verb("tune", model, "--rows", "4,64", "--json", "{work}/found.json", timed=("found.json",), cache=True),
        "benchmark": Verb(
            *("challenge", "benchmark", problem, "--runs", "2", "--device", "cpu"),
            *("--output", "{work}/rates.tex", "--json", "{work}/rates.json"),
            timed=("rates.tex", "rates.json"),
            over=True,
        ),
        "stream": Verb(*pieces, "--output", "{work}/found.npy", "--json", "{work}/found.json", timed=("found.json",)),
        "train": Verb(*train, "--checkpoint", "{work}/state.h5", "--output", "{work}/model.h5", resumed="state.h5"),
        "generate": Verb("challenge", "generate", "{work}/made.h5", *new, over=True),
        "generate-folder": Verb("challenge", "generate", "{work}/made", *new, "--no-truth", folder="made"),
        "convert": Verb(*convert, "{work}/copy.h5", over=True),
        "convert-official": Verb("challenge", "convert", str(scratch / "official"), "{work}/copy.h5", over=True),
        "convert-folder": Verb(*convert, "{work}/copy", folder="copy"),
        "convert-archive": Verb(*convert, "{work}/copy", "--archive", folder="copy"),
        "convert-into": Verb(*convert, "{work}", "--archive", adds=True),
        "download": Verb(
            *("challenge", "download", "1024", "{work}", "--layers", "120", "--url", address), timed=("downloads.json",)
        ),
    }


def forked(work: Callable[..., Any], *arguments: Any) -> int:
    """Call a function in a fork of this process; returns the fork's number."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def started(verb: Verb, work: Path, log: Path) -> int:
    """Start the program; returns its process's number."""

    words = verb.command(work)
    log.touch()  # a signal may come before the fork opens it

    def program() -> None:
        for number in SIGNALS[1:]:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        said = os.open(log, os.O_WRONLY | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if verb.cache:
            os.environ["NUMBA_CACHE_DIR"] = str(cache_folder() / "numba")
            os.environ["SPARSENN_CACHE"] = str(work)
        sys.argv = ["sparsenn", *words]
        run()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])  # until then the fork would lose one
    try:
        return forked(program)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ended(child: int) -> int | None:
    """Wait for a process, and return its exit code, that of a signal below zero; None if it hung."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK_EVERY)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder; unlike tempfile's, forks do not remove it when they end."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def temporaries(work: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in work.rglob("*.part") if path.name.startswith(".")]
    return []


def contents(work: Path, verb: Verb) -> dict[str, str]:
    """The digest of each file; of a checkpoint or a document, that it can be read."""
    found = {}
    left = temporaries(work)
    for path in sorted(work.rglob("*")):
        part = path.suffix == ".part" or path.name.endswith(".part.json")  # of a download: to be resumed
        if not path.is_file() or part or any(folder in path.parents for folder in left):
            continue
        if path.parent.suffix == PIECES:
            continue
        name = str(path.relative_to(work))
        if name == verb.resumed:
            read_checkpoint(path)
        timed = name in (*verb.timed, verb.resumed) or path.parent.name == CHOICES
        if timed and name != verb.resumed:
            check_document(path)
        found[name] = "sound" if timed else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def check_document(path: Path) -> None:
    """Raise ValueError unless a document is whole, or as it was before the run."""
    data = path.read_bytes()
    if data == BEFORE.encode():
        return
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    if ".json" in path.suffixes:
        json.loads(text)
    elif not text.rstrip().endswith(ENDS[path.suffix]):
        raise ValueError(f"{path.name} has no end")


def wait_for_moment(child: int, work: Path, usual: float) -> None:
    """Return at a random moment of a run, or shortly after it has begun to write."""
    start = time.monotonic()
    if random.random() < 0.4:
        moment = start + random.uniform(0, usual)
        while time.monotonic() < moment and not is_over(child):
            time.sleep(LOOK_EVERY)
        return
    wanted, seen = random.randrange(1, 4), set()
    while len(seen) < wanted and time.monotonic() < start + 3 * usual and not is_over(child):
        seen |= {path.name for path in temporaries(work)}
        time.sleep(LOOK_EVERY)
    time.sleep(random.choice([0, random.uniform(0, 0.003), random.uniform(0, 0.05)]))


def is_over(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def trial(verb: Verb, number: signal.Signals, over: bool, right: dict[str, str], usual: float) -> Iterator[str | int]:
    """Run a verb, send it a signal, look, and run it again; yields the exit code, then what is wrong."""
    with scratch_folder() as folder:
        work, log = folder / "work", folder / "log"
        work.mkdir()
        if over and verb.over:
            for name in right:
                (work / name).write_text(BEFORE)
        before = contents(work, verb)
        child = started(verb, work, log)
        wait_for_moment(child, work, usual)
        os.kill(child, number)
        sent = time.monotonic()
        code = ended(child)
        lasted = time.monotonic() - sent
        yield "hangs" if code is None else code
        expected = {0, -number} if number == signal.SIGKILL else {0, 128 + number, -number}
        if code not in expected:
            yield f"exit code {code}"
        if code == 0 and lasted > LAST_MOMENTS:
            yield f"the signal is lost, {lasted:.1f} s before the end"
        said = log.read_text(errors="replace")
        if "Traceback" in said or "fault" in said or "Exception" in said:
            yield f"exit code {code}, says {said!r}"
        try:
            found = contents(work, verb)
        except Exception as error:
            yield f"left a file that cannot be read: {error!r}"
            return
        for name, digest in found.items():
            if digest not in (right.get(name), before.get(name)):
                yield f"left {name} half-written, {(work / name).stat().st_size:,} bytes"
        if verb.folder and found and set(found) != set(right):
            yield f"left {len(found)} of {len(right)} files"
        if temporaries(work) and number != signal.SIGKILL:
            yield f"left {temporaries(work)[0].name}"
        if number == signal.SIGKILL and verb.adds and found != right:
            for name in found:
                (work / name).unlink()
        for path in temporaries(work):  # of which one may hold another
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        again = "is there already" if found == right else None
        code = ended(started(verb, work, log))
        said = log.read_text(errors="replace")
        if code != 0 and not (again and again in said):
            yield f"the next run: exit code {code}, {said[-300:]!r}"
        elif contents(work, verb) != right:
            yield "the next run gives other bits"
        for path in (*temporaries(work), *work.glob(f"*{PIECES}")):
            yield f"the next run leaves {path.name}"


def make(scratch: Path, published: bool) -> None:
    """Make what verbs read, and what can be downloaded if that is wanted."""
    rng = np.random.default_rng(0)
    np.savetxt(scratch / "data.csv", rng.standard_normal((400, 9)), "%.6f", delimiter=",")
    write_dataset(generate(1024, 12, inputs="digits", images=300), scratch / "problem.h5")
    write_official(generate(1024, 4, inputs="digits", images=100), scratch / "official")
    rows = rng.standard_normal((3000, 64), np.float32)
    np.save(scratch / "rows.npy", rows)
    np.savetxt(scratch / "rows.csv", rows[:600], "%.6f", delimiter=",")
    layers = [Linear(rng.standard_normal(shape), None, ReLU()) for shape in ((64, 100), (100, 10))]
    write_model(scratch / "model.h5", Model(Network(tuple(layers)), "cross_entropy", True))
    if published:
        write_official(generate(1024, 120, inputs="digits", images=60), scratch / "dnn", archive=True, compress=True)
        (scratch / "mnist").symlink_to("dnn")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and yield its address."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split(' port ')[1].split()[0]}/"
        finally:
            server.kill()


def campaign(known: dict[str, Verb], runs: int, seconds: float, scratch: Path) -> Counter[str]:
    tally: Counter[str] = Counter()
    end = time.monotonic() + seconds
    if ended(forked(make, scratch, "download" in known)) != 0:  # elsewhere, so that this process has no threads
        raise SystemExit("what verbs read cannot be made")
    for name, verb in known.items():
        work = scratch / f"right-{name}"
        work.mkdir()
        for _ in range(2):  # the first may compile
            shutil.rmtree(work)
            work.mkdir()
            start = time.monotonic()
            code = ended(started(verb, work, scratch / "log"))
            usual = time.monotonic() - start
            if code != 0:
                raise SystemExit(f"{name} itself fails: {(scratch / 'log').read_text()}")
        right = contents(work, verb)
        for count in range(runs * len(SIGNALS)):
            number = SIGNALS[count % len(SIGNALS)]
            if time.monotonic() > end:
                break
            code, *wrong = trial(verb, number, bool(count // len(SIGNALS) % 2), right, usual)
            tally[f"{name} {number.name} {code}"] += 1
            for text in wrong:
                tally["found"] += 1
                print(f"{name}, {number.name}: {text}", flush=True)
        print(f"{name}: done, a run takes {usual:.2f} s", flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="End verbs at random moments, and check what they leave.")
    parser.add_argument("verbs", nargs="*", metavar="VERB", help="all unless given")
    parser.add_argument("--runs", type=int, default=20, help="of each verb for each signal; 20 unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so many")
    parser.add_argument("--json", type=Path, help="write the counts here")
    given = parser.parse_args()
    unknown = set(given.verbs) - set(verbs(Path(), ""))
    if unknown:
        parser.error(f"no such verb: {', '.join(sorted(unknown))}; there are {', '.join(verbs(Path(), ''))}")
    random.seed(given.seed)
    for name in STARTS_WITH:
        import_module(f"sparsenn.{name}")
    import_module("matplotlib.backends.backend_svg")
    for verb in VERBS:
        import_module(f"sparsenn.cli.{verb.module}")
    with scratch_folder() as folder, served(folder) as address:
        known = verbs(folder, address)
        chosen = {name: verb for name, verb in known.items() if name in (given.verbs or known)}
        tally = campaign(chosen, given.runs, given.seconds, folder)
    counts = json.dumps(dict(sorted(tally.items())))
    if given.json is not None:
        given.json.write_text(counts + "\n")
    print(counts)
    return int(tally["found"] > 0)


if __name__ == "__main__":
    sys.exit(main())
