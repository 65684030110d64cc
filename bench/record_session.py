"""Record what callers of a `Session` wait for, warm, through the public API, beside PyTorch and NumPy in the same run.

Usage: python bench/record_session.py [--table session|sparse-layers] [--device cuda|cpu] [--data FOLDER]
[--images FOLDER] [--models FOLDER] [--only KEY ...] [--runs R] [--seconds S] [--machine NAME]

DATA holds the folders `mnist` (the four IDX files) and `networks` (pruned networks as .npz); by default it is where the
environment variable SPARSENN_TEST_DATA points, or shared/data beside the repository. IMAGES holds what
`packed_images.py` wrote; the challenge's inputs are made from MNIST without. MODELS holds lenet86.h5 and
lenet86-pruned.h5. A case whose data is not there is left out, and the result says so.

Each answer is held against the float64 reference on rows from all over the inputs, or against the true categories,
before it is timed, and must have the same bits after. Writes bench/results/<machine>/<table>.json; of a CPU,
<table>-cpu.json.
The exit code is 1 if an answer is wrong (that case is not recorded), a case fails, or a time is above its limit.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ceilings import Peaks, ceilings
from results_file import ROOT, Column, results_path, write_results
from session_cases import CASES, TABLES, Case, Problem, Sources
from session_peers import PRECISIONS, Way, left_out, numpy_way, torch, torch_categories, torch_ways
from wall_timing import RUNS, Timing, gpu_wait, timed, wait_for_nothing

from sparsenn import CSR, Network, Session
from sparsenn.errors import SparseNNError

ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""Largest difference from float64 after one layer, in parts of the largest output; it may grow with the root of the
number of layers."""

MOST_SAMPLED, CHECKED_WORK = 256, 1e9
"""Rows that the reference computes at most, and multiply-adds."""

NUMPY = "NumPy"

PEER_SECONDS = 0.5
"""For the runs of one way of PyTorch or NumPy."""

MOST_DENSE_BYTES = 2 << 30
"""Of rows that other ways take dense though they are sparse."""

WARM_SECONDS = 0.2
"""Calls go before those that are timed for so long: processors at rest take a while to run at their clock."""

RUN_SECONDS = 0.01
"""Calls that are shorter are timed more often, for as long as if they took that: a processor that others use, too, may
be slow for longer than a few of them take."""

COLUMNS = (
    Column("call", "call"),
    Column("precision", "precision"),
    Column("milliseconds", "time (ms)", "{:,.3f}"),
    Column("spread_milliseconds", "spread (ms)", "{:.3f}"),
    Column("limit_milliseconds", "limit (ms)", "{:,.3f}"),
    Column("aim_milliseconds", "aim (ms)", "{:,.3f}"),
    Column("peer_milliseconds", "fastest peer (ms)", "{:,.3f}"),
    Column("peer", "which one"),
    Column("floor_milliseconds", "floor (ms)", "{:,.3f}"),
    Column("floor_share", "% of roofline", "{:.0%}"),
    Column("first_seconds", "made and first called (s)", "{:.3f}"),
    Column("compile_seconds", "of it kernels (s)", "{:.3f}"),
    Column("prepare_seconds", "weights, buffers, graphs (s)", "{:.3f}"),
    Column("kernels", "kernels"),
)

Row = dict[str, Any]


class WrongAnswerError(Exception):
    """An answer is not what it should be."""


# ---- What the device can do -------------------------------------------------------------------------------------


def peaks_of(device: str) -> Peaks:
    """Measure a device."""
    if device == "cpu":
        found = ceilings()
        return Peaks(found.copy_bandwidth, found.multiply_adds)
    import cupy
    from device_peaks import peaks

    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(256 << 20), np.uint8, 256 << 20)
    target, stream = cupy.empty(pinned.size, np.uint8), cupy.cuda.Stream(non_blocking=True)
    copy = timed(lambda: target.set(pinned, stream), stream.synchronize, 20)
    return replace(peaks(), link=1e3 * pinned.nbytes / copy.median)


# ---- One case ---------------------------------------------------------------------------------------------------


@dataclass
class Recorder:
    """Measures cases one after the other.

    Parameters
    ----------
    rows : what was found, by the case's key.
    notes : what could not be measured, in words.
    """

    sources: Sources
    top: Peaks
    runs: int = RUNS
    rows: dict[str, Row] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _made: tuple[Callable[[Sources], Problem], Problem, tuple[np.ndarray, np.ndarray]] | None = None

    def record(self, case: Case) -> Row:
        """Check a case, time it, and time what it is compared with.

        Raises
        ------
        WrongAnswerError
            The answer is not that of the reference, or not the same each time.
        SparseNNError
            The session refuses it.
        OSError
            Its data is not there.
        """
        problem, right = self._problem(case)
        wait = gpu_wait() if case.device == "cuda" else wait_for_nothing
        placed = place(problem.rows, case)
        wait()
        start = time.perf_counter()
        session = Session(problem.network, device=case.device, precision=case.precision, merging=case.merging)
        with session:
            first = session.run(placed, statistics=False)
            wait()
            first_seconds = time.perf_counter() - start
            call = call_of(case, session, placed)
            answer = call()
            error = check(case, problem, answer, right)
            timing = self._timed(call, wait)
            if not _equal(call(), answer):
                raise WrongAnswerError("a later call gave other bits than the first")
            result = session.run(placed)
            plan, held = result.plan, session.nbytes
        peers = list(self._peers(case, problem, right, wait))
        classes = _right_classes(problem, answer)
        best = _best_peer(case, peers, classes)
        beside = self._beside(case, best, peers, placed, wait)
        work = min(result.performed_edges, len_of(problem.rows) * problem.network.multiply_adds)
        floor = self._floor(case, problem, placed, answer, work)
        row = {
            "key": case.key,
            "call": case.call,
            "device": case.device,
            "precision": case.precision,
            "milliseconds": timing.median,
            "spread_milliseconds": timing.spread,
            "runs": timing.runs,
            "limit_milliseconds": _scaled(case.limit, beside, case.beside),
            "aim_milliseconds": _scaled(case.aim, beside, case.beside),
            "beside": case.beside,
            "beside_milliseconds": beside,
            "peer": best and best["way"],
            "peer_milliseconds": best and best["milliseconds"],
            "peers": peers,
            "floor_milliseconds": 1e3 * floor,
            "floor_share": 1e3 * floor / timing.median,
            "first_seconds": first_seconds,
            "plan_seconds": first.seconds.plan,
            "compile_seconds": first.seconds.compile,
            "prepare_seconds": first.seconds.prepare,
            "kernels": ", ".join(dict.fromkeys(kernel.name for kernel in plan.kernels)),
            "plan": str(plan),
            "estimate_milliseconds": None if plan.estimate is None else 1e3 * plan.estimate,
            "error": error,
            "right": classes,
            "categories": int(answer.size) if case.categories else None,
            "multiply_adds": int(work),
            "session_bytes": int(held),
        }
        self.rows[case.key] = row
        return row

    def _problem(self, case: Case) -> tuple[Problem, tuple[np.ndarray, np.ndarray]]:
        """Return a case's problem and some of the right outputs; those of the case before where they are the same."""
        if self._made is None or self._made[0] is not case.make:
            self._made = None  # the one before goes first: both may not fit
            problem = case.make(self.sources)
            self._made = case.make, problem, exact(problem)
        return self._made[1:]

    def _timed(self, call: Callable[[], Any], wait: Callable[[], None], most_seconds: float | None = None) -> Timing:
        least = RUN_SECONDS * self.runs
        return timed(call, wait, self.runs, most_seconds=most_seconds, warm_seconds=WARM_SECONDS, least_seconds=least)

    def _floor(self, case: Case, problem: Problem, placed: Any, answer: Any, work: int) -> float:
        moved = bytes_of(placed) + answer.nbytes
        weights = sum(getattr(layer, "weight_bytes", 0) for layer in problem.network)
        on_link = case.device == "cuda" and case.where == "host"
        return self.top.floor(weights + moved, work, case.precision, moved if on_link else 0)

    def _beside(
        self, case: Case, best: Row | None, peers: Sequence[Row], placed: Any, wait: Callable[[], None]
    ) -> float | None:
        """Return the milliseconds that limit and aim are relative to; None where they were not measured."""
        if case.beside == "peer":
            return best and best["milliseconds"]
        if case.beside == "numpy":
            return min((peer["milliseconds"] for peer in peers if peer["way"].startswith(NUMPY)), default=None)
        if case.beside == "copy":
            import cupy

            return self._timed(lambda: cupy.asarray(placed), wait).median
        if case.beside is not None and case.beside in self.rows:
            return float(self.rows[case.beside]["milliseconds"])
        return None

    def _peers(
        self, case: Case, problem: Problem, right: tuple[np.ndarray, np.ndarray], wait: Callable[[], None]
    ) -> Iterator[Row]:
        """Yield what other ways take that give the answer, too."""
        # where classes are counted, a lower precision that finds as many of them is a fair peer
        lower = case.device == "cuda" and problem.classes is not None
        precisions = PRECISIONS if lower else (case.precision,)
        most = None if case.beside in ("peer", "numpy") else PEER_SECONDS
        for way in self._ways(case, problem, precisions):
            try:
                found = way.outputs(way.run())
                timing = self._timed(way.run, _torch_wait(case, wait), most)
            except RuntimeError as error:  # memory does not suffice, or PyTorch does not offer it
                left_out(error)
                continue
            try:
                check(replace(case, precision=way.precision), problem, found, right)
            except WrongAnswerError as error:
                print(f"{case.key}: {way.name} in {way.precision}: {error}: left out", file=sys.stderr)
                continue
            classes = _right_classes(problem, found)
            del found  # before the next way makes its own
            yield {
                "way": way.name,
                "precision": way.precision,
                "milliseconds": timing.median,
                "spread_milliseconds": timing.spread,
                "runs": timing.runs,
                "right": classes,
            }

    def _ways(self, case: Case, problem: Problem, precisions: Sequence[str]) -> Iterator[Way]:
        if case.categories:
            yield from _category_ways(case, problem)
            return
        rows = problem.rows
        if not isinstance(rows, np.ndarray):
            return
        if case.device == "cpu":
            try:
                way = numpy_way(problem.network, rows)
                yield Way(f"{NUMPY}, {way.name}", way.precision, way.run, way.outputs)
            except SparseNNError as error:
                self.notes.append(f"{case.call}: NumPy is left out: {error}.")
        if torch is None:
            return
        for precision in precisions:
            try:
                for way in torch_ways(problem.network, rows, case.device, case.where, precision):
                    yield Way(f"PyTorch, {way.name}", way.precision, way.run, way.outputs)
            except (SparseNNError, RuntimeError) as error:
                left_out(error)


def _category_ways(case: Case, problem: Problem) -> Iterator[Way]:
    """Yield PyTorch's way to the categories, of rows that are where it computes, if they are not too many there."""
    count = len_of(problem.rows)
    if torch is None or case.where == "host" or 4 * count * problem.network.inputs > MOST_DENSE_BYTES:
        return
    rows = problem.rows.to_scipy().toarray() if isinstance(problem.rows, CSR) else problem.rows
    way = torch_categories(problem.network, rows.astype(np.float32), case.device)
    yield Way(f"PyTorch, {way.name}", way.precision, way.run, way.outputs)


def call_of(case: Case, session: Session, placed: Any) -> Callable[[], Any]:
    """Return what a case times."""
    if case.categories:
        return lambda: session.run(placed, statistics=False).categories
    return lambda: session(placed)


def _torch_wait(case: Case, wait: Callable[[], None]) -> Callable[[], None]:
    return torch.cuda.synchronize if case.device == "cuda" and torch is not None else wait


def _scaled(factor: float | None, beside: float | None, named: str | None) -> float | None:
    """Return milliseconds: the factor itself where it is relative to nothing."""
    if factor is None or named is None:
        return factor
    return None if beside is None else factor * beside


def _right_classes(problem: Problem, outputs: Any) -> int | None:
    if problem.classes is None:
        return None
    found = fetched(outputs.reshape(len(problem.classes), -1).argmax(axis=1))
    return int((found == problem.classes).sum())


def _best_peer(case: Case, peers: Sequence[Row], classes: int | None) -> Row | None:
    """Return the fastest way of the same precision, or, where classes are counted, that finds as many of them."""
    fair = [
        peer
        for peer in peers
        if peer["precision"] == case.precision or (classes is not None and peer["right"] >= classes)
    ]
    return min(fair, key=lambda peer: peer["milliseconds"], default=None)


# ---- Rows and answers -------------------------------------------------------------------------------------------


def place(rows: np.ndarray | CSR, case: Case) -> Any:
    """Return rows as a caller has them: NumPy's or SciPy's on the host, CuPy's on the device."""
    given = rows.to_scipy() if isinstance(rows, CSR) else rows
    if case.where == "host":
        return given
    import cupy

    if isinstance(rows, CSR):
        import cupyx.scipy.sparse

        return cupyx.scipy.sparse.csr_matrix(given)
    return cupy.asarray(given, np.float16 if case.precision == "float16" else np.float32)


def fetched(answer: Any) -> np.ndarray:
    """Return an answer in host memory."""
    return np.asarray(answer.get() if hasattr(answer, "get") else answer)


def sampled(answer: Any, numbers: np.ndarray) -> np.ndarray:
    """Return some rows of an answer in host memory."""
    if isinstance(answer, np.ndarray):
        return answer[numbers]
    import cupy

    return fetched(answer[cupy.asarray(numbers)])


def _equal(left: Any, right: Any) -> bool:
    return bool(left.shape == right.shape and (left == right).all())


def bytes_of(rows: Any) -> int:
    """Return the memory that rows take."""
    parts = (rows.indptr, rows.indices, rows.data) if hasattr(rows, "indptr") else (rows,)
    return sum(int(part.nbytes) for part in parts)


def len_of(rows: np.ndarray | CSR) -> int:
    """Return how many rows there are."""
    return int(rows.shape[0])


def exact(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows' numbers, spread over all, and their float64 outputs by the reference."""
    network, count = problem.network, len_of(problem.rows)
    affordable = max(16, min(MOST_SAMPLED, int(CHECKED_WORK / max(1, network.multiply_adds))))
    numbers = np.unique(np.linspace(0, count - 1, min(count, affordable)).astype(np.int64))
    rows = problem.rows
    sample = rows.to_scipy()[numbers].toarray() if isinstance(rows, CSR) else rows[numbers]
    with Session(network, device="reference") as reference:
        return numbers, np.asarray(reference(sample), np.float64)


def allowed(precision: str, network: Network) -> float:
    """Return the largest difference from float64, in parts of the largest output."""
    weighted = sum(layer.edges > 0 for layer in network)
    return ALLOWED[precision] * math.sqrt(max(1, weighted))


def difference(found: np.ndarray, right: np.ndarray) -> float:
    """Return the largest difference in parts of the largest output; NaN stays NaN."""
    largest = float(np.abs(right).max()) or 1.0
    return float(np.abs(found.reshape(right.shape).astype(np.float64) - right).max()) / largest


def check(case: Case, problem: Problem, answer: Any, right: tuple[np.ndarray, np.ndarray]) -> float | None:
    """Return the difference of the outputs from float64, None where categories are the answer.

    The answer stays where it is, but for the rows that are looked at.

    Raises
    ------
    WrongAnswerError
        They are too far off, not finite, or not the true categories.
    """
    numbers, outputs = right
    if case.categories:
        alive = (outputs != 0).any(axis=1)
        wrong = int((np.isin(numbers, fetched(answer)) != alive).sum())
        if wrong:
            raise WrongAnswerError(f"{wrong} of {numbers.size} inputs that were looked at are in the wrong category")
        if problem.categories is not None and answer.size != problem.categories:
            raise WrongAnswerError(f"{answer.size} categories, not {problem.categories}")
        return None
    if not bool((abs(answer) < np.inf).all()):
        raise WrongAnswerError("an output is not finite")
    error = difference(sampled(answer, numbers), outputs)
    if not error <= allowed(case.precision, problem.network):
        raise WrongAnswerError(f"outputs are off by {error:.1e} of the largest")
    return error


# ---- The command ------------------------------------------------------------------------------------------------


def default_data() -> Path | None:
    """Return where data is looked for."""
    told = os.environ.get("SPARSENN_TEST_DATA")
    folder = Path(told) if told else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record what callers of a Session wait for.")
    parser.add_argument("--table", choices=tuple(TABLES), default="session")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--data", type=Path, default=default_data(), help="folder that holds mnist and networks")
    parser.add_argument("--images", type=Path, help="folder that packed_images.py wrote")
    parser.add_argument("--models", type=Path, default=ROOT / "datasets", help="folder of lenet86.h5")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="record these cases")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=540, help="start no further case after this time")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    known = [case.key for case in CASES if (case.table, case.device) == (options.table, options.device)]
    unknown = set(options.only or ()) - set(known)
    if unknown:
        parser.error(
            f"no case of {options.table} on {options.device} has the key {min(unknown)}; known: {', '.join(known)}"
        )
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = parse(arguments)
    sources = Sources(options.data, options.images, options.models)
    recorder = Recorder(sources, peaks_of(options.device), options.runs)
    failed = _record_all(recorder, options)
    if torch is None:
        recorder.notes.append("PyTorch was not there to compare with.")
    if not recorder.rows:
        print("record_session: no case was recorded", file=sys.stderr)
        return 1
    rows = list(recorder.rows.values())
    print(_write(recorder, options))
    slow = [row for row in rows if row["limit_milliseconds"] and row["milliseconds"] > row["limit_milliseconds"]]
    for row in slow:
        print(f"{row['key']}: {row['milliseconds']:.3f} ms, limit {row['limit_milliseconds']:.3f}", file=sys.stderr)
    return 1 if failed or slow else 0


def _write(recorder: Recorder, options: argparse.Namespace) -> Path:
    """Write what has been recorded so far; return where."""
    name = options.table if options.device == "cuda" else f"{options.table}-cpu"
    path = results_path(name, folder=options.machine)
    write_results(
        path,
        table=options.table,
        title=f"{TABLES[options.table]} on {'a GPU' if options.device == 'cuda' else 'a CPU'}, the answer awaited",
        columns=COLUMNS,
        rows=list(recorder.rows.values()),
        configuration={
            "runs": options.runs,
            "copy_bytes_per_second": recorder.top.copied,
            "link_bytes_per_second": recorder.top.link,
            "multiply_adds_per_second": recorder.top.rates,
            "torch": None if torch is None else torch.__version__,
        },
        notes=[*_notes(options), *dict.fromkeys(recorder.notes)],
    )
    return path


def _notes(options: argparse.Namespace) -> list[str]:
    return [
        f"Wall time of calls through the public API, each until its answer is there: medians and interquartile ranges "
        f"of {options.runs} runs, of more where these take less than {RUN_SECONDS * options.runs:g} s (of peers that "
        f"set no limit, fewer where they would take more than {PEER_SECONDS:g} s). The same rows come each time. "
        "Outputs stay where the rows are. Answers were held against the float64 "
        "reference, or the true categories, first.",
        "Fastest peer: the fastest way in the same precision, of PyTorch's (launch by launch, in a CUDA graph, with "
        "ReLU in the product, sparse times dense) and, on a CPU, of NumPy's dense products; where classes are counted, "
        "in any precision that finds as many of them.",
        "Floor: the larger of weights, rows and outputs moved once at the measured copy bandwidth (from and to the "
        "host at that of pinned memory), and the multiply-adds done at the measured rate of a product in that "
        "precision; for float32 on a GPU at a third of TF32's. What fits into caches may be moved faster.",
        "Made and first called: from network to first answer, in a process that may have loaded kernels for the cases "
        "above.",
    ]


def _record_all(recorder: Recorder, options: argparse.Namespace) -> bool:
    """Record all cases that were asked for; return whether one failed."""
    start, failed = time.perf_counter(), False
    for case in CASES:
        named = not options.only or case.key in options.only
        if not named or (case.table, case.device) != (options.table, options.device):
            continue
        if time.perf_counter() - start > options.seconds:
            recorder.notes.append(f"{case.call}, {case.precision}: left out, time was up.")
            continue
        begun = time.perf_counter()
        try:
            row = recorder.record(case)
            shown = "  ".join(column.show(row[column.key]) for column in COLUMNS)
            print(f"{shown}  in {time.perf_counter() - begun:.0f} s", flush=True)
            _write(recorder, options)
        except OSError as error:
            recorder.notes.append(f"{case.call}: left out: {error}.")
        except (SparseNNError, WrongAnswerError) as error:
            print(f"{case.key}: {error}", file=sys.stderr, flush=True)
            failed = True
        except Exception:  # a fault of the program in one case should not cost what the others found
            traceback.print_exc()
            failed = True
        finally:
            _release(case.device)
    return failed


def _release(device: str) -> None:
    """Give memory back between cases."""
    if device == "cuda":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        if torch is not None:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
