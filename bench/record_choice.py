"""Record how the planner's choice does: a session as planned against every other way to run the same network.

Usage: python bench/record_choice.py [--device cuda|cpu] [--networks N] [--first N] [--most-work W] [--every-kernel]
[--runs R] [--seconds S] [--machine NAME]

Networks are random, the same in every run: sparse, dense and mixed ones of 1 to 24 layers, 10 to 8192 wide, of 0.2 to
80 % of all weights, on 1 to 60,000 rows; of some nearly all rows die on the way. The other ways are each kernel by
name, of those that `auto` may take (of all with --every-kernel), the network with its sparse layers stored as dense
ones, and computing dead and equal rows like any others. A way that refuses the network is left out.

Answers are held against the float64 reference first. Writes bench/results/<machine>/choice.json, or choice-cpu.json.
The exit code is 1 if an answer is wrong, or the choice takes more than `MOST` times as long as the fastest other way.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from record_session import WrongAnswerError, check, exact, fetched
from results_file import Column, commit_of_tree, read_results, results_path, write_results
from session_cases import Case, Problem
from session_networks import as_dense, random_rows, sparse_layer
from session_peers import PRECISIONS
from wall_timing import RUNS, gpu_wait, timed, timed_in_turn, wait_for_nothing

from sparsenn import Identity, Linear, Network, ReLU, Session, SparseLinear, kernels
from sparsenn.errors import SparseNNError

MOST = 1.25
"""The most that the choice may take, in parts of the fastest other way."""

NETWORKS = 36
SEED = 7_041_777

KINDS = ("sparse", "sparse", "dense", "mixed")
WIDTHS = (10, 37, 64, 100, 128, 200, 256, 301, 512, 785, 1000, 1024, 2047, 2048, 3001, 4096, 8192)
DENSITIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8)
ROWS = (1, 7, 32, 128, 500, 1000, 4000, 10_000, 25_000, 60_000)
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)

MOST_WORK = 4e12
"""Multiply-adds of a network on its rows, with all weights stored."""

MOST_FLOATS = 1e8
"""Numbers of all rows in the widest layer."""

HOPELESS, MOST_SECONDS = 4.0, 1.0
"""Another way that takes so many times what the choice takes is timed a few times only; and most seconds of one way."""

DYING_BIAS = -1.5
"""Beside sums of about one: after a few such layers hardly a row has a non-zero."""

COLUMNS = (
    Column("network", "network"),
    Column("rows", "rows", "{:,}"),
    Column("precision", "precision"),
    Column("chosen", "chosen"),
    Column("milliseconds", "time (ms)", "{:,.3f}"),
    Column("estimate_milliseconds", "estimate (ms)", "{:,.3f}"),
    Column("fastest", "fastest other way"),
    Column("fastest_milliseconds", "its time (ms)", "{:,.3f}"),
    Column("ratio", "× the fastest", "{:.2f}"),
)

Row = dict[str, Any]


# ---- Networks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a random network is made from.

    Parameters
    ----------
    kind : `sparse`, `dense`, or `mixed`: the first and the last layer are dense then.
    widths : inputs of the first layer, then outputs of each.
    density : of the sparse layers.
    dying : whether biases let rows die.
    """

    kind: str
    widths: tuple[int, ...]
    density: float
    rows: int
    dying: bool
    precision: str
    seed: int

    @property
    def work(self) -> float:
        """Multiply-adds, all weights stored."""
        return float(self.rows) * sum(a * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    def __str__(self) -> str:
        inner = self.widths[1:-1]
        same = len(inner) > 2 and len(set(inner)) == 1
        middle = [f"{len(inner)} × {inner[0]}"] if same else list(map(str, inner))
        sizes = "-".join(map(str, (self.widths[0], *middle, self.widths[-1])))
        share = "" if self.kind == "dense" else f", {self.density:.1%} of the weights"
        return f"{self.kind} {sizes}{share}{', rows die' if self.dying else ''}"


def shapes(count: int, most_work: float = MOST_WORK, on_gpu: bool = True) -> Iterator[Shape]:
    """Yield so many shapes; the same ones each time, none larger than is asked for."""
    rng = np.random.default_rng(SEED)
    found = 0
    while found < count:
        kind = KINDS[found % len(KINDS)]
        depth = int(rng.choice(DEPTHS))
        if rng.random() < 0.5:
            widths = (int(rng.choice(WIDTHS)),) * (depth + 1)
        else:
            widths = tuple(map(int, rng.choice(WIDTHS, depth + 1)))
        precision = "float32" if rng.random() < 0.4 or not on_gpu else str(rng.choice(["tf32", "float16"]))
        shape = Shape(
            kind if depth > 2 or kind != "mixed" else "sparse",
            widths,
            float(rng.choice(DENSITIES)),
            int(rng.choice(ROWS)),
            bool(kind != "dense" and rng.random() < 0.35),
            precision,
            int(rng.integers(1 << 30)),
        )
        if shape.work <= most_work and shape.rows * max(widths) <= MOST_FLOATS:
            found += 1
            yield shape


def network_of(shape: Shape) -> Network:
    """Return the network."""
    rng = np.random.default_rng(shape.seed)
    layers: list[Linear | SparseLinear] = []
    last = len(shape.widths) - 2
    for number, (inputs, outputs) in enumerate(zip(shape.widths, shape.widths[1:], strict=False)):
        bias = DYING_BIAS if shape.dying else 0.0
        dense = shape.kind == "dense" or (shape.kind == "mixed" and number in (0, last))
        if dense:
            weights = rng.standard_normal((inputs, outputs), dtype=np.float32) * np.float32((2 / inputs) ** 0.5)
            biases = (rng.standard_normal(outputs) / 10).astype(np.float32)
            layers.append(Linear(weights, biases, Identity() if number == last else ReLU()))
        else:
            layers.append(sparse_layer(rng, inputs, outputs, shape.density, bias, last=False))
    return Network(tuple(layers))


# ---- Ways to run one --------------------------------------------------------------------------------------------


def ways(network: Network, device: str, precision: str, every: bool) -> Iterator[tuple[str, Network, dict[str, Any]]]:
    """Yield the other ways that are as accurate: a name, the network, and the session's options.

    Parameters
    ----------
    precision : that may be multiplied in, or in any that rounds less.
    every : whether kernels that `auto` never takes are tried, too.
    """
    if not any(isinstance(layer, SparseLinear) for layer in network):
        yield from _dense_ways("", network, device, precision, every)
        return
    dense_layers = any(isinstance(layer, Linear) for layer in network)
    for kernel in kernels("spmspm", device):
        if kernel.auto or every:  # sparse kernels multiply in float32, the dense layers beside them as is asked
            yield kernel.name, network, {"kernel": kernel.name, "precision": precision if dense_layers else "float32"}
    for name, given in (
        ("dead rows kept", {"compaction": False}),
        ("equal rows kept", {"deduplication": False}),
        ("dead and equal rows kept", {"compaction": False, "deduplication": False}),
    ):
        yield name, network, {**given, "precision": precision}
    stored = as_dense(network)
    yield "all weights stored", stored, {"precision": precision}
    yield from _dense_ways("all weights stored, ", stored, device, precision, every)


def _dense_ways(
    name: str, network: Network, device: str, precision: str, every: bool
) -> Iterator[tuple[str, Network, dict[str, Any]]]:
    enough = PRECISIONS[: PRECISIONS.index(precision) + 1]
    for kernel in kernels("mlp", device):
        if (kernel.auto or every) and kernel.precision in enough:
            yield f"{name}{kernel.name}", network, {"kernel": kernel.name, "precision": kernel.precision}


@dataclass(frozen=True)
class Recorder:
    """Measures networks on a device.

    Parameters
    ----------
    every : whether kernels that `auto` never takes are tried, too.
    wait : waits for the device.
    """

    device: str
    runs: int
    every: bool
    wait: Callable[[], None]

    def record(self, number: int, shape: Shape) -> Row:
        """Time the choice and the other ways.

        Raises
        ------
        WrongAnswerError
            An answer is not that of the reference.
        SparseNNError
            The choice refuses the network.
        """
        network = network_of(shape)
        problem = Problem(network, random_rows(shape.rows, network.inputs, shape.seed))
        case = Case("", "", lambda sources: problem, self.device, precision=shape.precision)
        right = exact(problem)
        rows = self._placed(problem.rows, shape.precision)
        choice = {"precision": shape.precision}
        milliseconds, plan = self._measured(case, problem, rows, right, network, choice, None)
        others: dict[str, float] = {}
        sessions: dict[str, tuple[Network, dict[str, Any]]] = {}
        for name, form, given in ways(network, self.device, shape.precision, self.every):
            sessions[name] = form, given
            try:
                others[name] = self._measured(case, problem, rows, right, form, given, milliseconds)[0]
            except (SparseNNError, MemoryError) as error:
                print(f"  {name}: {error}", file=sys.stderr, flush=True)
        fastest, best = min(others, key=others.__getitem__) if others else None, milliseconds
        if fastest is not None:
            milliseconds, best = self._in_turn(rows, (network, choice), sessions[fastest])
        return {
            "number": number,
            "network": str(shape),
            "kind": shape.kind,
            "widths": list(shape.widths),
            "density": shape.density,
            "dying": shape.dying,
            "seed": shape.seed,
            "rows": shape.rows,
            "precision": shape.precision,
            "chosen": ", ".join(dict.fromkeys(kernel.name for kernel in plan.kernels)),
            "plan": str(plan),
            "milliseconds": milliseconds,
            "estimate_milliseconds": None if plan.estimate is None else 1e3 * plan.estimate,
            "fastest": fastest,
            "fastest_milliseconds": best,
            "ratio": milliseconds / best,
            "others": others,
        }

    def _in_turn(self, rows: Any, *ways: tuple[Network, dict[str, Any]]) -> list[float]:
        """Return the median milliseconds of some ways, timed in turn."""
        with ExitStack() as stack:
            found = [stack.enter_context(Session(network, device=self.device, **given)) for network, given in ways]
            start = time.perf_counter()
            for session in found * 2:  # the second call is a warm one
                session(rows)
            self.wait()
            most = int(MOST_SECONDS / max(1e-9, time.perf_counter() - start))
            calls = [partial(session, rows) for session in found]
            return timed_in_turn(calls, self.wait, max(3, min(self.runs, most)), min(5, most))

    def _placed(self, rows: Any, precision: str) -> Any:
        if self.device == "cpu":
            return rows
        import cupy

        return cupy.asarray(rows, np.float16 if precision == "float16" else np.float32)

    def _measured(
        self,
        case: Case,
        problem: Problem,
        rows: Any,
        right: tuple[np.ndarray, np.ndarray],
        network: Network,
        given: dict[str, Any],
        choice: float | None,
    ) -> tuple[float, Any]:
        """Return the median milliseconds of one way, and its plan; `choice` is what the choice took, once known."""
        with Session(network, device=self.device, **given) as session:
            sample = (np.arange(right[0].size), right[1])
            answer = fetched(session(rows)[right[0]])
            start = time.perf_counter()
            session(rows)
            self.wait()
            once = 1e3 * (time.perf_counter() - start)
            check(case, problem, answer, sample)
            hopeless = choice is not None and once > HOPELESS * choice
            runs = 3 if hopeless else self.runs
            found = timed(lambda: session(rows), self.wait, runs, 1 if hopeless else 5, most_seconds=MOST_SECONDS)
            return found.median, session.plan(rows)


# ---- The command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description="Record the planner's choice beside all other ways.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--networks", type=int, default=NETWORKS)
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="begin with this network, counted from 0; those before are kept if the result holds them",
    )
    parser.add_argument("--most-work", type=float, default=MOST_WORK, help="multiply-adds of a network on its rows")
    parser.add_argument("--every-kernel", action="store_true", help="also those that auto never takes")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, default=540, help="start no further network after this time")
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    options = parser.parse_args(arguments)
    wait = gpu_wait() if options.device == "cuda" else wait_for_nothing
    recorder = Recorder(options.device, options.runs, options.every_kernel, wait)
    rows, failed = _rows(recorder, options)
    if not rows:
        print("record_choice: no network was recorded", file=sys.stderr)
        return 1
    path = _path(options)
    write_results(
        path,
        table="choice",
        title=f"What the planner chooses on {'a GPU' if options.device == 'cuda' else 'a CPU'}, beside the fastest "
        f"other way: {len(rows)} random networks",
        columns=COLUMNS,
        rows=rows,
        configuration={
            "runs": options.runs,
            "seed": SEED,
            "most_work": options.most_work,
            "every_kernel": options.every_kernel,
            "most": MOST,
        },
        notes=[
            f"Wall time of a warm call, its answer awaited: medians of {options.runs} runs, fewer where they take more "
            f"than {MOST_SECONDS:g} s or {HOPELESS:g} times what the choice takes. The fastest other way is then timed "
            "again, in turn with the choice: these two medians are compared. Rows and outputs are where the session "
            "computes.",
            "Other ways: each kernel by name that takes the network, its sparse layers stored as dense ones, and "
            "computing dead and equal rows like any others. Answers were held against the float64 reference.",
        ],
    )
    worst = max(row["ratio"] for row in rows)
    print(f"{path}: {len(rows)} networks, the choice takes at most {worst:.2f} times the fastest other way")
    return 1 if failed or worst > MOST else 0


def _path(options: argparse.Namespace) -> Path:
    return results_path("choice" if options.device == "cuda" else "choice-cpu", folder=options.machine)


def _rows_before(options: argparse.Namespace) -> list[Row]:
    """Return what the same code found for the networks before the first, if there is a result that says so."""
    if not options.first or not _path(options).is_file():
        return []
    before = read_results(_path(options))
    same = before.commit == commit_of_tree()
    return [row for row in before.rows if same and row["number"] < options.first]


def _rows(recorder: Recorder, options: argparse.Namespace) -> tuple[list[Row], bool]:
    """Record networks; return what was found, and whether one failed."""
    start, failed = time.perf_counter(), False
    rows = _rows_before(options)
    for number, shape in enumerate(shapes(options.networks, options.most_work, options.device == "cuda")):
        if number < options.first:
            continue
        if time.perf_counter() - start > options.seconds:
            print(f"out of time before network {number}", file=sys.stderr)
            break
        try:
            rows.append(recorder.record(number, shape))
            print(number, "  ".join(column.show(rows[-1][column.key]) for column in COLUMNS), flush=True)
        except (SparseNNError, WrongAnswerError) as error:
            print(f"network {number}, {shape}, {shape.rows} rows, {shape.precision}: {error}", file=sys.stderr)
            failed = True
        except Exception:  # a fault of the program with one network should not cost what the others found
            traceback.print_exc()
            failed = True
        if recorder.device == "cuda":
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
    return rows, failed


if __name__ == "__main__":
    sys.exit(main())
