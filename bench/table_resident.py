"""The engine on a GPU: the challenge's twelve problems, from inputs and weights on the device to categories.

Inputs are those that `packed_images.py` wrote. Every answer is compared with the CPU's before it is timed, and its
count with the official one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ceilings import Peaks, gpu_peaks
from packed_images import unpack_images
from record import Row, Run, Table, WrongAnswerError, count
from timing import Timing, summary

from sparsenn import infer
from sparsenn.backends.chains import SparseProblem
from sparsenn.datasets import radixnet
from sparsenn.formats import CSR
from sparsenn.io.challenge.folder import read_official
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.network import Network
from sparsenn.structure.merging import Merged, merge_equal_outputs, unmerged

OFFICIAL_COUNTS = {1024: 1812, 4096: 1801, 16384: 1918, 65536: 1994}
RUNS = 20
FEW_RUNS = 3  # with a saving off
WARM_UP = 2

MOST_PLAIN_LAYERS = 480
"""Layers up to which the network is run unmerged, too: making and packing 1920 such layers takes minutes."""


@dataclass(frozen=True)
class Cell:
    """A problem of the challenge."""

    neurons: int
    layers: int

    def __str__(self) -> str:
        return f"{self.neurons} × {self.layers}"


def network_of(cell: Cell, official: Path | None) -> Network:
    if official is not None and (cell.neurons, cell.layers) == (1024, 120):
        return read_official(official).network
    return radixnet(cell.neurons, cell.layers, bias=challenge_bias(cell.neurons))


def resident_row(cell: Cell, run: Run) -> Row:
    """Check a problem and time it, with each saving off, too.

    Raises
    ------
    WrongAnswerError
        A run gives other categories than the CPU, or these are not as many as the official ones.
    """
    peaks: Peaks = run.shared_value("peaks", gpu_peaks)
    if run.shared.get("neurons") != cell.neurons:
        run.shared |= {"neurons": cell.neurons, "inputs": unpack_images(run.options.images, cell.neurons)}
    network, inputs = network_of(cell, run.options.official), run.shared["inputs"]
    expected = infer(network, inputs, device="cpu").categories
    if expected.size != OFFICIAL_COUNTS[cell.neurons]:
        raise WrongAnswerError(f"{cell}: {expected.size} categories, not {OFFICIAL_COUNTS[cell.neurons]}")
    start = time.perf_counter()
    merged = merge_equal_outputs(network)
    merge_seconds = time.perf_counter() - start
    start = time.perf_counter()
    ready = prepare(merged, inputs)
    prepare_seconds = time.perf_counter() - start
    timing = timed(ready, expected)
    performed = sum(count.performed_edges for count in ready.chain.counts())
    moved = inputs.nbytes + ready.chain.network.nbytes
    del ready
    floor = 1e3 * max(moved / peaks.copied, performed / peaks.rates["float32"])
    return {
        "problem": str(cell),
        "categories": int(expected.size),
        "milliseconds": timing.median,
        "spread": timing.spread,
        "runs": timing.runs,
        "rate": inputs.shape[0] * network.edges / timing.median / 1e9,
        "performed": performed / 1e9,
        "bytes": moved,
        "floor_milliseconds": floor,
        "floor_share": floor / timing.median,
        "merge_seconds": merge_seconds,
        "prepare_seconds": prepare_seconds,
        **dict(switched_off(network, merged, inputs, expected)),
    }


def switched_off(network: Network, merged: Merged, inputs: CSR, expected: Any) -> Iterator[tuple[str, float | None]]:
    """Yield the time of a run with each saving off."""
    import cupy

    from sparsenn.backends.cuda.runtime.device import current_machine
    from sparsenn.backends.cuda.sparse.resident.chain import why_not

    plain = unmerged(network)
    for name, form, droppable, deduplicate in (
        ("no_deduplication", merged, 0, False),
        ("no_compaction", merged, len(network), True),
        ("no_merging", plain, 0, True),
    ):
        value = None
        is_small = form is merged or len(network) <= MOST_PLAIN_LAYERS
        if is_small and why_not(current_machine(), form.network, inputs) is None:
            value = timed(prepare(form, inputs, droppable, deduplicate), expected, FEW_RUNS).median
        cupy.get_default_memory_pool().free_all_blocks()
        yield name, value


@dataclass(frozen=True)
class Ready:
    """Layers that are ready to run, and the inputs, on the device."""

    chain: Any
    inputs: CSR


def prepare(merged: Merged, inputs: CSR, droppable: int = 0, deduplicate: bool = True) -> Ready:
    import cupy

    from sparsenn.backends.cuda import CUDABackend
    from sparsenn.backends.cuda.sparse.resident import chain as resident

    backend = CUDABackend()
    stack = backend.prepare(merged.network.layers, merged.copies)
    placed = backend.place(inputs)
    assert isinstance(placed, CSR)
    chain = resident.prepare(stack, SparseProblem(placed.shape[0], "iso", droppable, deduplicate))
    cupy.cuda.Device().synchronize()
    return Ready(chain, placed)


def timed(ready: Ready, expected: Any, runs: int = RUNS) -> Timing:
    """Time runs by events, after two to warm up; the answer of every one is checked.

    Raises
    ------
    WrongAnswerError
        A run gave other categories.
    """
    import cupy

    from sparsenn.backends.cuda.sparse.rows import active_rows

    times = []
    for _ in range(WARM_UP + runs):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        active = active_rows(ready.chain.run(ready.inputs, True))
        stop.record()
        if not np.array_equal(np.flatnonzero(active.get()), expected):
            raise WrongAnswerError("a run gave other categories")
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return summary(times[WARM_UP:])


def notes(options: argparse.Namespace, rows: Sequence[Row]) -> list[str]:
    return [
        "GPU time by CUDA events, with inputs and (merged) weights on the device, until the categories are known "
        f"there; median and IQR of {RUNS} runs, {FEW_RUNS} where a saving is switched off. Each answer equals the CPU "
        "engine's, and its count the official one. The network of 1024 × 120 is the official one, the others are "
        "generated.",
        "Floor: inputs and weights read once at the measured copy bandwidth, or the multiply-adds done at the measured "
        f"rate of a float32 matrix product. A dash: not measured beyond {MOST_PLAIN_LAYERS} layers.",
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", type=Path, help="folder that packed_images.py wrote")
    parser.add_argument("--neurons", type=count, nargs="+", choices=OFFICIAL_COUNTS, default=list(OFFICIAL_COUNTS))
    parser.add_argument("--layers", type=count, nargs="+", default=[120, 480, 1920])
    parser.add_argument("--official", type=Path, help="folder with the official 1024 × 120 network")


TABLES = {
    "resident": Table(
        title="The Sparse DNN Graph Challenge on one GPU, 60,000 inputs",
        columns=[
            ("problem", "neurons × layers"),
            ("categories", "categories"),
            ("milliseconds", "median (ms)", "{:.2f}"),
            ("spread", "spread (ms)", "{:.3f}"),
            ("rate", "rate (TeraEdges/s)", "{:.0f}"),
            ("performed", "multiply-adds done (10⁹)", "{:.2f}"),
            ("floor_share", "% of roofline", "{:.1%}"),
            ("no_deduplication", "equal rows not merged (ms)", "{:.2f}"),
            ("no_compaction", "dead rows not dropped (ms)", "{:.2f}"),
            ("no_merging", "equal outputs not merged (ms)", "{:.2f}"),
            ("merge_seconds", "merge (s)", "{:.2f}"),
            ("prepare_seconds", "upload, capture (s)", "{:.2f}"),
        ],
        cells=lambda options: [Cell(neurons, layers) for neurons in options.neurons for layers in options.layers],
        measure=resident_row,
        notes=notes,
        options=add_options,
        configuration=lambda run: {
            "runs": RUNS,
            "copy_bandwidth_gb_per_s": run.shared["peaks"].copied / 1e9,
            "sgemm_multiply_adds_per_s": run.shared["peaks"].rates["float32"],
        },
    )
}
