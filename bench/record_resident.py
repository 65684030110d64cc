"""Record the engine on a GPU: the challenge's twelve problems, from inputs and weights on the device to categories.

Usage: python bench/record_resident.py IMAGES_FOLDER [--neurons N …] [--layers L …] [--official FOLDER]

IMAGES_FOLDER holds what `packed_images.py` wrote. Every answer is compared with the CPU's before it is timed, and its
count with the official one. Writes bench/results/<machine>/resident.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from packed_images import unpack_images
from results_file import results_path, write_results

from sparsenn import infer
from sparsenn.backends.chains import SparseProblem
from sparsenn.backends.cuda import CUDABackend
from sparsenn.backends.cuda.runtime.device import current_machine
from sparsenn.backends.cuda.sparse.resident import chain as resident
from sparsenn.backends.cuda.sparse.resident.chain import ResidentChain, why_not
from sparsenn.backends.cuda.sparse.rows import active_rows
from sparsenn.datasets import radixnet
from sparsenn.formats import CSR
from sparsenn.io.challenge.folder import read_official
from sparsenn.io.challenge.layout import challenge_bias
from sparsenn.network import Network
from sparsenn.structure.merging import Merged, merge_equal_outputs, unmerged

OFFICIAL_COUNTS = {1024: 1812, 4096: 1801, 16384: 1918, 65536: 1994}
RUNS = 20
FEW_RUNS = 3  # with a saving off

MOST_PLAIN_LAYERS = 480
"""Layers up to which the network is run unmerged, too: making and packing 1920 such layers takes minutes."""

COLUMNS = [
    ("problem", "neurons × layers"),
    ("categories", "categories"),
    ("milliseconds", "median (ms)", "{:.2f}"),
    ("spread", "spread (ms)", "{:.3f}"),
    ("rate", "rate (TeraEdges/s)", "{:.0f}"),
    ("performed", "multiply-adds done (10⁹)", "{:.2f}"),
    ("floor_share", "% of roofline", "{:.1%}"),
    ("no_deduplication", "equal rows kept (ms)", "{:.2f}"),
    ("no_compaction", "dead rows kept (ms)", "{:.2f}"),
    ("no_merging", "equal outputs kept (ms)", "{:.2f}"),
    ("merge_seconds", "merge (s)", "{:.2f}"),
    ("prepare_seconds", "upload, capture (s)", "{:.2f}"),
]


def main() -> None:
    options = arguments()
    rows = []
    for neurons in options.neurons:
        inputs = unpack_images(options.images, neurons)
        for layers in options.layers:
            rows.append(measure(network_for(neurons, layers, options.official), inputs))
            print(rows[-1], flush=True)
    bandwidth, product = ceilings()
    for row in rows:
        row["floor_milliseconds"] = 1e3 * max(row["bytes"] / bandwidth, 1e9 * row["performed"] / product)
        row["floor_share"] = row["floor_milliseconds"] / row["milliseconds"]
    write_results(
        results_path("resident", folder=options.machine),
        table="resident",
        title="The Sparse DNN Graph Challenge on one GPU, 60,000 inputs",
        columns=COLUMNS,
        rows=rows,
        configuration={"runs": RUNS, "copy_bandwidth_gb_per_s": bandwidth / 1e9, "sgemm_multiply_adds_per_s": product},
        notes=[
            "From inputs and (merged) weights on the device to which rows are left, there, too, by CUDA events; median "
            f"and IQR of {RUNS} runs, with a saving off medians of {FEW_RUNS}. Each answer equals the CPU engine's, "
            "and its count the official one. The network of 1024 × 120 is the official one, the others are generated.",
            f"Floor: inputs and weights read once at the measured copy bandwidth ({bandwidth / 1e12:.1f} TB/s), or the "
            f"multiply-adds done at the measured rate of a float32 matrix product ({product / 1e12:.0f} T/s). A dash: "
            f"there are more than {MOST_PLAIN_LAYERS} layers.",
        ],
    )


def arguments() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("--neurons", type=int, nargs="+", default=list(OFFICIAL_COUNTS))
    parser.add_argument("--layers", type=int, nargs="+", default=[120, 480, 1920])
    parser.add_argument("--machine", help="name of the folder of results; made of CPU and GPU unless given")
    parser.add_argument("--official", type=Path, help="folder with the official 1024 × 120 network")
    return parser.parse_args()


def network_for(neurons: int, layers: int, official: Path | None) -> Network:
    if official is not None and (neurons, layers) == (1024, 120):
        return read_official(official).network
    return radixnet(neurons, layers, bias=challenge_bias(neurons))


def measure(network: Network, inputs: CSR) -> dict[str, Any]:
    neurons = network.inputs
    expected = infer(network, inputs, device="cpu").categories
    if expected.size != OFFICIAL_COUNTS[neurons]:
        sys.exit(f"{neurons} x {len(network)}: {expected.size} categories, not {OFFICIAL_COUNTS[neurons]}")
    start = time.perf_counter()
    merged = merge_equal_outputs(network)
    merge_seconds = time.perf_counter() - start
    start = time.perf_counter()
    ready = prepare(merged, inputs)
    prepare_seconds = time.perf_counter() - start
    times = timed(ready, expected)
    counts, packed_bytes = ready.chain.counts(), ready.chain.network.nbytes
    quartiles = statistics.quantiles(times, n=4)
    median = statistics.median(times)
    del ready
    row = {
        "problem": f"{neurons} × {len(network)}",
        "categories": int(expected.size),
        "milliseconds": median,
        "spread": quartiles[2] - quartiles[0],
        "runs": len(times),
        "rate": inputs.shape[0] * network.edges / median / 1e9,
        "performed": sum(count.performed_edges for count in counts) / 1e9,
        "bytes": inputs.nbytes + packed_bytes,
        "merge_seconds": merge_seconds,
        "prepare_seconds": prepare_seconds,
    }
    return row | dict(switched_off(network, merged, inputs, expected))


def switched_off(network: Network, merged: Merged, inputs: CSR, expected: Any) -> Iterator[tuple[str, float | None]]:
    """Time the run with each saving off."""
    plain = unmerged(network)
    for name, form, droppable, deduplicate in (
        ("no_deduplication", merged, 0, False),
        ("no_compaction", merged, len(network), True),
        ("no_merging", plain, 0, True),
    ):
        value = None
        if why_not(current_machine(), form.network, inputs) is None and (
            form is merged or len(network) <= MOST_PLAIN_LAYERS
        ):
            ready = prepare(form, inputs, droppable, deduplicate)
            value = statistics.median(timed(ready, expected, FEW_RUNS))
            del ready
        cupy.get_default_memory_pool().free_all_blocks()
        yield name, value


@dataclass(frozen=True)
class Ready:
    """Layers that are ready to run, and the inputs, on the device."""

    chain: ResidentChain
    inputs: CSR


def prepare(merged: Merged, inputs: CSR, droppable: int = 0, deduplicate: bool = True) -> Ready:
    backend = CUDABackend()
    stack = backend.prepare(merged.network.layers, merged.copies)
    placed = backend.place(inputs)
    assert isinstance(placed, CSR)
    chain = resident.prepare(stack, SparseProblem(placed.shape[0], "iso", droppable, deduplicate))
    cupy.cuda.Device().synchronize()
    return Ready(chain, placed)


def timed(ready: Ready, expected: Any, runs: int = RUNS) -> list[float]:
    """Milliseconds of each run, after two to warm up; the answer of every one is checked."""
    times = []
    for _ in range(runs + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        left = ready.chain.run(ready.inputs, True)
        active = active_rows(left)
        stop.record()
        if not np.array_equal(np.flatnonzero(active.get()), expected):
            sys.exit("a run gave other categories")
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return times[2:]


def ceilings() -> tuple[float, float]:
    """Measure a large copy (bytes read plus written per second) and a float32 product (multiply-adds per second)."""
    source = cupy.ones(1 << 28, np.float32)
    target = cupy.empty_like(source)
    matrix = cupy.random.random((8192, 8192), dtype=np.float32)
    copy = median_seconds(lambda: cupy.copyto(target, source))
    product = median_seconds(lambda: cupy.matmul(matrix, matrix))
    return 2 * source.nbytes / copy, 8192**3 / product


def median_seconds(work: Any) -> float:
    times = []
    for _ in range(RUNS + 2):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return statistics.median(times[2:])


if __name__ == "__main__":
    main()
