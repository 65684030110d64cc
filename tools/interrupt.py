#!/usr/bin/env python3
"""End verbs that write files at random moments, by SIGKILL, SIGINT and SIGTERM, and check what they leave.

    tools/interrupt.py [--runs N] [--seed S] [--seconds S] [--json FILE] [VERB ...]

Each verb is run to its end once; that gives the correct bits, and the time of a run. Then it is started N times
for each signal, which comes at a random moment, or shortly after a temporary file has appeared; every other time over
files of an earlier run. After that each file must be absent, as it was before, or whole; an exit code must be the
signal's, or 0 if it came in the last moments; nothing may be said of a fault; and only SIGKILL may leave temporaries,
or some of the files that a verb adds to a folder of the user's. Then the verb is run again, training and streaming with
--resume: it must end well with the same bits, and leave no temporaries.

Every run is a fork of this process, which has loaded the package and does nothing else. Exit code 0: nothing was found.
1: something was, and is reported. 2: bad usage. The last line counts the runs by verb, signal and exit code.
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
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from sparsenn.cli import run
from sparsenn.cli.program import VERBS
from sparsenn.datasets import generate
from sparsenn.io import read_checkpoint, write_dataset, write_model, write_official
from sparsenn.layers import Linear, ReLU
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.runtime.storage import cache_folder

SERVER = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
"""Serves the folder that this runs in."""
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
"""The first cannot be handled or blocked."""
LONGEST = 120.0
"""Seconds after which a process counts as hanging."""
LAST_MOMENTS = 0.5
"""Seconds that a process may go on after a signal and still end well; more, and the signal was lost."""
BEFORE = b"{}"
"""Content of a file that is there before a run."""
ENDS = {".html": "</html>", ".svg": "</svg>", ".tex": "\\end{tabular}"}
"""Last bytes of whole documents, by suffix."""
CHECKPOINT = "state.h5"
PIECES = ".pieces"
"""Suffix of a folder of what a run has done, which the next one resumes."""
MODULES = ["cli", "engine", "io.files", "io.challenge.folder", "io.tables.csv", "datasets", "training", "report"]
"""Modules of the package that are loaded before anything is started, with those of all verbs."""

NEW = "--neurons 1024 --layers 4 --images 100 --inputs digits --no-progress"
COPY = "challenge convert --layers 4 problem.h5"
STREAM = "--stream --resume --output {work}/found.npy"
USES = {
    # a result's description has the plan's measured times, which a reproducible session does without
    "infer": ("over", "infer problem.h5 --output {work}/a.h5 --json {work}/a.json --device cpu --reproducible"),
    "infer-drawn": ("over", "infer problem.h5 --report {work}/a.html --trace {work}/a.json.gz --plot {work}/a.svg"),
    "predict": ("over", "predict model.h5 rows.csv --scores --output {work}/found.csv"),
    "predict-arrays": ("over", "predict model.h5 rows.npy --json {work}/found.json --output {work}/found.npz"),
    "predict-stream": ("", f"predict model.h5 rows.npy {STREAM} --memory-limit 2M"),
    "convert-model": ("over", "convert model.h5 {work}/model.onnx"),
    "tune": ("cache", "tune model.h5 --rows 4,64 --json {work}/found.json"),
    "benchmark": (
        "over",
        "challenge benchmark problem.h5 --runs 2 --device cpu --output {work}/a.tex --json {work}/a.json",
    ),
    "stream": ("", f"infer problem.h5 {STREAM} --json {{work}}/found.json --memory-limit 10M --device cpu"),
    "train": (
        "resumed",
        "train data.csv --hidden 64,64 --epochs 5 --seed 3 --device cpu --output {work}/model.h5 --checkpoint {work}/"
        + CHECKPOINT,
    ),
    "generate": ("over", f"challenge generate {{work}}/made.h5 {NEW}"),
    "generate-folder": ("folder", f"challenge generate {{work}}/made {NEW} --no-truth"),
    "convert": ("over", f"{COPY} {{work}}/copy.h5"),
    "convert-official": ("over", "challenge convert official {work}/copy.h5"),
    "convert-folder": ("folder", f"{COPY} {{work}}/copy"),
    "convert-archive": ("folder", f"{COPY} {{work}}/copy --archive"),
    "convert-into": ("adds", f"{COPY} {{work}} --archive"),
    "download": ("", f"challenge download 1024 {{work}} --layers 120 --url http://127.0.0.1:{SERVER.server_port}/"),
}
"""Words of verbs. Some write over files that are there, make a folder as a whole, or add files to one that is there,
resume from a checkpoint, or have the cache folder where they work."""


def start(use: str, work: Path, log: Path) -> BaseProcess:
    """Start the program in a fork."""
    kind, text = USES[use]
    words = text.format(work=work).split()
    if kind == "resumed" and (work / CHECKPOINT).exists():
        words.append("--resume")
    log.touch()  # a signal may come before the fork opens it

    def program() -> None:
        for number in SIGNALS[1:]:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        output = os.open(log, os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if kind == "cache":
            os.environ["NUMBA_CACHE_DIR"] = str(cache_folder() / "numba")
            os.environ["SPARSENN_CACHE"] = str(work)
        sys.argv = ["sparsenn", *words]
        run()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])  # until then the fork would lose one
    try:
        return fork(program)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(work: Callable[..., object], *arguments: object, **options: bool) -> BaseProcess:
    process = get_context("fork").Process(target=work, args=arguments, **options)
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    """Wait for a process, and return its exit code, that of a signal below zero; None if it hung."""
    process.join(LONGEST)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    return code


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder; unlike tempfile's, forks do not remove it when they end."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def temporaries(work: Path) -> list[Path]:
    try:
        return [*work.rglob(".*.part")]
    except OSError:  # one went meanwhile
        return []


def contents(work: Path) -> dict[str, str]:
    """Return the digest of each file; of a checkpoint or a document, that it can be read."""
    found = {}
    left = temporaries(work)
    for path in sorted(work.rglob("*")):
        of_download = path.suffix == ".part" or path.name.endswith(".part.json")  # to be resumed
        if not path.is_file() or of_download or path.parent.suffix == PIECES or not set(left).isdisjoint(path.parents):
            continue
        name = str(path.relative_to(work))
        if name == CHECKPOINT:
            read_checkpoint(path)
        elif ".json" in path.suffixes or path.suffix in ENDS:
            check_document(path)
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            continue
        found[name] = "sound"
    return found


def check_document(path: Path) -> None:
    """Raise ValueError unless a document is whole, or as it was before the run."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" and data != BEFORE else data).decode()
    if ".json" in path.suffixes:
        json.loads(text)
    elif data != BEFORE and not text.rstrip().endswith(ENDS[path.suffix]):
        raise ValueError(f"{path.name} has no end")


def wait_for_moment(process: BaseProcess, work: Path, usual: float) -> None:
    """Return at a random moment of a run, or shortly after it has begun to write."""
    if random.random() < 0.4:
        process.join(random.uniform(0, usual))
        return
    end = time.monotonic() + 3 * usual
    wanted, seen = random.randrange(1, 4), set()
    while len(seen) < wanted and time.monotonic() < end and process.is_alive():
        seen |= {path.name for path in temporaries(work)}
        time.sleep(0.0005)
    time.sleep(random.choice([0, random.uniform(0, 0.003), random.uniform(0, 0.05)]))


def trial(use: str, number: signal.Signals, over: bool, whole: dict[str, str], usual: float) -> Iterator[str | int]:
    """Run a verb, send it a signal, look, and run it again; yields the exit code, then what is wrong."""
    kind = USES[use][0]
    with scratch_folder() as folder:
        work, log = folder / "work", folder / "log"
        work.mkdir()
        for name in whole if over and kind == "over" else ():
            (work / name).write_bytes(BEFORE)
        before = contents(work)
        process = start(use, work, log)
        wait_for_moment(process, work, usual)
        if process.is_alive():
            os.kill(process.pid, number)
        sent = time.monotonic()
        code = exit_code(process)
        lasted = time.monotonic() - sent
        yield "hangs" if code is None else code
        if code not in {0, -number} | (set() if number == signal.SIGKILL else {128 + number}):
            yield f"exit code {code}"
        if code == 0 and lasted > LAST_MOMENTS:
            yield f"the signal is lost, {lasted:.1f} s before the end"
        output = log.read_text(errors="replace")
        if any(word in output for word in ("Traceback", "fault", "Exception")):
            yield f"exit code {code}, says {output!r}"
        try:
            found = contents(work)
        except Exception as error:
            yield f"left a file that cannot be read: {error!r}"
            return
        for name, digest in found.items():
            if digest not in (whole.get(name), before.get(name)):
                yield f"left {name} half-written, {(work / name).stat().st_size:,} bytes"
        if kind == "folder" and found and found.keys() != whole.keys():
            yield f"left {len(found)} of {len(whole)} files"
        left = temporaries(work)
        if left and number != signal.SIGKILL:
            yield f"left {left[0].name}"
        if number == signal.SIGKILL and kind == "adds" and found != whole:
            for name in found:
                (work / name).unlink()
        for path in left:  # of which one may hold another
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        code = exit_code(start(use, work, log))
        output = log.read_text(errors="replace")
        if code != 0 and not (found == whole and "is there already" in output):
            yield f"the next run: exit code {code}, {output[-300:]!r}"
        elif contents(work) != whole:
            yield "the next run gives other bits"
        for path in (*temporaries(work), *work.glob(f"*{PIECES}")):
            yield f"the next run leaves {path.name}"


def make() -> None:
    """Make what verbs read, and what can be downloaded."""
    rng = np.random.default_rng(0)
    np.savetxt("data.csv", rng.standard_normal((400, 9)), "%.6f", delimiter=",")
    write_dataset(generate(1024, 12, inputs="digits", images=300), "problem.h5")
    write_official(generate(1024, 4, inputs="digits", images=100), "official")
    rows = rng.standard_normal((3000, 64), np.float32)
    np.save("rows.npy", rows)
    np.savetxt("rows.csv", rows[:600], "%.6f", delimiter=",")
    layers = [Linear(rng.standard_normal(shape), None, ReLU()) for shape in ((64, 100), (100, 10))]
    write_model("model.h5", Model(Network(tuple(layers)), "cross_entropy", True))
    write_official(generate(1024, 120, inputs="digits", images=60), "dnn", archive=True, compress=True)
    Path("mnist").symlink_to("dnn")


def serve() -> None:
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        SERVER.serve_forever()


def campaign(names: list[str], runs: int, seconds: float) -> Counter[str]:
    tally: Counter[str] = Counter()
    end = time.monotonic() + seconds
    if exit_code(fork(make)) != 0:  # elsewhere, so that this process has no threads
        raise SystemExit("what verbs read cannot be made")
    for name in names:
        work, log = Path(f"whole-{name}").absolute(), Path("log").absolute()
        for _ in range(2):  # the first may compile
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            began = time.monotonic()
            code = exit_code(start(name, work, log))
            usual = time.monotonic() - began
            if code != 0:
                raise SystemExit(f"{name} itself fails: {log.read_text()}")
        whole = contents(work)
        for count in range(runs * len(SIGNALS)):
            if time.monotonic() > end:
                break
            number = SIGNALS[count % len(SIGNALS)]
            code, *wrong = trial(name, number, count // len(SIGNALS) % 2 == 1, whole, usual)
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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--json", type=Path, help="write the counts here")
    options = parser.parse_args()
    if unknown := set(options.verbs) - USES.keys():
        parser.error(f"no such verb: {', '.join(sorted(unknown))}; there are {', '.join(USES)}")
    random.seed(options.seed)
    for name in (*MODULES, *(f"cli.{verb.module}" for verb in VERBS)):
        import_module(f"sparsenn.{name}")
    import_module("matplotlib.backends.backend_svg")
    with scratch_folder() as folder, chdir(folder):
        fork(serve, daemon=True)
        tally = campaign(options.verbs or [*USES], options.runs, options.seconds)
    counts = json.dumps(dict(sorted(tally.items())))
    if options.json is not None:
        options.json.write_text(counts + "\n")
    print(counts)
    return int(tally["found"] > 0)


if __name__ == "__main__":
    sys.exit(main())
