"""Every kernel of an operation beside the library, on some sizes: what tables conv2d, gemm and mlp share.

Outputs of a sample are checked against float64 first. Calls are queued while the device is kept busy, on inputs in turn
that are more than any cache holds; the same for rungs, for cuBLAS and for PyTorch, which shares CuPy's stream.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from ceilings import Peaks, gpu_peaks
from peers import torch
from record import Row, Run, WrongAnswerError
from rung_plots import draw_rungs
from timing import Timing, between_events, queued

from sparsenn.backends import Kernel
from sparsenn.errors import SparseNNError
from sparsenn.studies.ladder import ladder_for

ALLOWED = {"float32": 2e-5, "tf32": 5e-3, "float16": 1e-2}
"""Largest difference from float64, in parts of the largest output."""

CACHE_BYTES = 200 << 20
"""Inputs are taken in turn, as many as are larger than any cache."""

MOST_INPUTS = 16
THREADS = 8
"""That compile kernels at the same time."""

SAMPLE = 64
"""Images or rows checked, the first and the last among them."""

RUNS, FEW_RUNS, LEAST_RUNS = 20, 7, 3
SLOW_MILLISECONDS, SLOWEST_MILLISECONDS = 10.0, 200.0
"""Calls that take longer are run fewer times."""

KINDS = ("float32", "float16")
"""Types of inputs."""


class Work:
    """An operation on inputs of one size and type, and what all rungs share there; a subclass for each operation.

    Attributes
    ----------
    inputs : on the device, to be taken in turn.
    moved, multiply_adds : bytes of inputs, outputs and weights, and the products of a call.
    """

    inputs: list[Any]
    moved: int
    multiply_adds: int

    def accepts(self, rung: Kernel) -> bool:
        """Return whether a rung takes the inputs."""
        raise NotImplementedError

    def launch(self, rung: Kernel, inputs: Any) -> Any:
        """Return a rung's outputs."""
        raise NotImplementedError

    def sampled(self, outputs: Any) -> Any:
        """Return the outputs that are checked."""
        raise NotImplementedError

    def exact(self) -> Any:
        """Return the float64 outputs of the sample."""
        raise NotImplementedError

    def plain(self) -> Any:
        """Return the outputs of the sample by a library in float32."""
        raise NotImplementedError

    def peers(self, precision: str) -> Row:
        """Return the times of libraries, and `peer_milliseconds`, the best of them."""
        raise NotImplementedError

    def time(self, rung: Kernel) -> Timing:
        """Time a rung."""
        return in_turn(partial(self.launch, rung), self.inputs)

    @cached_property
    def expected(self) -> Any:
        return self.exact()

    @cached_property
    def plain_error(self) -> float:
        return self.difference(self.plain())

    @cached_property
    def failures(self) -> dict[str, str]:
        """Why rungs fail, by their names; each is launched once, so that all are compiled at the same time."""
        able = [rung for rung in self.rungs if self.accepts(rung)]
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip([rung.name for rung in able], pool.map(self._failure, able), strict=True))

    def _failure(self, rung: Kernel) -> str:
        try:
            self.launch(rung, self.inputs[0])
        except SparseNNError as error:
            return str(error)
        return ""

    rungs: Sequence[Kernel] = ()

    def difference(self, sample: Any) -> float:
        """Return how far outputs are from float64's, in parts of the largest; NaN stays NaN."""
        return float(abs(sample.astype(np.float64) - self.expected).max() / abs(self.expected).max())


def in_turn(call: Callable[[Any], object], inputs: Sequence[Any]) -> Timing:
    """Time a call on inputs in turn; slow ones are run less often."""
    once = between_events(lambda: call(inputs[0]), 1, warm_up=1).median
    runs = RUNS if once < SLOW_MILLISECONDS else FEW_RUNS if once < SLOWEST_MILLISECONDS else LEAST_RUNS
    taken = inputs if once < SLOW_MILLISECONDS else inputs[:1]
    found = queued(lambda: [call(each) for each in taken], runs)
    return Timing(found.median / len(taken), found.spread / len(taken), found.runs)


def random_inputs(shape: tuple[int, ...], kind: str, size: int, most: int = MOST_INPUTS) -> list[Any]:
    """Return arrays of normal numbers, as many as are more than a cache holds if a call moves `size` bytes."""
    import cupy

    rng = cupy.random.default_rng(5)
    count = max(1, min(most, -(-CACHE_BYTES // max(1, size))))
    return [rng.standard_normal(shape, np.float32).astype(kind, copy=False) for _ in range(count)]


def sample_of(count: int) -> Any:
    """Return the numbers of rows that are checked, on the device."""
    import cupy

    if count <= SAMPLE:
        return cupy.arange(count)
    inner = np.random.default_rng(7).choice(count - 2, SAMPLE - 2, replace=False) + 1
    return cupy.asarray(np.concatenate([[0], inner, [count - 1]]))


def machine() -> Any:
    from sparsenn.backends.cuda.runtime.device import current_machine

    return current_machine()


# ---- The ladder of an operation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A rung on inputs of a size and a type.

    Parameters
    ----------
    size : columns of the row that say what is computed.
    """

    ladder: Ladder
    size: tuple[Any, ...]
    kind: str
    rung: Kernel

    def __str__(self) -> str:
        return ", ".join([self.rung.name, *map(str, self.size), self.kind])


@dataclass(frozen=True, eq=False)
class Ladder:
    """An operation's kernels on some sizes.

    Parameters
    ----------
    operation : its name, of the table, too.
    heads : keys of a size's columns.
    make : returns the work of a size and a type of inputs, of a kind of `KINDS`.
    library : name of the rung that is the library itself, and left out.
    """

    operation: str
    heads: tuple[str, ...]
    make: Callable[[tuple[Any, ...], str], Work]
    library: str = ""

    def cells(self, sizes: Sequence[tuple[Any, ...]], options: argparse.Namespace) -> Iterator[Cell]:
        """Yield the rungs on all sizes."""
        for size in sizes:
            for kind in KINDS:
                for rung in ladder_for(self.operation).rungs["cuda"]:
                    is_named = not options.kernels or rung.name in options.kernels
                    if rung.name != self.library and is_named and (kind == "float32" or rung.half_rows):
                        yield Cell(self, size, kind, rung)


def rung_rows(cell: Cell, run: Run) -> list[Row]:
    """Check a rung and time it beside the library; return its row, none where it does not take the inputs.

    Raises
    ------
    WrongAnswerError
        Outputs are further from float64 than the precision allows.
    """
    peaks: Peaks = run.shared_value("peaks", gpu_peaks)
    work = _work(cell, run)
    if not work.accepts(cell.rung):
        return []
    if failure := work.failures.get(cell.rung.name):
        run.notes.append(f"{cell.rung.name} is left out: {failure}.")
        return []
    precision = cell.rung.precision
    error = work.difference(work.sampled(work.launch(cell.rung, work.inputs[0])))
    if not error <= ALLOWED[precision]:
        raise WrongAnswerError(f"{cell}: outputs are off by {error:.1e} of the largest")
    ours = work.time(cell.rung)
    peers = run.shared_value((cell.size, precision, _peer_kind(cell)), lambda: work.peers(precision))
    best, floor = peers["peer_milliseconds"], 1e3 * peaks.floor(work.moved, work.multiply_adds, precision)
    return [
        {
            **dict(zip(cell.ladder.heads, cell.size, strict=True)),
            "precision": precision,
            "features": cell.kind,
            "kernel": cell.rung.name,
            "milliseconds": ours.median,
            "spread_milliseconds": ours.spread,
            "rate": 2e-9 * work.multiply_adds / ours.median,
            "floor_milliseconds": floor,
            "floor_share": floor / ours.median,
            **peers,
            "over_peer": best and best / ours.median,
            "error": error,
            "plain_error": work.plain_error,
            "runs": ours.runs,
            "inputs_in_turn": len(work.inputs),
        }
    ]


def _peer_kind(cell: Cell) -> str:
    """Peers of products take inputs in their own precision; those of fused networks, the rung's."""
    return cell.kind if cell.ladder.operation == "mlp" else ""


def _work(cell: Cell, run: Run) -> Work:
    """Return the work of a cell; that of the cell before where it is the same."""
    key = (cell.size, cell.kind)
    if run.shared.get("work_key") != key:
        run.shared.pop("work", None)  # the one before goes first: both may not fit
        work = cell.ladder.make(*key)
        work.rungs = [each.rung for each in cell.ladder.cells([cell.size], run.options) if each.kind == cell.kind]
        run.shared |= {"work_key": key, "work": work}
    return run.shared["work"]  # type: ignore[no-any-return]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", nargs="+", default=[], help="these only")
    parser.add_argument("--plot", type=Path, help="draw the ladders, too")


def ladder_configuration(run: Run) -> Row:
    if run.options.plot:
        draw_rungs(run.name, run.rows, run.options.plot)
    peaks: Peaks = run.shared_value("peaks", gpu_peaks)
    return {
        "copy_bytes_per_second": peaks.copied,
        "multiply_adds_per_second": peaks.rates,
        "torch": None if torch is None else torch.__version__,
        "cudnn": None if torch is None else torch.backends.cudnn.version(),
    }


MIDDLE = (
    ("precision", "precision"),
    ("features", "inputs as"),
    ("kernel", "kernel"),
    ("milliseconds", "ours (ms)", "{:,.4f}"),
    ("spread_milliseconds", "spread (ms)", "{:.4f}"),
)
RATE = (("rate", "TFLOP/s", "{:.1f}"), ("floor_share", "% of roofline", "{:.0%}"))
ERRORS = (("error", "error", "{:.1e}"), ("plain_error", "error of plain float32", "{:.1e}"))

QUEUED_NOTE = (
    "Calls are queued while the device is busy, and cycle through enough inputs to exceed all caches. Medians (slow "
    "kernels: fewer runs). Spread: interquartile range."
)
FLOOR_NOTE = (
    "Floor: the larger of inputs, outputs and weights moved once at the measured copy bandwidth, and the multiply-adds "
    "at the rate of a cuBLAS product of 8,192 × 8,192 in the same precision; for float32 at a third of TF32's, if that "
    "is more."
)
